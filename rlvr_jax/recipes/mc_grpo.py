"""MC-GRPO: very small groups, judged against their median; one rollout more is drawn than trained.

The row at the median has no advantage and leaves the loss and its denominator, so a budget of G + 1 rows a
prompt costs the learner G. Choose the budget so that groups are odd. Defaults are the paper's. With 0/1
rewards the median deviation of an odd group is 0 and advantages become +-1000, which only clipping of the
gradient tames: set scale to "none" or "std" there. Left out: the KL term of the authors' recipe.
"""

import jax.numpy as jnp

from rlvr_jax.advantage import group
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning",
  "arXiv 2601.22582",
)
STAGES = ("optimise",)
CHANGES = ("advantage", "weigh")
EVIDENCE = "code"


def mc_grpo(*, mc_scale: str = "mad", rescale_nonzero: bool = False, **options) -> Recipe:
  """Median-centred advantages, without the row at the median.

  Args:
    mc_scale, rescale_nonzero: scale and rescale_nonzero of advantage.group.mc_grpo.
    **options: of `grpo`; its own scale and ddof play no part.
  """
  base = grpo(**options)

  def weigh(key, rows, advantage, knobs):
    weight = base.weigh(key, rows, advantage, knobs)
    return jnp.where(group.pivot(rows)[:, None], 0.0, weight)

  advantage = group.mc_grpo(scale=mc_scale, rescale_nonzero=rescale_nonzero)
  return base._replace(advantage=advantage, weigh=weigh)
