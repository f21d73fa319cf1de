"""Dr.GRPO: GRPO without the two divisions that favour some prompts and some lengths.

The advantage is not divided by the group's standard deviation, and a row's loss is its sum over tokens over
a constant instead of its mean. Our sum is averaged over the rows of the batch.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = ("Understanding R1-Zero-Like Training: A Critical Perspective", "arXiv 2503.20783")
STAGES = ("optimise",)
CHANGES = ("advantage", "aggregate")
EVIDENCE = "code"


def dr_grpo(*, norm: float = 0.0, **options) -> Recipe:
  """Centred advantages and a loss without a bias by length.

  Args:
    norm: what the sum over a row is divided by; 0: the most response tokens that it was allowed.
    **options: of `grpo`.
  """
  base = grpo(scale=False, **options)
  return base._replace(aggregate=aggregate.sequence_mean_token_sum(norm=norm))
