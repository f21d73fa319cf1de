"""APRIL: more prompts are rolled out than are trained, and what is unfinished goes on in the next step.

A step has `prompts` groups in hand, those that wait first, and leaves off once `groups` of them are done.
These are trained; all others wait, with their tokens, and what has ended of them stays. The log-probs of
all tokens are computed again by the policy before the update, so that the ratio begins at 1: nothing
corrects for tokens that an earlier policy sampled, and only `max_age` bounds how old these get. Differs
from the paper's code: groups that are done and not needed wait too, instead of being thrown away; there is
no dynamic filter. The first steps train what ends first: lengths are those of the policy once as many
groups come back as are kept. Give it about twice the prompts that are trained, and a multiple of them as
the budget; a batch then has room to spare, which costs nothing.
"""

from rlvr_jax.core.types import Allocator, Recipe
from rlvr_jax.keep.finished import finished
from rlvr_jax.objective import anchors, bounds, ratio
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.replay.partials import partials
from rlvr_jax.rollout.partial import partial

PAPER = (
  "APRIL: Active Partial Rollouts in Reinforcement Learning to Tame Long-tail Generation",
  "arXiv 2509.18521",
)
STAGES = ("generate", "replay")
CHANGES = ("allocate", "rollout", "choose", "replay", "objective", "annotate")


def april(
  *,
  groups: int = 32,
  most: int = 512,
  max_age: int = 0,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Partial rollouts at the level of groups.

  Args:
    groups: groups of a batch; the paper draws twice as many, and has 32 of 8 rows.
    most, max_age: of replay.partials.
    clip_low, clip_high: bounds of the ratio to the policy before the update.
    slots, top_k, top_p, min_p: of rollout.partial.
    **options: of `grpo`.
  """
  objective = ratio.surrogate(
    anchor=anchors.proximal(), bounds=bounds.clip(low=clip_low, high=clip_high)
  )
  base = over_provisioned(grpo(**options), groups=groups, most=most, max_age=max_age)
  return base._replace(
    rollout=partial(groups=groups, slots=slots, top_k=top_k, top_p=top_p, min_p=min_p),
    objective=objective,
    annotate=objective.needs,
  )


def over_provisioned(base: Recipe, *, groups: int, most: int, max_age: int) -> Recipe:
  """`base` with batches of `groups` groups that are done, 0 for all, and a bank for everything else."""
  if groups < 0:
    raise ValueError(f"groups must be at least 0, got {groups}")
  return base._replace(
    allocate=_equal_groups(base.allocate, groups),
    choose=finished(most=groups),
    replay=partials(most=most, max_age=max_age),
  )


def _equal_groups(allocator: Allocator, groups: int) -> Allocator:
  """The allocator, where every prompt gets the same number of rows at every step."""

  def plan(num_prompts, budget):
    if budget % num_prompts:
      raise ValueError(
        f"rows that are carried over need groups of one size: budget {budget} is no multiple of "
        f"prompts {num_prompts}"
      )
    if groups > num_prompts:
      raise ValueError(f"a batch of groups = {groups} needs as many prompts, got {num_prompts}")
    return allocator.plan(num_prompts, budget)

  return allocator._replace(plan=plan)
