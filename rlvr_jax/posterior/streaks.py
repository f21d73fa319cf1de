"""Streaks: how often in a row a prompt's rollouts were all right, or all wrong."""

import flax.struct
import jax.numpy as jnp

from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts


class StreakState(flax.struct.PyTreeNode):
  streak: Array  # int32 [M], visits in a row that were all right (positive) or all wrong (negative)


def streaks(*, right: float = 1.0, wrong: float = 0.0) -> BeliefModel:
  """The run of equal visits that each prompt is in; a mixed visit ends it, the other kind turns it round.

  As a belief about the solve rate, a streak of z visits is z successes, or failures, by Laplace's rule:
  Beta(1 + z, 1) or Beta(1, 1 + z).

  Args:
    right: a visit is all right from this share of successes on.
    wrong: a visit is all wrong up to this share.

  Source: GRESO, arXiv 2506.02177; reading a belief from it is ours.
  """
  if not 0 <= wrong < right <= 1:
    raise ValueError(f"0 <= wrong < right <= 1 must hold, got wrong={wrong} and right={right}")

  def init(table):
    return StreakState(jnp.zeros(len(table.length), jnp.int32))

  def update(state, tally):
    trials, successes = counts(tally)
    share = successes / jnp.maximum(trials, 1e-6)
    kind = (share >= right).astype(jnp.int32) - (share <= wrong)
    longer = jnp.where(state.streak * kind > 0, state.streak + kind, kind)
    return StreakState(jnp.where(trials > 0, longer, state.streak))

  def belief(state, prompt_id):
    z = state.streak[prompt_id].astype(jnp.float32)
    a, n = 1 + jnp.maximum(z, 0.0), 2 + jnp.abs(z)
    return Belief(mean=a / n, variance=a * (n - a) / (n * n * (n + 1)), evidence=n)

  return BeliefModel(init, update, belief)
