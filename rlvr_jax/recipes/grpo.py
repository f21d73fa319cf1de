"""GRPO: a group of rollouts for each prompt, and each one judged against the mean of its group.

The base that the other recipes replace parts of. Differs from the paper: the loss is the mean over all
tokens of the batch instead of a mean over the rows' means, and there is no KL term unless the config has a
kl_coef, as is usual now when the reward is verified (both from DAPO). The clip is 0.2 on both sides as in
the paper.
"""

from rlvr_jax.advantage import group
from rlvr_jax.allocate.uniform import uniform
from rlvr_jax.condition.plain import plain
from rlvr_jax.control.constant import constant
from rlvr_jax.core.types import Recipe, Refill
from rlvr_jax.keep import choose, weigh
from rlvr_jax.objective import aggregate, ratio
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import beta
from rlvr_jax.replay.nothing import nothing
from rlvr_jax.reward.outcome import outcome
from rlvr_jax.rollout.linear import linear
from rlvr_jax.schedule.sync import sync
from rlvr_jax.select.epoch import epoch

PAPER = (
  "DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models",
  "arXiv 2402.03300",
)
STAGES = ("generate",)
CHANGES = ()


def grpo(
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  scale: bool = True,
  ddof: int = 0,
  temperature: float = 1.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  slots: int = 0,
  updates: int = 1,
) -> Recipe:
  """Group-relative policy optimisation.

  Args:
    clip_low, clip_high: bounds of the ratio, see objective.ratio.clipped.
    scale, ddof: of the advantage, see advantage.group.group_mean.
    temperature: of sampling; positive, since a greedy policy has no gradient.
    top_k, top_p, min_p: truncation of the sampled law; 0, 1 and 0 mean none.
    slots: rows decoded at a time; 0 means all.
    updates: optimizer steps on each batch; the clip acts from the second one on.
  """
  if temperature <= 0:
    raise ValueError(f"temperature must be positive to train, got {temperature}")
  if updates < 1:
    raise ValueError(f"updates must be at least 1, got {updates}")
  return Recipe(
    posterior=acquisition.scored(beta(), acquisition.uniform()),
    select=epoch(),
    allocate=uniform(),
    condition=plain(),
    rollout=linear(slots=slots, top_k=top_k, top_p=top_p, min_p=min_p),
    reward=outcome(),
    choose=choose.everything(),
    refill=Refill(rounds=1),
    replay=nothing(),
    advantage=group.group_mean(scale=scale, ddof=ddof),
    weigh=weigh.all_tokens(),
    objective=ratio.clipped(low=clip_low, high=clip_high),
    aggregate=aggregate.token_mean(),
    control=constant(temperature=temperature),
    schedule=sync(),
    updates=updates,
  )
