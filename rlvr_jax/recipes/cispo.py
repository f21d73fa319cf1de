"""CISPO: the importance weight is clipped, the gradient of the token is not.

Differs from the paper: clip_high, which it does not print, is ours (4.0); there is no lower bound, as
there.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import bounds, modes, ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention",
  "arXiv 2506.13585",
)
STAGES = ("optimise",)
CHANGES = ("objective",)
EVIDENCE = "code"


def cispo(*, clip_low: float = 1.0, clip_high: float = 4.0, **options) -> Recipe:
  """Capped importance weights.

  Args:
    clip_low, clip_high: bounds of the weight; clip_low=1 is none.
    **options: of `grpo`.
  """
  clip = bounds.clip(low=clip_low, high=clip_high)
  return grpo(**options)._replace(objective=ratio.surrogate(bounds=clip, mode=modes.cispo()))
