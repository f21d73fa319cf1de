"""V0.5: few rollouts, a baseline between their mean and a prior, and more rollouts where the two disagree.

The prior is trusted as far as its distance to the group's mean can be noise. While another rollout would
lower the estimated error of the baseline by more than `cost`, the prompt gets `chunk` more of them, up to
the budget. The paper's prior is a large value model that reads the prompt; ours is the prompt's own running
solve rate. Rewards lie in [0, 1] here and are mapped to the paper's [-1, 1]. That the last rollouts are
bought `chunk` at a time is ours. The baseline is made from the rewards it is subtracted from, with a bias of
at most 1/sqrt(k).
"""

from rlvr_jax.advantage import anchored
from rlvr_jax.allocate import staged
from rlvr_jax.core.types import Allocator, Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import beta
from rlvr_jax.recipes.grpo import grpo

PAPER = ("V0.5: Generalist Value Model as a Prior for Sparse RL Rollouts", "arXiv 2603.10848")
STAGES = ("filter", "control", "optimise")
CHANGES = ("posterior", "allocate", "advantage")
EVIDENCE = "notes"


def v0_5(
  *, start: int = 4, chunk: int = 4, cost: float = 0.0039, keep: float = 0.9, **options
) -> Recipe:
  """Prior fused with sparse rollouts.

  Args:
    start: rollouts that every prompt gets; the paper reports divergence at 1 and 2.
    chunk: rollouts bought at a time after that.
    cost: error that a rollout must take off, on the scale of rewards in [-1, 1].
    keep: of posterior.beta.beta, how much of the old verdicts stays at a visit.
    **options: of `grpo`.
  """
  if cost < 0:
    raise ValueError(f"cost must be at least 0, got {cost}")
  return grpo(**options)._replace(
    posterior=acquisition.scored(beta(keep=keep), acquisition.uniform()),
    allocate=look_ahead(start=start, chunk=chunk, cost=cost),
    advantage=anchored.v0_5(),
  )


def gain(gap, count):
  """How much one more rollout lowers the estimated error gap / (count gap + 1) of the baseline."""
  return gap * gap / ((count * gap + 1) * ((count + 1) * gap + 1))


def look_ahead(*, start: int, chunk: int, cost: float) -> Allocator:
  """`start` rows for each prompt, then waves of `chunk` rows for those where `gain` exceeds `cost`."""

  def more(round, knobs):
    del knobs
    prompts, rows = round.prompts, round.rows
    prior = prompts.belief.mean[rows.group]
    fused = anchored.fuse(rows.reward, prior, rows.group, rows.valid, len(prompts.id))
    return gain(fused.gap, fused.count) > cost

  return staged.staged(more=more, start=start, chunk=chunk)
