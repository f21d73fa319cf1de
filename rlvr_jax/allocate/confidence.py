"""Waves that go where one more row narrows the confidence interval of the solve rate most."""

import jax
import jax.numpy as jnp
from scipy import special

from rlvr_jax.core import apportion, groups
from rlvr_jax.core.types import Allocator


def confidence(
  *, start: int = 4, phases: int = 2, level: float = 0.95, explore: float = 0.1
) -> Allocator:
  """`start` rows for each prompt, then the rest of the budget in equal waves, one row after the other to
  the largest

      h(n) - h(n + 1) + explore sqrt(log(1 + T) / n),   h(n) = t s / sqrt(n)

  where s is the sample standard deviation of the prompt's verdicts (as of the beginning of the wave), t
  Student's quantile for n - 1 degrees of freedom, n the prompt's rows, T those of all prompts. Below two
  rows the interval is infinite. Ties go to the lower index. The counts sum to each width whenever there
  is a valid prompt.

  Args:
    start: rows that every prompt gets; at least 1.
    phases: later waves; at least 1, and at least one row each.
    level: of the two-sided interval, in (0, 1).
    explore: positive; the larger, the more even.

  Source: XRPO, arXiv 2510.06672.
  """
  if start < 1 or phases < 1:
    raise ValueError(f"start and phases must be at least 1, got {start} and {phases}")
  if not 0 < level < 1:
    raise ValueError(f"level must lie in (0, 1), got {level}")
  if explore <= 0:
    raise ValueError(f"explore must be positive, got {explore}")

  def plan(num_prompts, budget):
    if budget < start * num_prompts:
      raise ValueError(
        f"a budget of {budget} rows is less than start={start} for each of {num_prompts} prompts"
      )
    rest = budget - start * num_prompts
    waves = [rest // phases + (i < rest % phases) for i in range(phases)]
    return (start * num_prompts, *(w for w in waves if w))

  def next_(state, round, width, knobs):
    del knobs
    rows, prompts = round.rows, round.prompts
    num = len(prompts.id)
    tried = groups.count(rows.group, rows.valid, num)
    # A prompt that is not there has nothing, neither rows nor verdicts.
    spread = groups.std(rows.correct, rows.group, rows.valid, num, ddof=1)
    quantile = _quantiles(len(rows.valid) + width + 2, level)
    more = hand_out(tried, spread, width, prompts.valid, quantile, explore)
    first = apportion.even(prompts.valid, width)
    return jnp.where(round.wave == 0, first, more), state

  return Allocator(plan=plan, init=lambda prompts, knobs: (), next=next_)


def _quantiles(num: int, level: float):
  """float32 [num]: Student's quantile of the interval of n rows; for n < 2 there is none."""
  return jnp.asarray(
    [0.0, 0.0] + [float(special.stdtrit(n - 1, 0.5 + level / 2)) for n in range(2, num)],
    jnp.float32,
  )


def halfwidth(rows, spread, quantile):
  """float32 [B]: half of the interval of `rows` verdicts; infinite below two."""
  n = rows.astype(jnp.int32)
  h = quantile[n] * spread / jnp.sqrt(jnp.maximum(rows, 1.0))
  return jnp.where(n < 2, jnp.inf, h)


def hand_out(rows, spread, budget: int, valid, quantile, explore: float):
  """int32 [B]: who gets the `budget` rows on top of `rows` float32 [B], one after the other."""
  spread = jnp.where(jnp.isfinite(spread), spread, 0.0)
  start = jnp.where(valid, rows, 0.0)

  def body(_, n):
    drop = jnp.where(
      n < 2, jnp.inf, halfwidth(n, spread, quantile) - halfwidth(n + 1, spread, quantile)
    )
    bonus = explore * jnp.sqrt(jnp.log1p(n.sum()) / jnp.maximum(n, 1.0))
    best = jnp.where(valid, drop + bonus, -jnp.inf).argmax()
    return n.at[best].add(jnp.where(valid.any(), 1.0, 0.0))

  return (jax.lax.fori_loop(0, budget, body, start) - start).astype(jnp.int32)
