"""How much of the batch failed lately."""

import flax.struct
import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.core import groups
from rlvr_jax.core.types import Array, Controller


class FailureState(flax.struct.PyTreeNode):
  rates: Array  # float32 [window - 1], a ring
  steps: Array  # int32 []


def expected_failure(*, base: Controller | None = None, window: int = 10) -> Controller:
  """Knobs "failure_sum" and "failure_steps" []: believed failure rates of the last window - 1 steps.

  The rate of a step is the mean over its prompts of 1 - prior; the current step, which allocators know
  themselves, makes up the window.

  Args:
    base: a controller whose knobs are there too.
    window: at least 1.

  Source: CoBA-RL, arXiv 2602.03048.
  """
  if window < 1:
    raise ValueError(f"window must be at least 1, got {window}")
  kept = max(window - 1, 1)

  def init(table):
    del table
    return FailureState(jnp.zeros(kept, jnp.float32), jnp.zeros((), jnp.int32))

  def update(state, feedback):
    rows = feedback.rows
    there = groups.count(rows.group, rows.valid) > 0
    prior = groups.mean(rows.prior, rows.group, rows.valid)
    rate = jnp.where(there, 1 - prior, 0.0).sum() / jnp.maximum(there.sum(), 1)
    seen = there.any() & jnp.isfinite(rate)
    ring = state.rates.at[state.steps % kept].set(jnp.where(seen, rate, 0.0))
    return FailureState(jnp.where(seen, ring, state.rates), state.steps + seen.astype(jnp.int32))

  def value(state):
    steps = jnp.minimum(state.steps, window - 1)
    return {
      "failure_sum": jnp.where(steps > 0, state.rates.sum(), 0.0),
      "failure_steps": steps.astype(jnp.float32),
    }

  return joined(base, Controller(init, value, update))
