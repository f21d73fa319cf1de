"""SAGE: for a group without a success the policy writes itself hints from the reference, and tries again.

All prompts are rolled out without a hint. For those without a right row the policy writes hints of rising
strength, from the reference solution, in one reply; groups are rolled out anew with one level after the
other until one has a right row, and the last group replaces those before. A hinted row's prompt holds the
hint in sampling and in the loss: its log-probs without the hint would make the update off-policy, which the
paper found to fail; `strip=True` is that ablation. Evaluation never sees a hint.
Hinted rows tell beliefs nothing, since they are not rows of the bare prompt. Differs from the paper: levels
end with the budget, of which each takes `start` rows for each prompt; the variant that carries levels from
visit to visit (SAGE-light) is left out.
"""

import jax.numpy as jnp

from rlvr_jax.allocate import staged
from rlvr_jax.condition.hints import hints, in_words
from rlvr_jax.core import groups
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = ("Self-Hinting Language Models Enhance Reinforcement Learning", "arXiv 2602.03143")
STAGES = ("generate", "control")
CHANGES = ("allocate", "condition", "choose")
EVIDENCE = "code"


def sage(
  *,
  start: int = 8,
  levels: int = 3,
  places: int = 256,
  ask_places: int = 1024,
  most: int = 256,
  strip: bool = False,
  wording=in_words,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  **options,
) -> Recipe:
  """Self-written hints for groups without a success.

  Args:
    start: rows of a group. For all levels to be tried the budget has to be (1 + levels) * start * prompts.
    levels, places, ask_places, most, strip, wording: of condition.hints.
    clip_low, clip_high, **options: of `grpo`.
  """
  return grpo(clip_low=clip_low, clip_high=clip_high, **options)._replace(
    allocate=escalating(start=start, levels=levels),
    condition=hints(
      levels=levels, places=places, ask_places=ask_places, most=most, strip=strip, wording=wording
    ),
    choose=last_wave,
  )


def escalating(*, start: int, levels: int):
  """`start` rows for each prompt, and in up to `levels` more waves again for those without a right row."""
  waves = staged.staged(start=start, chunk=start)
  return waves._replace(plan=lambda num, budget: waves.plan(num, budget)[: 1 + levels])


def last_wave(key, rows, knobs):
  """bool [N]: rows of the latest wave that their group has."""
  del key, knobs
  latest = groups.highest(rows.wave.astype(jnp.float32), rows.group, rows.valid)
  return rows.valid & (rows.wave >= latest[rows.group])
