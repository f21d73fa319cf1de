"""Soft compression: long responses are penalised, but only on prompts that the policy has mastered.

Mastered: every rollout of the group is right, and a moving average of the prompt's solve rate was at least
`known` before. Within reach of the group's shortest right response nothing is penalised. The paper's
abstract gives the idea and no numbers: the formula and its constants are ours, and so are the floor under
the standard deviation (a mastered group has no other spread, and a division would blow up any difference in
length to 1) and the phases by step counts (the paper goes by validation accuracy). Left out: the shortest
right response of earlier steps.
"""

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.control.ramp import stairs
from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.tracker import average
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.reward.length import compression

PAPER = (
  "Reinforcement Learning for Chain of Thought Compression with One-Domain-to-All Generalization",
  "arXiv 2601.06052",
)
STAGES = ("filter",)
CHANGES = ("posterior", "reward", "advantage", "control")
EVIDENCE = "notes"


def soft_compression(
  *,
  mastery: float = 1.0,
  slack: float = 0.2,
  penalty: float = 0.5,
  known: float = 0.9,
  accuracy_steps: int = 0,
  compression_steps: int = 0,
  **options,
) -> Recipe:
  """A mastery-gated penalty on length.

  Args:
    mastery, slack, penalty, known: of reward.length.compression; known=0 asks for no history.
    accuracy_steps: steps without the penalty at the start.
    compression_steps: steps with it after that; then it is off again. 0: until the end.
    **options: of `grpo`.
  """
  if accuracy_steps < 0 or compression_steps < 0:
    raise ValueError(f"steps must be at least 0, got {accuracy_steps} and {compression_steps}")
  phases = [(0.0, accuracy_steps), (1.0, compression_steps)]
  phases = [(on, steps) for on, steps in phases if steps]
  base = grpo(**options)
  reward = compression(
    mastery=mastery, slack=slack, penalty=penalty, known=known, knob="compression"
  )
  return base._replace(
    posterior=acquisition.scored(average(), acquisition.uniform()),
    reward=reward,
    advantage=group_mean(floor=0.1),
    control=stairs(
      base=base.control,
      knob="compression",
      values=[on for on, _ in phases] + [0.0 if compression_steps else 1.0],
      steps=[steps for _, steps in phases],
    ),
  )
