"""Several waves: what a later one draws depends on what the earlier ones brought.

Every prompt gets `start` rows first. Widths are static: what a wave does not need is not generated, and the
counts sum to less than its width. Waves read verdicts (`correct`), of which more than 1/2 is right.
"""

import math

import jax.numpy as jnp

from rlvr_jax.core import apportion, groups
from rlvr_jax.core.types import Allocator


def tries(round):
  """(rows so far, right ones among them) of each prompt of the round, float32 [B] each."""
  rows, num = round.rows, len(round.prompts.id)
  right = rows.valid & (rows.correct > 0.5)
  return groups.count(rows.group, rows.valid, num), groups.count(rows.group, right, num)


def unsolved(round, knobs):
  """bool [B]: prompts without a right row so far."""
  del knobs
  return tries(round)[1] == 0


def staged(*, more=unsolved, start: int = 4, chunk: int = 4) -> Allocator:
  """`start` rows for each prompt, then waves of `chunk` rows for those that `more` names, to the budget.

  Args:
    more: (round, knobs) -> bool [B].
    start: rows that every prompt gets; at least 1.
    chunk: rows of a prompt in each later wave; at least 1.

  Source: stages without the solved prompts, AR3PO, arXiv 2509.25808; AERO's rescue, arXiv 2602.14338.
  """
  if start < 1 or chunk < 1:
    raise ValueError(f"start and chunk must be at least 1, got {start} and {chunk}")

  def plan(num_prompts, budget):
    _check(start, num_prompts, budget)
    waves = (budget - start * num_prompts) // (chunk * num_prompts)
    return (start * num_prompts,) + (chunk * num_prompts,) * waves

  def next_(state, round, width, knobs):
    del width
    counts = jnp.where(round.wave == 0, start, jnp.where(more(round, knobs), chunk, 0))
    return jnp.where(round.prompts.valid, counts, 0).astype(jnp.int32), state

  return Allocator(plan=plan, init=lambda prompts, knobs: (), next=next_)


def topped_up(*, wants, start: int) -> Allocator:
  """`start` rows for each prompt, then one wave with the rest of the budget, for what prompts still want.

  Where they want more than there is, they get a part in proportion. A budget without a rest is one wave.

  Args:
    wants: (round, width, knobs) -> rows int32 [B].
    start: rows that every prompt gets; at least 1.
  """
  if start < 1:
    raise ValueError(f"start must be at least 1, got {start}")

  def plan(num_prompts, budget):
    _check(start, num_prompts, budget)
    rest = budget - start * num_prompts
    return (start * num_prompts, rest) if rest else (budget,)

  def next_(state, round, width, knobs):
    extra = jnp.maximum(wants(round, width, knobs), 0)
    counts = jnp.where(round.prompts.valid, jnp.where(round.wave == 0, start, extra), 0)
    # Nobody gets more than it wants; a wave that holds it all gives just that.
    return apportion.largest_remainder(counts, width, high=counts), state

  return Allocator(plan=plan, init=lambda prompts, knobs: (), next=next_)


def pilot_commit(
  *, pilot: int = 4, commit: int = 0, low: float = 0.125, high: float = 0.75, widest: bool = False
) -> Allocator:
  """`pilot` rows for each prompt; the rest of the budget only for prompts of middling accuracy.

  Args:
    pilot: rows that every prompt gets.
    commit: rows that a prompt gets on top, for as many prompts as the rest of the budget holds; 0: all of
      middling accuracy share the rest evenly.
    low, high: a prompt is committed to if the accuracy of its pilots lies between them, ends included.
    widest: which prompts go first: those of accuracy nearest to 1/2; False: any, by the seeds of their rows.

  Source: Pilot-Commit, arXiv 2605.26606.
  """
  if commit < 0:
    raise ValueError(f"commit must be at least 0, got {commit}")
  if not 0 <= low <= high <= 1:
    raise ValueError(f"need 0 <= low <= high <= 1, got {low} and {high}")

  def wants(round, width, knobs):
    del knobs
    rows, num = round.rows, len(round.prompts.id)
    tried, right = tries(round)
    # Counts are whole and the ends are in: float32 must not cut 3/4 off.
    fine = (right >= low * tried - 1e-4) & (right <= high * tried + 1e-4) & (tried > 0)
    if not commit:
      return apportion.even(fine, width)
    seed = groups.highest(rows.uid[:, 1].astype(jnp.float32), rows.group, rows.valid, num)
    order = jnp.abs(right - tried / 2) if widest else seed
    place = jnp.argsort(jnp.lexsort((order, ~fine)))
    return jnp.where(fine & (place < width // commit), commit, 0)

  staged_ = topped_up(wants=wants, start=pilot)

  def plan(num_prompts, budget):
    waves = staged_.plan(num_prompts, budget)
    least = pilot * num_prompts + max(commit, 1)
    if budget < least:
      raise ValueError(
        f"a budget of {budget} rows leaves nothing to commit after {pilot} pilots for each of {num_prompts} "
        f"prompts: raise budget to at least {least}, or lower recipe_args.pilot"
      )
    return waves

  return staged_._replace(plan=plan)


def equal_treatment(right, start: int, spread) -> float:
  """What the summed |advantage| of a prompt should reach: that of a prompt solved half the time."""
  del right
  return start * spread(0.5)


def hardness_weighted(right, start: int, spread) -> float:
  """The same times 2 (1 - p): twice as much for a hopeless prompt."""
  return 2 * (1 - right / start) * start * spread(0.5)


def dars(
  *, start: int = 4, most: int = 32, target=equal_treatment, scaled: bool = False
) -> Allocator:
  """`start` rows for each prompt, then as many more for hard ones as their summed |advantage| lacks.

      n S(p) >= target,   S = 2 p (1 - p), or 2 sqrt(p (1 - p)) if scaled;  p = right / start, below 1/2

  Without a right row p counts as 1 / (2 start).

  Args:
    start: rows that every prompt gets.
    most: rows of a prompt in all; at least `start`.
    target: equal_treatment or hardness_weighted.
    scaled: whether advantages are divided by the group's standard deviation.

  Source: DARS, arXiv 2508.13755.
  """
  if start < 1 or most < start:
    raise ValueError(f"need 1 <= start <= most, got {start} and {most}")
  extra = jnp.asarray(
    [dars_extra(k, start, most, target=target, scaled=scaled) for k in range(start + 1)], jnp.int32
  )

  def wants(round, width, knobs):
    del width, knobs
    return extra[jnp.clip(tries(round)[1], 0, start).astype(jnp.int32)]

  return topped_up(wants=wants, start=start)


def dars_extra(right: int, start: int, most: int, *, target, scaled: bool) -> int:
  """Rows that a prompt with `right` of `start` rows right gets on top, on the host and in float64."""
  spread = lambda p: 2 * math.sqrt(p * (1 - p)) if scaled else 2 * p * (1 - p)
  if 2 * right >= start:
    return 0
  mass = spread((right or 0.5) / start)
  # Often a whole number: rounding must not buy one row more.
  lacking = (target(right or 0.5, start, spread) - start * mass) / mass
  return min(math.ceil(lacking - 1e-9), most - start)


def _check(start: int, num_prompts: int, budget: int):
  if budget < start * num_prompts:
    raise ValueError(
      f"a budget of {budget} rows is less than start={start} for each of {num_prompts} prompts"
    )
