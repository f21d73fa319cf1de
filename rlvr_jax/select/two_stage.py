"""First the source of each prompt, then the prompt."""

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Selection
from rlvr_jax.select.top_k import top_k


def by_source(*, within=None, knob: str = "source_weights"):
  """Draws a source for each place, by weights that a controller gives, and fills it from that source.

  A source that has no prompts left is drawn no more; when none with a positive weight has, those without
  weight are drawn evenly.

  Args:
    within: a select that fills the places of one source; default `top_k()`.
    knob: the weights, float32 [sources], at least 0, of any sum.

  Source: DUMP, arXiv 2504.09710.
  """
  within = within or top_k()

  def select(key, candidates, num, knobs):
    if knob not in knobs:
      raise ValueError(f"by_source reads the knob {knob!r}; control has {sorted(knobs)}")
    weight = knobs[knob]
    draw, inner = jax.random.split(key)

    def pick(source):
      mine = candidates.replace(taken=candidates.taken | (candidates.source != source))
      return within(jax.random.fold_in(inner, source), mine, num, knobs)

    picked = jax.lax.map(pick, jnp.arange(len(weight), dtype=jnp.int32))

    def place(left, key):
      there = left > 0
      share = jnp.where(there, weight, 0.0)
      share = jnp.where(share.sum() > 0, share, there.astype(weight.dtype))
      source = jax.random.categorical(key, jnp.log(share))
      return left.at[source].add(-1), source

    left = picked.valid.sum(1).astype(jnp.int32)
    after, source = jax.lax.scan(place, left, jax.random.split(draw, num))
    rank = (source[:, None] == source[None]) & jnp.tri(num, k=-1, dtype=bool)
    rank = rank.sum(1)
    index, valid = picked.index[source, rank], picked.valid[source, rank]
    # What a source picked beyond its places stays in the epoch.
    spare = picked.valid & (jnp.arange(num)[None] >= (left - after)[:, None])
    unused = jnp.zeros(candidates.taken.shape, bool).at[picked.index].max(spare)
    return Selection(index, valid, picked.consumed.any(0) & ~unused)

  return select
