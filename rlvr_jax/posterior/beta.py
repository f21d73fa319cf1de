"""Beta beliefs: the solve rate of each prompt as a conjugate posterior of its verdicts."""

import flax.struct
import jax.numpy as jnp

from rlvr_jax.core.types import Array, Belief, BeliefModel


class BetaState(flax.struct.PyTreeNode):
  successes: Array  # float32 [M], discounted
  failures: Array  # float32 [M], discounted


def beta(*, prior: float = 1.0, keep: float = 1.0) -> BeliefModel:
  """Beta(prior + successes, prior + failures) for each prompt.

  With keep < 1 old verdicts fade: a prompt's counts are multiplied by `keep` each time it is rolled out,
  since the policy that produced them has moved on.

  Args:
    prior: pseudo-counts of success and of failure; positive. 1 is the uniform prior.
    keep: in (0, 1].

  Source: conjugacy of the Beta and the binomial distribution.
  """
  if prior <= 0:
    raise ValueError(f"prior must be positive, got {prior}")
  if not 0 < keep <= 1:
    raise ValueError(f"keep must lie in (0, 1], got {keep}")

  def init(table):
    num_prompts = len(table.length)
    return BetaState(jnp.zeros(num_prompts, jnp.float32), jnp.zeros(num_prompts, jnp.float32))

  def update(state, tally):
    fade = jnp.where(tally.trials > 0, keep, 1.0)
    failures = tally.trials - tally.successes
    return BetaState(fade * state.successes + tally.successes, fade * state.failures + failures)

  def belief(state, prompt_id):
    a, b = prior + state.successes[prompt_id], prior + state.failures[prompt_id]
    n = a + b
    return Belief(mean=a / n, variance=a * b / (n * n * (n + 1)), evidence=n)

  return BeliefModel(init, update, belief)
