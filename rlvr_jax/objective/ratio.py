"""Losses from the ratio of the policy now to the policy that sampled.

loss(stats, rows, advantage, knobs) -> (float32 [N,T], metrics), where a row's loss depends on that row
alone. Everything outside `rows.loss_mask` may hold anything; it is masked before it is used.
"""

import jax.numpy as jnp

from rlvr_jax.core import masked
from rlvr_jax.core.types import Objective

MAX_LOG_RATIO = 20.0  # exp of it is finite, and far beyond any clip


def log_ratio(stats, rows):
  """float32 [N,T]: log of policy now / policy at sampling, both under the whole softmax at the row's
  temperature. With top-k or top-p the sampled law differs from it by the mass that was cut off; that
  factor is not in the ratio, so the ratio is 1 on policy. 0 outside the mask.
  """
  d = masked.select(stats.logprobs - rows.full_logprobs, rows.loss_mask)
  return jnp.clip(d, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped(*, low: float = 0.2, high: float = 0.2) -> Objective:
  """PPO's clipped surrogate on each token.

      rho = pi / pi_old,    loss = max(-A rho, -A clip(rho, 1 - low, 1 + high))

  The gradient is 0 where the ratio has already left the interval in the direction A asks for.

  Args:
    low: in [0, 1].
    high: at least 0; more than `low` is DAPO's clip-higher.

  Source: PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476.
  """
  if not 0 <= low <= 1:
    raise ValueError(f"low must lie in [0, 1], got {low}")
  if high < 0:
    raise ValueError(f"high must be at least 0, got {high}")

  def loss(stats, rows, advantage, knobs):
    del knobs
    mask = rows.loss_mask
    d = log_ratio(stats, rows)
    ratio = jnp.exp(d)
    a = masked.select(advantage, mask)
    free, held = -a * ratio, -a * jnp.clip(ratio, 1 - low, 1 + high)
    # Not jnp.maximum: on a bound, where both are equal, it would mix in the gradient of the clip.
    per_token = jnp.where(held > free, held, free)
    metrics = {
      "policy/clip_frac_high": masked.mean((a > 0) & (ratio > 1 + high), mask),
      "policy/clip_frac_low": masked.mean((a < 0) & (ratio < 1 - low), mask),
      "policy/kl_old": masked.mean(ratio - 1 - d, mask),  # k3, of KL(sampled, now)
      "policy/ratio_max": masked.highest(ratio, mask),
    }
    return per_token, metrics

  return Objective(loss, needs_advantage=True)
