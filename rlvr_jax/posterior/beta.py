"""Beta beliefs: the solve rate of each prompt as a conjugate posterior of its verdicts."""

import flax.struct
import jax.numpy as jnp

from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts


class BetaState(flax.struct.PyTreeNode):
  successes: Array  # float32 [M], discounted
  failures: Array  # float32 [M], discounted


def beta(
  *, prior: float = 1.0, keep: float = 1.0, fade_own: float = 0.0, fade_all: float = 0.0
) -> BeliefModel:
  """Beta(prior + successes, prior + failures) for each prompt.

  Old verdicts fade, since the policy that produced them has moved on. Before the verdicts of a step are
  added, counts are multiplied by

      keep (1 - fade_own |d_i|) (1 - fade_all |mean d|)     a prompt that was rolled out in the step
      1 - fade_all |mean d|                                 any other

  where d_i is the share of right rollouts of prompt i less its mean belief before, and mean d the mean
  over the prompts of the step: how far one prompt, and the policy as a whole, has moved. The prior never
  fades.

  Args:
    prior: pseudo-counts of success and of failure; positive. 1 is the uniform prior.
    keep: in (0, 1].
    fade_own, fade_all: in [0, 1].

  Source: conjugacy of the Beta and the binomial distribution; decay at two scales: VADE, arXiv 2511.18902
  (the idea; the form is ours).
  """
  if prior <= 0:
    raise ValueError(f"prior must be positive, got {prior}")
  if not 0 < keep <= 1:
    raise ValueError(f"keep must lie in (0, 1], got {keep}")
  for name, fade in (("fade_own", fade_own), ("fade_all", fade_all)):
    if not 0 <= fade <= 1:
      raise ValueError(f"{name} must lie in [0, 1], got {fade}")

  def init(table):
    zeros = lambda: jnp.zeros(len(table.length), jnp.float32)
    return BetaState(zeros(), zeros())

  def update(state, tally):
    trials, successes = counts(tally)
    visited = trials > 0
    a, b = prior + state.successes, prior + state.failures
    moved = jnp.where(visited, successes / jnp.maximum(trials, 1e-6) - a / (a + b), 0.0)
    left = jnp.where(visited, keep * (1 - fade_own * jnp.abs(moved)), 1.0)
    left *= 1 - fade_all * jnp.abs(moved.sum() / jnp.maximum(visited.sum(), 1))
    return BetaState(
      left * state.successes + successes, left * state.failures + (trials - successes)
    )

  def belief(state, prompt_id):
    a, b = prior + state.successes[prompt_id], prior + state.failures[prompt_id]
    n = a + b
    return Belief(mean=a / n, variance=a * b / (n * n * (n + 1)), evidence=n)

  return BeliefModel(init, update, belief)
