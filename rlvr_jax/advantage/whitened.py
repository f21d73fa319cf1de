"""REINFORCE++: advantages in units of the spread over all trained tokens of the batch."""

import jax.numpy as jnp

from rlvr_jax.advantage.group import extra, scored, spread
from rlvr_jax.core import groups, returns


def reinforce_pp(*, gamma: float = 1.0, token_reward: str = ""):
  """Discounted reward to go of each token, whitened over the batch. Groups play no part.

  Whitening subtracts the mean and divides by the sample standard deviation over every trained token of
  every scored row; if all are equal the result is exactly 0.

  Args:
    gamma: in (0, 1]; tokens that are not trained cost no discount.
    token_reward: entry of rows.extras, float32 [N,T], added to the row's reward, which lies on its last
      trained token. A penalty on the distance to a reference goes here. Empty: none.

  Source: REINFORCE++, arXiv 2501.03262.
  """
  _check(gamma)

  def advantage(rows):
    reward, mask = token_rewards(rows, token_reward)
    togo, _ = returns.gae(reward, jnp.zeros_like(reward), mask, gamma=gamma)
    return returns.whiten(togo, mask)

  return advantage


def reinforce_pp_baseline():
  """Reward against the group's mean, then whitened over the trained tokens of the batch.

  Long responses weigh more in the mean over tokens, so that a group of equal rewards need not end at 0.

  Source: REINFORCE++, arXiv 2501.03262.
  """

  def advantage(rows):
    args = scored(rows)
    mask = rows.loss_mask & args[2][:, None]
    return returns.whiten(spread(groups.centred(*args), rows), mask)

  return advantage


def token_rewards(rows, name: str = ""):
  """(reward float32 [N,T] with the row's own on its last trained token, trained tokens of scored rows)."""
  reward, _, ok = scored(rows)
  mask = rows.loss_mask & ok[:, None]
  reward = returns.at_end(reward, mask)
  return (reward + extra(rows, name) if name else reward), mask


def _check(gamma):
  if not 0 < gamma <= 1:
    raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
