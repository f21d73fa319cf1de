"""Shuffled epochs: every prompt once before any comes twice."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import lots
from rlvr_jax.core.types import Selection


def epoch():
  """Selects uniformly among the prompts not drawn yet in this epoch, nor in this step.

  Returns:
    select(key, candidates, num, knobs) -> Selection of `num` (static) prompts. When fewer are left, the
    last places are not valid; the caller starts the next epoch.
  """

  def select(key, candidates, num, knobs):
    del knobs
    open_ = ~candidates.taken & ~candidates.visited
    order = jnp.where(open_, lots.uniform(key, len(open_)), jnp.inf)
    _, index = jax.lax.top_k(-order, num)
    valid = open_[index]
    consumed = jnp.zeros(open_.shape, bool).at[index].max(valid)
    return Selection(index.astype(jnp.int32), valid, consumed)

  return select
