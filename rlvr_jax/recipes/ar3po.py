"""AR3PO: sampling goes on only for prompts without a right response; where none appears, an old one is lent.

Prompts get `chunk` rollouts at a time, to the budget, until one is right. A group that stays without one
borrows a right response of an earlier step, which takes the place of its last wrong one. By default that
response has no gradient: it makes the advantages of the wrong ones negative. Stopping at a success makes the
group's mean an optimistic estimate of the solve rate, as in the paper. The split into stages, how many
responses are kept, which one gives way and the sample standard deviation are not printed and are ours.
"""

import jax.numpy as jnp

from rlvr_jax.allocate import staged
from rlvr_jax.core import table, traits
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import choose
from rlvr_jax.objective import anchors, bounds, modes, ratio
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.replay.success import BORROWED, success

PAPER = (
  "Improving Sampling Efficiency in RLVR through Adaptive Rollout and Response Reuse",
  "arXiv 2509.25808",
)
STAGES = ("control", "replay", "optimise")
CHANGES = ("allocate", "choose", "replay", "advantage", "weigh")
EVIDENCE = "notes"

# Of a borrowed response: none at all; with a ratio that starts at 1; with a ratio to whoever sampled it.
GRADIENTS = {"none": anchors.sampled, "renewed": anchors.proximal, "sampled": anchors.sampled}


def ar3po(
  *,
  start: int = 4,
  chunk: int = 4,
  borrowed: str = "none",
  room: int = 8,
  ways: int = 4,
  most: int = 4096,
  max_age: int = 0,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Stages, and borrowed successes.

  Args:
    start, chunk: of allocate.staged.staged.
    borrowed: the gradient of a borrowed response: none; renewed, where its ratio is to the policy before the
      update (biased, but tame); sampled, where it is to the policy that sampled it.
    room, ways, most, max_age: of replay.success.success; room: most groups that are sure to borrow.
    clip_low, clip_high, ddof, **options: of `grpo`.
  """
  if borrowed not in GRADIENTS:
    raise table.unknown("gradient of borrowed responses", borrowed, GRADIENTS)
  base = grpo(clip_low=clip_low, clip_high=clip_high, ddof=ddof, **options)
  anchor = GRADIENTS[borrowed]()

  def weigh(key, rows, advantage, knobs):
    weight = base.weigh(key, rows, advantage, knobs)
    return jnp.where((rows.wave == BORROWED)[:, None], 0.0, weight)

  return base._replace(
    allocate=staged.staged(start=start, chunk=chunk),
    choose=choose.exchanged(),
    replay=success(room=room, ways=ways, most=most, max_age=max_age),
    weigh=weigh if borrowed == "none" else base.weigh,
    objective=ratio.surrogate(
      bounds=bounds.clip(low=clip_low, high=clip_high), mode=modes.ppo(), anchor=anchor
    ),
    annotate=traits.needs(anchor),
  )
