"""Mu-GRPO: many updates on one large batch, kept stable by a wide clip and a veto on stale suffixes.

A row with a negative advantage loses what follows its first token of ratio below `trigger`; nothing is
renormalised. Differs from the paper: there each of the few large batches of a run (four) is split among
its updates, up to about 1024, and every rollout is used once; here each of the `updates` of a step takes
the whole batch. Make the batch large (budget), the steps few, and count staleness in updates. The trigger,
the bounds and the denominator are not printed and are ours.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import veto
from rlvr_jax.objective import bounds, ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "How Off-Policy Can GRPO Be? Mu-GRPO for Efficient LLM Reinforcement Learning",
  "arXiv 2605.17570",
)
STAGES = ("control", "optimise")
CHANGES = ("objective", "updates")
EVIDENCE = "notes"


def mu_grpo(
  *,
  clip_low: float = 0.8,
  clip_high: float = 4.0,
  trigger: float = 0.1,
  updates: int = 4,
  **options,
) -> Recipe:
  """Relaxed clip and negative veto.

  Args:
    clip_low, clip_high: bounds of the ratio.
    trigger: of keep.veto.stale_suffix; 0 is no veto.
    updates: optimizer steps on each batch.
    **options: of `grpo`.
  """
  objective = ratio.surrogate(
    bounds=bounds.clip(low=clip_low, high=clip_high), veto=veto.stale_suffix(low=trigger)
  )
  return grpo(updates=updates, **options)._replace(objective=objective)
