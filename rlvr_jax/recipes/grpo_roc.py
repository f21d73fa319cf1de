"""GRPO-RoC: of twice as many rollouts the cleanest correct ones are kept, and wrong ones as they come.

The batch keeps each group's proportion of right and wrong; groups of equal verdicts are dropped, and the
group statistics are those of the rows kept. Give it twice the budget that is to be trained. The paper
draws right rows with weight 1 / penalty, its code sorts them; the code is followed. Differs: the paper's
penalty counts errors of tool calls and faulty answer tags (keep.choose.tool_penalty has the formula);
without tools the penalty is for responses that were cut off and that repeat themselves. Clip 0.2 and 0.28,
sample standard deviation, no KL term, as in the code.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import choose
from rlvr_jax.recipes.grpo import grpo

PAPER = ("rStar2-Agent: Agentic Reasoning Technical Report", "arXiv 2508.20722")
STAGES = ("filter",)
CHANGES = ("choose", "advantage", "objective")
EVIDENCE = "code"


def grpo_roc(
  *,
  size: int = 0,
  min_right: int = 2,
  min_wrong: int = 2,
  sample: bool = False,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Resample on correct.

  Args:
    size, min_right, min_wrong, sample: of keep.choose.resample_on_correct.
    clip_low, clip_high, ddof, **options: of `grpo`.
  """
  base = grpo(clip_low=clip_low, clip_high=clip_high, ddof=ddof, **options)
  return base._replace(
    choose=choose.resample_on_correct(
      size=size, min_right=min_right, min_wrong=min_wrong, sample=sample
    )
  )
