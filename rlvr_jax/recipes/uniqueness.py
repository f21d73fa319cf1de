"""Uniqueness-aware RL: a rollout's advantage is divided by how many of its group took the same strategy.

All signed advantages are divided, so that a rare failure weighs more than a common one; `correct_only` is the
narrower reading of the abstract. Which strategy a rollout took comes from a reward function of weight 0: the
paper asks a large model, "rlvr_jax.reward.judges:strategy" compares answers and word n-grams, and your own
clusterer goes in with reward.judges.clustered. Its name is looked up as "reward/<name>". The paper does not
give alpha; 1 is ours.
"""

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.advantage.uniqueness import uniqueness as weighted
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Rewarding the Rare: Uniqueness-Aware RL for Creative Problem Solving in LLMs",
  "arXiv 2601.08763",
)
STAGES = ("filter", "optimise")
CHANGES = ("advantage",)
EVIDENCE = "notes"


def uniqueness(
  *,
  alpha: float = 1.0,
  correct_only: bool = False,
  renormalise: bool = False,
  strategy: str = "reward/strategy",
  scale: bool = True,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Advantages over the size of the strategy's cluster.

  Args:
    alpha, correct_only, renormalise: of advantage.uniqueness.uniqueness.
    strategy: entry of rows.extras with each row's cluster; empty: no clusterer, which is `grpo`.
    scale, ddof: of the advantage that is weighted, see advantage.group.group_mean.
    **options: of `grpo`.
  """
  advantage = group_mean(scale=scale, ddof=ddof)
  if strategy:
    advantage = weighted(
      base=advantage,
      alpha=alpha,
      correct_only=correct_only,
      renormalise=renormalise,
      cluster=strategy,
    )
  return grpo(**options)._replace(advantage=advantage)
