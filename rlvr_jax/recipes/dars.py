"""DARS: hard prompts get a second helping of rollouts, so that they weigh as much as those half solved.

With the advantage r - mean, the rollouts of a prompt weigh n 2 p (1 - p) together; after the first ones a
prompt below p = 1/2 gets as many more as it lacks of the weight at 1/2 (`equal_treatment`), or of up to twice
that (`hardness_weighted`). Groups of equal verdicts are dropped. The loss is the sum over tokens over the
most that a row may have. Where a round wants more rollouts than the rest of the budget holds, prompts get a
part in proportion. The authors' breadth (very large batches, two epochs over each) is a matter of `prompts`,
`budget` and `updates`. Differs from the code: a target that is a whole number is met by it, where rounding
buys one rollout more there.
"""

from rlvr_jax.allocate import staged
from rlvr_jax.core import table
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import choose
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration",
  "arXiv 2508.13755",
)
STAGES = ("filter", "control")
CHANGES = ("allocate", "choose", "advantage", "aggregate")
EVIDENCE = "code"

SCHEDULES = {  # name -> (target, most rollouts of a prompt)
  "equal_treatment": (staged.equal_treatment, 32),
  "hardness_weighted": (staged.hardness_weighted, 64),
}


def dars(
  *,
  start: int = 8,
  most: int = 0,
  schedule: str = "equal_treatment",
  scale: bool = False,
  **options,
) -> Recipe:
  """Rollouts in two stages.

  Args:
    start: rollouts that every prompt gets.
    most: rollouts of a prompt in all; 0: 32, or 64 if hardness_weighted.
    schedule: equal_treatment or hardness_weighted.
    scale: of the advantage and of the weight that is to be reached.
    **options: of `grpo`.
  """
  if schedule not in SCHEDULES:
    raise table.unknown("schedule", schedule, SCHEDULES)
  target, usual = SCHEDULES[schedule]
  base = grpo(scale=scale, **options)
  return base._replace(
    allocate=staged.dars(start=start, most=most or usual, target=target, scaled=scale),
    choose=choose.mixed(),
    aggregate=aggregate.sequence_mean_token_sum(),
  )
