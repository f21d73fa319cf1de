"""GMPO: the geometric mean of a response's token ratios, each clipped before the mean.

Each row's loss is one number, rows count equally. The bounds are of the log ratio.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate, bounds, modes, ratio, scopes
from rlvr_jax.recipes.grpo import grpo

PAPER = ("Geometric-Mean Policy Optimization", "arXiv 2507.20673")
STAGES = ("optimise",)
CHANGES = ("objective", "aggregate")
EVIDENCE = "code"


def gmpo(*, clip_low: float = 0.4, clip_high: float = 0.4, **options) -> Recipe:
  """Geometric means of clipped ratios.

  Args:
    clip_low, clip_high: bounds of a token's log ratio.
    **options: of `grpo`.
  """
  objective = ratio.surrogate(
    scope=scopes.sequence(own=False),
    bounds=bounds.log_clip(low=clip_low, high=clip_high),
    mode=modes.gmpo(),
  )
  return grpo(**options)._replace(
    objective=objective, aggregate=aggregate.sequence_mean_token_mean()
  )
