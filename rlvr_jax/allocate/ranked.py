"""One wave, more rows for prompts of a higher rank of difficulty."""

import jax.numpy as jnp

from rlvr_jax.core import apportion
from rlvr_jax.core.types import Allocator


def ranked(*, low: int = 4, high: int = 12, cap: bool = True) -> Allocator:
  """Every prompt gets a least number of rows, the rest goes by rank; what rounding leaves, to the hardest.

      least = max(G - spread, low),   most = min(G + spread, high),   G = width // prompts
      n_b   = least + whole part of (width - B least) rank_b / sum(rank)
      what is left fills prompts up to `most`, from the highest rank on, ties to the lower index

  A whole number counts as the one below it, as in the authors' code, where rounding does that. What the
  maxima do not take is not drawn.

  Knobs: "rank" float32 [M] in [0, 1), 0 the easiest, and "rank_spread" [] rows: see
  control.ranks.accuracy_rank. Without them all prompts get the same.

  Args:
    low, high: bounds of the least and the most.
    cap: False lets the share by rank exceed `most`, as in the authors' code.

  Source: E3-RL4LLMs, arXiv 2505.18573.
  """
  if not 1 <= low <= high:
    raise ValueError(f"need 1 <= low <= high, got {low} and {high}")

  def next_(state, round, width, knobs):
    prompts = round.prompts
    valid = prompts.valid
    if "rank" not in knobs:
      return apportion.even(valid, width), state
    rank = jnp.where(valid, knobs["rank"][prompts.id], 0.0)
    group = width // len(valid)
    spread = knobs["rank_spread"].astype(jnp.int32)
    # A group that is itself out of bounds (a small budget) stays as it is.
    least = jnp.maximum(group - spread, min(low, group))
    most = jnp.minimum(group + spread, max(high, group))
    return split(rank, valid, width, least, most, cap), state

  return Allocator(
    plan=lambda num_prompts, budget: (budget,), init=lambda prompts, knobs: (), next=next_
  )


def split(rank, valid, width, least, most, cap: bool):
  """int32 [B]: the counts of `ranked`, for rank float32 [B] and whole numbers least and most."""
  total = rank.sum()
  part = (width - valid.sum() * least) * rank / jnp.where(total > 0, total, 1.0)
  counts = least + jnp.maximum(jnp.ceil(part - 1e-3).astype(jnp.int32) - 1, 0)
  counts = jnp.where(valid, jnp.minimum(counts, most) if cap else counts, 0)
  order = jnp.argsort(jnp.where(valid, -rank, jnp.inf), stable=True)
  room = jnp.where(valid, jnp.maximum(most - counts, 0), 0)[order]
  left = width - counts.sum()
  fill = jnp.clip(left - (jnp.cumsum(room) - room), 0, room)
  return counts.at[order].add(fill).astype(jnp.int32)
