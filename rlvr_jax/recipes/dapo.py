"""DAPO: GRPO that trains only on prompts with both right and wrong rollouts, and clips higher.

Prompts whose rollouts are all right or all wrong are dropped and new ones drawn, for at most `rounds`
rounds; what was generated for them is booked as rejected. Left out: the penalty for overlong responses.
"""

from rlvr_jax.core.types import Recipe, Refill
from rlvr_jax.keep import choose
from rlvr_jax.recipes.grpo import grpo

PAPER = ("DAPO: An Open-Source LLM Reinforcement Learning System at Scale", "arXiv 2503.14476")
STAGES = ("filter",)
CHANGES = ("choose", "refill", "objective")


def dapo(*, rounds: int = 4, clip_low: float = 0.2, clip_high: float = 0.28, **options) -> Recipe:
  """Dynamic sampling and clip-higher.

  Args:
    rounds: most rounds of new prompts in a step, a hard cap; the batch may stay smaller.
    clip_low, clip_high: bounds of the ratio.
    **options: of `grpo`.
  """
  if rounds < 1:
    raise ValueError(f"rounds must be at least 1, got {rounds}")
  base = grpo(clip_low=clip_low, clip_high=clip_high, **options)
  return base._replace(choose=choose.mixed(), refill=Refill(rounds=rounds))
