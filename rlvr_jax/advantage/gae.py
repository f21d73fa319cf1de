"""Advantages of each token against a critic's values."""

from rlvr_jax.advantage.group import extra
from rlvr_jax.advantage.whitened import token_rewards
from rlvr_jax.core import returns


def gae(
  *,
  gamma: float = 1.0,
  lam: float = 1.0,
  alpha: float = 0.0,
  whiten: bool = True,
  values: str = "values",
  token_reward: str = "",
):
  """Generalised advantage estimation over the trained tokens; the others are skipped.

  Args:
    gamma: in (0, 1].
    lam: in [0, 1].
    alpha: 0, or at least 1: lam is then 1 - 1 / (alpha l) for a row of l trained tokens.
    whiten: mean 0 and variance 1 over the trained tokens of the batch.
    values: entry of rows.extras, float32 [N,T]: the critic's value before each token.
    token_reward: as in `whitened.reinforce_pp`.

  Source: GAE, arXiv 1506.02438; alpha: SAO, arXiv 2607.07508.
  """
  if not 0 < gamma <= 1:
    raise ValueError(f"gamma must lie in (0, 1], got {gamma}")
  if not 0 <= lam <= 1:
    raise ValueError(f"lam must lie in [0, 1], got {lam}")
  if alpha and alpha < 1:
    raise ValueError(f"alpha must be 0 (lam as given) or at least 1, got {alpha}")

  def advantage(rows):
    reward, mask = token_rewards(rows, token_reward)
    decay = returns.length_lambda(mask, alpha) if alpha else lam
    a, _ = returns.gae(reward, extra(rows, values), mask, gamma=gamma, lam=decay)
    return returns.whiten(a, mask) if whiten else a

  return advantage
