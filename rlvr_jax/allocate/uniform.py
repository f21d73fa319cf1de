"""The same number of rollouts for every prompt."""

import jax.numpy as jnp

from rlvr_jax.core.types import Allocator


def uniform() -> Allocator:
  """One wave. Valid prompts share the budget evenly; the first of them get what is left over.

  The counts sum to the budget whenever there is a valid prompt.
  """

  def next_(state, round, width, knobs):
    del knobs
    valid = round.prompts.valid
    num = jnp.maximum(valid.sum(), 1)
    place = jnp.cumsum(valid) - 1
    counts = width // num + (place < width % num)
    return jnp.where(valid, counts, 0).astype(jnp.int32), state

  return Allocator(
    plan=lambda num_prompts, budget: (budget,), init=lambda prompts, knobs: (), next=next_
  )
