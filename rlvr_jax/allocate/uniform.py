"""The same number of rollouts for every prompt."""

from rlvr_jax.core import apportion
from rlvr_jax.core.types import Allocator


def uniform() -> Allocator:
  """One wave. Valid prompts share the budget evenly; the first of them get what is left over.

  The counts sum to the budget whenever there is a valid prompt.
  """

  def next_(state, round, width, knobs):
    del knobs
    return apportion.even(round.prompts.valid, width), state

  return Allocator(
    plan=lambda num_prompts, budget: (budget,), init=lambda prompts, knobs: (), next=next_
  )
