"""What the policy now is compared with, and the weight that corrects for who really sampled.

anchor(rows) -> float32 [N,T]: the log-probs in the denominator of the ratio.
correction(rows) -> float32 [N,T]: log of the weight that a token's loss is multiplied by; -inf drops it.

Neither has a gradient. `old` is the policy before the first update on the batch, recomputed by the learner;
`rows.full_logprobs` is what the sampler wrote when it drew the token.
"""

import jax.numpy as jnp

from rlvr_jax.core import masked, traits

MAX_LOG_RATIO = 20.0  # exp of it is finite, and far beyond any bound


def difference(a, b, mask):
  """float32 [N,T]: a - b, clamped; 0 outside the mask, whatever is there."""
  return jnp.clip(masked.select(a - b, mask), -MAX_LOG_RATIO, MAX_LOG_RATIO)


def sampled():
  """The policy that sampled the token, under the whole softmax at the row's temperature. With top-k or
  top-p the sampled law differs from it by the mass that was cut off; that factor is not in the ratio, so
  that the ratio is 1 on policy."""
  return lambda rows: rows.full_logprobs


def proximal():
  """The policy before the first update on this batch, as the learner computes it.

  Source: decoupled PPO; AReaL, arXiv 2505.24298.
  """
  return traits.declare(lambda rows: traits.logprobs_of(rows, "old"), needs=("old",))


def teacher_mixture(*, alpha: float = 0.5):
  """alpha log pi_sampled + (1 - alpha) log pi_teacher; a token whose teacher log-prob is NaN (the teacher
  has no score for it) takes alpha = 1.

  Args:
    alpha: in [0, 1]; 1 is `sampled`.

  Source: RLAD, arXiv 2602.22495.
  """
  if not 0 <= alpha <= 1:
    raise ValueError(f"alpha must lie in [0, 1], got {alpha}")

  def anchor(rows):
    own, teacher = rows.full_logprobs, traits.logprobs_of(rows, "teacher")
    d = jnp.clip(teacher - own, -1e6, 1e6)  # finite: 0 * inf is not 0
    return own + (1 - alpha) * jnp.where(jnp.isnan(teacher), 0.0, d)

  return traits.declare(anchor, needs=("teacher",))


# --------------------------------------------------------------------------------------------------
# Corrections


def each_token(d, mask):
  """The ratio of the token."""
  del mask
  return d


def product(d, mask):
  """The ratio of the whole row: exp of the SUM of the log ratios, on each of its tokens."""
  total = masked.total(d, mask, 1)
  return jnp.clip(total, -MAX_LOG_RATIO, MAX_LOG_RATIO)[:, None] + jnp.zeros_like(d)


def geometric_mean(d, mask):
  """exp of the mean of the row's log ratios, on each of its tokens."""
  return masked.mean(d, mask, 1)[:, None] + jnp.zeros_like(d)


traits.declare(product, reads="row")
traits.declare(geometric_mean, reads="row")


def truncate(log_weight, log_cap):
  """min(w, cap)."""
  return jnp.minimum(log_weight, log_cap)


def drop(log_weight, log_cap):
  """w, or 0 where it is above the cap."""
  return jnp.where(log_weight > log_cap, -jnp.inf, log_weight)


def correction(*, cap: float = 2.0, limit=truncate, level=each_token):
  """w = pi_old / pi_sampled, from the two policies that are fixed during the update; with `proximal` as the
  anchor the loss is that of decoupled PPO from three log-probs.

  Args:
    cap: positive; inf is none.
    limit: truncate or drop, what becomes of a weight above the cap. The denominator of the loss does
      not change.
    level: each_token, product or geometric_mean.

  Source: truncated importance sampling, as verl and AReaL (arXiv 2505.24298) have it.
  """
  if cap <= 0:
    raise ValueError(f"cap must be positive, got {cap}")

  def log_weight(rows):
    mask = rows.loss_mask
    d = difference(traits.logprobs_of(rows, "old"), rows.full_logprobs, mask)
    return limit(level(d, mask), jnp.log(cap))

  return traits.declare(log_weight, needs=("old",), reads=traits.trait(level, "reads", "token"))
