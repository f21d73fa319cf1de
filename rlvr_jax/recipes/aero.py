"""AERO: few rollouts at first, more only for prompts without a success; surplus failures are not trained.

A prompt gets rollouts `extra` at a time, to the budget, until one is right. Of a group with more wrong than
right ones all right ones are trained and as many wrong ones. Of groups of equal verdicts a few rows are
trained, against the posterior mean u = (right + 1) / (rollouts + 2) of their solve rate:
(r - u) / sqrt(u (1 - u)); this is our reading, since what could be read of the paper contradicts itself. Ours
too: the wrong rows that stay are drawn at random.
"""

import jax.numpy as jnp

from rlvr_jax.advantage import group
from rlvr_jax.allocate import staged
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import choose
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Train Less, Learn More: Adaptive Efficient Rollout Optimization for Group-Based Reinforcement Learning",
  "arXiv 2602.14338",
)
STAGES = ("filter", "control", "optimise")
CHANGES = ("allocate", "choose", "advantage", "aggregate")
EVIDENCE = "notes"


def aero(
  *,
  explore: int = 8,
  extra: int = 2,
  ratio: float = 1.0,
  below: float = 0.5,
  uniform: int = 4,
  prior: float = 1.0,
  **options,
) -> Recipe:
  """Explore, rescue, prune, smooth.

  Args:
    explore: rollouts that every prompt gets.
    extra: rollouts at a time after that, for prompts without a success.
    ratio, below, uniform: of keep.choose.balanced; uniform 0 leaves groups of equal verdicts out.
    prior: pseudo-counts of success and failure in u; positive.
    **options: of `grpo`.
  """
  if prior <= 0:
    raise ValueError(f"prior must be positive, got {prior}")
  base = grpo(**options)

  def advantage(rows):
    reward, _, ok = group.scored(rows)
    equal = (rows.successes == 0) | (rows.successes == rows.trials)
    u = (rows.successes + prior) / (rows.trials + 2 * prior)
    smooth = (reward - u) / jnp.sqrt(u * (1 - u))
    smooth = group.spread(jnp.where(ok, smooth, 0.0), rows)
    return jnp.where(equal[:, None], smooth, base.advantage(rows))

  return base._replace(
    allocate=staged.staged(start=explore, chunk=extra),
    choose=choose.balanced(ratio=ratio, below=below, uniform=uniform),
    advantage=advantage,
    aggregate=aggregate.sequence_mean_token_mean(),
  )
