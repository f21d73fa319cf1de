"""Allocators of one wave, with the least and the most rows of a prompt."""

import jax.numpy as jnp

from rlvr_jax.core.types import Allocator


def check_bounds(low: int, high: int):
  """Raises ValueError unless 0 <= low <= high, where a high of 0 is no bound."""
  if low < 0 or (high and high < low) or high < 0:
    raise ValueError(f"need 0 <= low <= high (or high = 0: no bound), got {low} and {high}")


def width_of(num_prompts: int, budget: int, low: int, high: int) -> int:
  """Rows that one wave can spend of the budget: what the maxima do not take is left over.

  Raises:
    ValueError: if the budget is less than the minima.
  """
  if budget < low * num_prompts:
    raise ValueError(
      f"a budget of {budget} rows is less than {low} for each of {num_prompts} prompts"
    )
  return min(budget, high * num_prompts) if high else budget


def rows_of(prompts, width: int, low: int, high: int):
  """(least, most) rows int32 [B]: 0 for a prompt that is not valid."""
  most = high or width
  return jnp.where(prompts.valid, low, 0), jnp.where(prompts.valid, most, 0)


def one_wave(split, low: int, high: int) -> Allocator:
  """split(prompts, width static, knobs, low [B], high [B]) -> counts int32 [B], as an Allocator.

  Args:
    low, high: least and most rows of a prompt that is valid; high 0: no bound.
  """
  check_bounds(low, high)

  def next_(state, round, width, knobs):
    least, most = rows_of(round.prompts, width, low, high)
    return split(round.prompts, width, knobs, least, most), state

  return Allocator(
    plan=lambda num_prompts, budget: (width_of(num_prompts, budget, low, high),),
    init=lambda prompts, knobs: (),
    next=next_,
  )
