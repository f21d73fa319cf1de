"""GAPO: rewards against the median of the group's densest half, which outliers do not move.

The paper calls it the interval of the highest signal-to-noise ratio; what its code computes is the shortest
interval that holds half of the rewards. Made for graded rewards: with 0/1 rewards the baseline is what the
majority got and only the minority is trained. Published with clip 0.2 / 0.28, a dual clip of 10 and a KL
term of 0.01, the last of which is left out here.
"""

from rlvr_jax.advantage import group
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = ("GAPO: Robust Advantage Estimation for Real-World Code LLMs", "arXiv 2510.21830")
STAGES = ("optimise",)
CHANGES = ("advantage", "objective")
EVIDENCE = "code"


def gapo(
  *,
  share: float = 0.5,
  centre: str = "median",
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual: float = 10.0,
  scale: bool = True,
  **options,
) -> Recipe:
  """Densest-interval baseline.

  Args:
    share, centre, scale: of advantage.group.gapo.
    clip_low, clip_high, dual: of objective.ratio.clipped.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    advantage=group.gapo(share=share, centre=centre, scale=scale),
    objective=ratio.clipped(low=clip_low, high=clip_high, dual=dual),
  )
