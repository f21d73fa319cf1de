"""Are beliefs right? Predicted solve rates against the verdicts that followed.

Sums that are taken on the device and add up over rounds, steps and processes; `summary` and `curve` read
them on the host.
"""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.types import Array


class Calibration(flax.struct.PyTreeNode):
  """Sums over rollouts, by bins of equal width of the predicted rate. They may be added leaf by leaf."""

  count: Array  # float32 [bins]
  predicted: Array  # float32 [bins]
  realised: Array  # float32 [bins], verdicts
  squared: Array  # float32 [], squared distance of prediction and verdict
  surprise: Array  # float32 [], -log of the probability given to the verdict, in nats


def measure(predicted: Array, verdict: Array, valid: Array, *, bins: int = 10) -> Calibration:
  """The sums over some rollouts.

  Args:
    predicted: float32 [N] in [0, 1], believed before the verdicts (rows.prior). Where it is NaN nothing
      was predicted, and the rollout is left out.
    verdict: float32 [N] in [0, 1] (rows.correct).
    valid: bool [N].
    bins: of the reliability curve.
  """
  valid = valid & ~jnp.isnan(predicted) & ~jnp.isnan(verdict)
  p, y = jnp.where(valid, predicted, 0.5), jnp.where(valid, verdict, 0.5)
  place = jnp.clip((p * bins).astype(jnp.int32), 0, bins - 1)
  total = lambda x: jax.ops.segment_sum(jnp.where(valid, x, 0.0), place, bins)
  # No belief is so sure that one rollout makes the mean infinite.
  q = jnp.clip(p, 1e-4, 1 - 1e-4)
  surprise = -(y * jnp.log(q) + (1 - y) * jnp.log1p(-q))
  return Calibration(
    count=total(jnp.ones_like(p)),
    predicted=total(p),
    realised=total(y),
    squared=jnp.where(valid, jnp.square(p - y), 0.0).sum(),
    surprise=jnp.where(valid, surprise, 0.0).sum(),
  )


def summary(sums: Calibration) -> dict[str, float]:
  """Host numbers, lower is better; empty if nothing was predicted.

  brier: mean squared distance of prediction and verdict. log_loss: mean surprise, in nats. ece: expected
  calibration error, the mean over rollouts of |predicted - realised| of their bin.
  """
  n = np.asarray(sums.count, np.float64)
  if not n.sum():
    return {}
  gap = np.abs(np.asarray(sums.predicted, np.float64) - np.asarray(sums.realised, np.float64))
  return {
    "posterior/brier": float(sums.squared) / n.sum(),
    "posterior/log_loss": float(sums.surprise) / n.sum(),
    "posterior/ece": gap.sum() / n.sum(),
  }


def curve(sums: Calibration) -> dict[str, np.ndarray]:
  """The reliability curve: predicted and realised rate, float64, and the rollouts of each bin in use."""
  n = np.asarray(sums.count, np.float64)
  used = n > 0
  rate = lambda x: np.asarray(x, np.float64)[used] / n[used]
  return {"predicted": rate(sums.predicted), "realised": rate(sums.realised), "count": n[used]}
