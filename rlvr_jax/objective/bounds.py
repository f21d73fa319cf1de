"""The interval of a ratio: bounds(log_weight, advantage, rows) -> (low, high), numbers or float32 [N,T].

They bound the ratio itself, 1 on policy, and carry no gradient. Wide ones ("relaxed", as in Mu-GRPO) are
`clip` with large numbers.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits


def clip(*, low: float = 0.2, high: float = 0.2):
  """[1 - low, 1 + high]; high above low is clip-higher.

  Args:
    low: in [0, 1]; 1 is no lower bound.
    high: at least 0.

  Source: PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476.
  """
  _check(low, high)
  return lambda log_weight, advantage, rows: (1 - low, 1 + high)


def log_clip(*, low: float = 0.4, high: float = 0.4):
  """[exp(-low), exp(high)].

  Source: GMPO, arXiv 2507.20673.
  """
  if low < 0 or high < 0:
    raise ValueError(f"low and high must be at least 0, got {low} and {high}")
  return lambda log_weight, advantage, rows: (jnp.exp(-low), jnp.exp(high))


def exponential(excess):
  """Contraction exp(-e)."""
  return jnp.exp(-excess)


def gaussian(excess):
  """Contraction exp(-e^2)."""
  return jnp.exp(-excess * excess)


def rational(excess):
  """Contraction 1 / (1 + e)."""
  return 1 / (1 + excess)


def sat(
  *, low: float = 0.2, high: float = 0.28, quantile: float = 0.95, kernel=exponential,
  floor: float = 0.1,
):  # fmt: skip
  """The bound that limits a move outwards comes closer to 1 for the most stale tokens of the batch.

      d = log weight now,   Q = quantile of |d| over the trained tokens of the batch
      kappa = 1 if |d| <= Q else max(kernel(|d| / Q - 1), floor);   Q = 0: 1
      A > 0: [1 - low, 1 + kappa high],   A < 0: [1 - kappa low, 1 + high],   A = 0: neither moves

  Q is taken once, before the first update on the batch, from the log-probs of the policy then ("old");
  with a scope of whole rows each row counts once. Q lies in rows.extras["staleness"], [N].

  Args:
    low, high: of `clip`.
    quantile: in [0, 1], interpolated linearly; 1 is `clip`.
    kernel: exponential, gaussian or rational: kappa from the excess |d| / Q - 1.
    floor: of kappa, in [0, 1]; 1 is `clip`.

  Source: SAT, arXiv 2607.18722.
  """
  _check(low, high)
  if not 0 <= quantile <= 1 or not 0 <= floor <= 1:
    raise ValueError(f"quantile and floor must lie in [0, 1], got {quantile} and {floor}")

  def bounds(log_weight, advantage, rows):
    if "staleness" not in rows.extras:
      raise ValueError("the rows hold no 'staleness': call Objective.survey on the batch first")
    limit = rows.extras["staleness"][:, None]
    d = jnp.abs(log_weight)
    excess = jnp.where(limit > 0, d / jnp.where(limit > 0, limit, 1.0) - 1, 0.0)
    kappa = jnp.where(excess > 0, jnp.maximum(kernel(jnp.maximum(excess, 0.0)), floor), 1.0)
    kappa = jax.lax.stop_gradient(kappa)
    top = 1 + jnp.where(advantage > 0, kappa, 1.0) * high
    bottom = 1 - jnp.where(advantage < 0, kappa, 1.0) * low
    return bottom, top

  def survey(log_weight, mask, rows):
    limit = _quantile(jnp.abs(log_weight), mask, quantile)
    staleness = jnp.full(rows.valid.shape, limit, jnp.float32)
    return rows.replace(extras=rows.extras | {"staleness": staleness})

  return traits.declare(bounds, needs=("old",), survey=survey)


def _quantile(x, mask, q):
  """The q-quantile of x over mask, between neighbours linearly; 0 if the mask is empty."""
  ordered = jnp.sort(jnp.where(mask, x, jnp.inf).reshape(-1))
  last = jnp.maximum(mask.sum() - 1, 0)
  at = q * last.astype(jnp.float32)
  below = jnp.floor(at).astype(jnp.int32)
  a, b = ordered[below], ordered[jnp.minimum(below + 1, last)]
  return masked.select(a + (b - a) * (at - below), mask.any())


def _check(low, high):
  if not 0 <= low <= 1:
    raise ValueError(f"low must lie in [0, 1], got {low}")
  if high < 0:
    raise ValueError(f"high must be at least 0, got {high}")
