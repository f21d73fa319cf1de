"""OPO: the baseline of least variance, a mean of the group's rewards weighted by length.

It is the optimal one where the squared gradient of a response grows with its length. The method is exactly
on-policy: keep `updates` at 1, where the clip of `grpo` never acts.
"""

from rlvr_jax.advantage import group
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = ("On-Policy RL with Optimal Reward Baseline", "arXiv 2505.23585")
STAGES = ("optimise",)
CHANGES = ("advantage",)
EVIDENCE = "code"


def opo(**options) -> Recipe:
  """Length-weighted baseline.

  Args:
    **options: of `grpo`.
  """
  return grpo(**options)._replace(advantage=group.opo())
