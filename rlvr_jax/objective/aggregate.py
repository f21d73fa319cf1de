"""From the loss of each token to one number: aggregate(loss, weight, rows) -> (numerator, denominator).

The learner sums numerators over bins and devices and divides once by the denominator of the WHOLE batch,
so the split never changes the gradient. The denominator depends on weights and masks alone.

Which tokens the denominator counts is `over`:

  live    every trained token of a row with any weight: rows dropped on purpose leave it
  every   every trained token: what is dropped at random has its inverse probability to make up for it, and
          what is dropped on purpose weakens the update instead of weighing the rest higher
  kept    tokens whose own weight is not 0
"""

import jax.numpy as jnp

from rlvr_jax.core import masked, traits


def live(weight, mask):
  return mask & (weight != 0).any(1)[:, None]


def every(weight, mask):
  del weight
  return mask


def kept(weight, mask):
  return mask & (weight != 0)


def _aggregate(scale, count, over):
  """sum_nt w_nt l_nt scale_n over the trained tokens, and `count` of the tokens that `over` says."""

  def aggregate(loss, weight, rows):
    mask = rows.loss_mask
    weight = masked.select(weight, mask)
    counted = over(weight, mask)
    numerator = masked.total(loss * weight * scale(counted, rows), mask)
    return numerator, count(counted).astype(jnp.float32)

  return traits.declare(aggregate, denominator=over.__name__)


def _tokens(counted):
  return counted.sum()


def _rows(counted):
  return counted.any(1).sum()


def token_mean(*, over=live):
  """Sum over tokens / number of tokens: long responses weigh more than short ones.

      loss = sum_nt w_nt l_nt / #counted

  Source: DAPO, arXiv 2503.14476, token-level loss.
  """
  return _aggregate(lambda counted, rows: 1.0, _tokens, over)


def sequence_mean_token_mean(*, over=live):
  """Mean over rows of the mean over a row's tokens; a row without counted tokens is not a row.

      loss = sum_n (sum_t w_nt l_nt / #counted of n) / #rows

  Source: GRPO, arXiv 2402.03300.
  """
  share = lambda counted, rows: 1 / jnp.maximum(counted.sum(1), 1).astype(jnp.float32)[:, None]
  return _aggregate(share, _rows, over)


def sequence_mean_token_sum(*, norm: float = 0.0, over=live):
  """Mean over rows of the sum over a row's tokens, divided by a constant: no bias by length.

      loss = sum_nt w_nt l_nt / norm / #rows

  Args:
    norm: at least 0; 1 is the plain sum, 0 takes the most response tokens that the row was allowed.

  Source: Dr.GRPO, arXiv 2503.20783.
  """
  if norm < 0:
    raise ValueError(f"norm must be at least 0, got {norm}")

  def share(counted, rows):
    if norm:
      return 1 / norm
    return 1 / jnp.maximum(rows.limit - rows.response_start, 1).astype(jnp.float32)[:, None]

  return _aggregate(share, _rows, over)


def step_mean(*, steps: float = 10.0, over=every):
  """The token mean, with each row as one step of an episode and the step divided by a constant.

      loss = sum_nt w_nt l_nt / k_n / #counted,    k_n = steps, or the steps of the row's own episode

  A constant lets long episodes weigh more, failures too; the episode's own number of steps does not.

  Args:
    steps: positive; 0 takes rows.extras["num_steps"], [N].

  Source: AsyncWebRL, arXiv 2606.05597.
  """
  if steps < 0:
    raise ValueError(f"steps must be at least 0, got {steps}")

  def share(counted, rows):
    if steps:
      return 1 / steps
    if "num_steps" not in rows.extras:
      raise ValueError("steps=0 needs rows.extras['num_steps'], the steps of each row's episode")
    return 1 / jnp.maximum(rows.extras["num_steps"], 1).astype(jnp.float32)[:, None]

  return _aggregate(share, _tokens, over)
