"""GSPO: one importance ratio for a whole response, clipped as one.

Each row's loss is the mean over its tokens, rows count equally. The gradient reaches a token through its
own log-prob (the paper's GSPO-token), which is the gradient of the row's ratio when all tokens of a row
have the same advantage.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate, bounds, ratio, scopes
from rlvr_jax.recipes.grpo import grpo

PAPER = ("Group Sequence Policy Optimization", "arXiv 2507.18071")
STAGES = ("optimise",)
CHANGES = ("objective", "aggregate")
EVIDENCE = "code"


def gspo(*, clip_low: float = 3e-4, clip_high: float = 4e-4, **options) -> Recipe:
  """Sequence ratios.

  Args:
    clip_low, clip_high: bounds of the row's ratio, a geometric mean: far smaller than a token's.
    **options: of `grpo`.
  """
  clip = bounds.clip(low=clip_low, high=clip_high)
  return grpo(**options)._replace(
    objective=ratio.surrogate(scope=scopes.sequence(), bounds=clip),
    aggregate=aggregate.sequence_mean_token_mean(),
  )
