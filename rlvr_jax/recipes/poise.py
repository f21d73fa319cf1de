"""POISE: two rollouts a prompt, each judged against what a probe reads from the other's hidden states.

The probe is a ridge regression on the policy's own hidden states and entropies, fitted on the last batches
after each update. Since a rollout's baseline never looks at that rollout, the gradient stays unbiased.
Differs from the paper: the hidden states are those that the head reads, not of a layer at two thirds of the
depth; the last response tokens stand for the last tokens of the reasoning; they come from a pass of their
own. How many batches are kept, the three statistics of the entropy (mean, standard deviation, maximum), and
the baseline before there is a probe (the mean reward of the other prompts) are ours.
"""

from rlvr_jax.advantage import anchored
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Your Language Model is Its Own Critic: Reinforcement Learning with Value Estimation from Actor's "
  "Internal States",
  "arXiv 2605.07579",
)
STAGES = ("filter", "optimise")
CHANGES = ("advantage", "objective", "aggregate", "baseline")
EVIDENCE = "paper"


def poise(
  *, alpha: float = 0.01, steps: int = 8, last: int = 10, clip_high: float = 0.28, **options
) -> Recipe:
  """Crossed baselines from hidden states.

  Args:
    alpha, steps, last: of train.critic.make_probe.
    clip_high: of objective.ratio.clipped.
    **options: of `grpo`.
  """
  return grpo(clip_high=clip_high, **options)._replace(
    advantage=anchored.poise(),
    aggregate=aggregate.sequence_mean_token_mean(),
    baseline=("probe", {"alpha": alpha, "steps": steps, "last": last}),
  )
