"""FAPO: a right answer that was reached by flawed reasoning is worth less than one that was not.

Rewards are 1, 0 (flawed) and -1. While failures outnumber clean solutions, flawed ones are still reinforced;
afterwards they are discouraged: no schedule is needed. Whether a right answer is flawed comes from a reward
function of weight 0: the paper trains a judge of 4B, "rlvr_jax.reward.judges:flawed" recomputes the
calculations of a text, and your own judge goes in with reward.judges.judged. Left out: the training of
the judge (reward.judges.judge_reward is its reward). Published with a clip of 0.2 / 0.28 and a dual clip of
10, and with an overlong buffer of 4096 tokens, off here.
"""

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import ratio
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.reward.flawed import flawed_positive
from rlvr_jax.reward.length import overlong

PAPER = (
  "FAPO: Flawed-Aware Policy Optimization for Efficient and Reliable Reasoning",
  "arXiv 2510.22543",
)
STAGES = ("filter",)
CHANGES = ("reward", "advantage", "objective")
EVIDENCE = "code"


def fapo(
  *,
  penalty: float = 1.0,
  flaw: str = "reward/flawed",
  buffer: int = 0,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual: float = 10.0,
  **options,
) -> Recipe:
  """Flawed positives get 1 - penalty.

  Args:
    penalty: of reward.flawed.flawed_positive.
    flaw: entry of rows.extras with the judge's finding; empty: no judge, rewards are 1 and -1.
    buffer: tokens of DAPO's overlong punishment, see reward.length.overlong; 0: none.
    clip_low, clip_high, dual: of objective.ratio.clipped.
    **options: of `grpo`; ddof is 1.
  """
  reward = flawed_positive(penalty=penalty, flaw=flaw)
  return grpo(**options)._replace(
    reward=overlong(buffer=buffer, base=reward) if buffer else reward,
    advantage=group_mean(ddof=1),
    objective=ratio.clipped(low=clip_low, high=clip_high, dual=dual),
  )
