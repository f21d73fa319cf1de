"""RLOO: each rollout is judged against the mean of the others of its prompt.

Differs from the paper: it treats a whole response as one action and takes one step a batch, where the clip
never acts; ours keeps the clipped loss and the token mean of `grpo`, which at one update a batch have the
same gradient up to the weight of a row.
"""

from rlvr_jax.advantage import group
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs",
  "arXiv 2402.14740",
)
STAGES = ("optimise",)
CHANGES = ("advantage",)
EVIDENCE = "code"


def rloo(**options) -> Recipe:
  """Leave-one-out baseline.

  Args:
    **options: of `grpo`.
  """
  return grpo(**options)._replace(advantage=group.rloo())
