"""SAT: the clip gets tighter on the side of an outward move, for the most stale tokens of the batch.

How stale a token is, is its log ratio to the policy that sampled it; the quantile of it is taken once for
a batch, before the first update, from log-probs recomputed then. Differs from the paper: with several
updates on a batch the quantile is not taken anew for each. The level of the quantile, the kernel and its
floor are not printed and are ours. On fresh rollouts this is `grpo`: it acts on data that lag behind.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate, bounds, ratio, scopes
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Stale but Stable: Staleness-Adaptive Trust Regions for Stabilizing Asynchronous Reinforcement "
  "Learning",
  "arXiv 2607.18722",
)
STAGES = ("optimise",)
CHANGES = ("objective", "annotate")
EVIDENCE = "notes"


def sat(
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  quantile: float = 0.95,
  floor: float = 0.1,
  sequence: bool = False,
  **options,
) -> Recipe:
  """Staleness-adaptive bounds.

  Args:
    clip_low, clip_high, quantile, floor: of objective.bounds.sat.
    sequence: SAT-GSPO, ratios and staleness of whole rows; give it GSPO's small bounds.
    **options: of `grpo`.
  """
  objective = ratio.surrogate(
    scope=scopes.sequence() if sequence else scopes.token(),
    bounds=bounds.sat(low=clip_low, high=clip_high, quantile=quantile, floor=floor),
  )
  recipe = grpo(**options)._replace(objective=objective, annotate=("old",))
  if sequence:
    recipe = recipe._replace(aggregate=aggregate.sequence_mean_token_mean())
  return recipe
