"""One wave, row by row to the prompt that gains most by one more.

gain(prompts, knobs, rows) -> float32 [B,K]: the LOG of what a prompt of rows [B,K] gains by one more; it
must not rise with the rows. Logs, since gains that saturate run out of digits; -inf, or not a number, is
no gain.
"""

import jax.numpy as jnp
from jax.scipy.special import betaln

from rlvr_jax.allocate.bounds import one_wave
from rlvr_jax.core import apportion
from rlvr_jax.core.beta_laws import as_beta
from rlvr_jax.core.types import Allocator


def saturating(*, tau: float = 4.0):
  """Value 1 - exp(-n k) of n rows, k = p (1 - p) / tau at the believed solve rate p.

  Args:
    tau: positive; the larger, the later rows stop to pay.

  Source: the saturation factor of CoBA-RL, arXiv 2602.03048.
  """
  if tau <= 0:
    raise ValueError(f"tau must be positive, got {tau}")

  def gain(prompts, knobs, rows):
    del knobs
    p = jnp.clip(prompts.belief.mean, 0.0, 1.0)
    k = (p * (1 - p) / tau)[:, None]
    # log(exp(-n k) - exp(-(n + 1) k)); the difference itself would be 0 in float32 long before.
    return -k * rows + jnp.log(-jnp.expm1(-k))

  return gain


def contrast():
  """The chance that the rows so far are alike and one more differs: E p^n (1 - p) + E (1 - p)^n p.

  Summed over the rows of a group it is the chance that the group is mixed. The law of p is the Beta law
  with the mean and variance of the belief.
  """

  def gain(prompts, knobs, rows):
    del knobs
    a, b = as_beta(prompts.belief)
    # Of a law that counts for more rollouts, differences of log Beta functions are rounding in float32.
    most = jnp.minimum(1.0, 1e3 / (a + b))
    a, b = (a * most)[:, None], (b * most)[:, None]
    # E p^n (1 - p) = B(a + n, b + 1) / B(a, b)
    right = betaln(a + rows, b + 1) - betaln(a, b)
    wrong = betaln(a + 1, b + rows) - betaln(a, b)
    return jnp.logaddexp(right, wrong)

  return gain


_SATURATING = saturating()


def marginal(*, gain=_SATURATING, low: int = 2, high: int = 0) -> Allocator:
  """The split of largest value, since each row brings less than the one before.

  The counts sum to the width whenever there is a valid prompt and the maxima allow it: rows that gain
  nothing are dealt evenly.

  Args:
    gain: see above.
    low, high: least and most rows of a prompt; high 0: no bound.
  """

  def split(prompts, width, knobs, least, most):
    gains = gain(prompts, knobs, _rows(least, width, low, high))
    return apportion.greedy(gains, width, low=least, high=most)

  return one_wave(split, low, high)


def priced(*, gain=_SATURATING, low: int = 2, high: int = 0, fill: float = 1.0) -> Allocator:
  """Rows by gain for each expected TOKEN, until the tokens are spent that an even split of a share of the
  rows would take.

  A row costs belief.tokens; without a prediction all cost the same. The width caps the number of rows, and
  rows that gain nothing are not drawn, so fewer tokens than that may be spent; more only by the minima.

  Args:
    gain, low, high: of `marginal`.
    fill: that share, in (0, 1]. At 1 prompts of short rollouts can get no more rows than others leave.
  """
  if not 0 < fill <= 1:
    raise ValueError(f"fill must lie in (0, 1], got {fill}")

  def split(prompts, width, knobs, least, most):
    tokens = prompts.belief.tokens
    cost = jnp.ones_like(prompts.belief.mean) if tokens is None else tokens
    known = prompts.valid & jnp.isfinite(cost) & (cost > 0)
    mean = jnp.where(known, cost, 0.0).sum() / jnp.maximum(known.sum(), 1)
    cost = jnp.where(known, cost, jnp.where(mean > 0, mean, 1.0))
    budget = (
      fill * width * jnp.where(mean > 0, mean, 1.0) * (1 + 1e-5)
    )  # rounding must not cost a row
    gains = gain(prompts, knobs, _rows(least, width, low, high))
    gains = jnp.where(jnp.isnan(gains), -jnp.inf, gains)
    top = jnp.max(jnp.where(prompts.valid[:, None], gains, -jnp.inf))
    gains = jnp.exp(gains - jnp.where(jnp.isfinite(top), top, 0.0))
    counts, _ = apportion.priced(gains, cost, budget, width, low=least, high=most)
    return counts

  return one_wave(split, low, high)


def _rows(least, width: int, low: int, high: int):
  """float32 [B,K]: rows that a prompt has before each further one."""
  more = jnp.arange(max((high or width) - low, 1), dtype=jnp.float32)
  return least.astype(jnp.float32)[:, None] + more[None]
