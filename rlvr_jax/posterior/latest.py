"""What the latest visit said, and nothing older."""

import flax.struct
import jax.numpy as jnp

from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts


class LatestState(flax.struct.PyTreeNode):
  trials: Array  # float32 [M], of the latest visit; 0: there was none
  successes: Array  # float32 [M]


def latest() -> BeliefModel:
  """The share of right rows at the prompt's latest visit; 1/2 before the first, with no evidence."""

  def init(table):
    zeros = lambda: jnp.zeros(len(table.length), jnp.float32)
    return LatestState(zeros(), zeros())

  def update(state, tally):
    trials, successes = counts(tally)
    visited = trials > 0
    return LatestState(
      jnp.where(visited, trials, state.trials), jnp.where(visited, successes, state.successes)
    )

  def belief(state, prompt_id):
    n, s = state.trials[prompt_id], state.successes[prompt_id]
    mean = jnp.where(n > 0, s / jnp.maximum(n, 1e-6), 0.5)
    return Belief(mean=mean, variance=mean * (1 - mean) / (n + 1), evidence=n)

  return BeliefModel(init, update, belief)
