"""Prompts in shuffled order, of which some are passed over by chance."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import lots
from rlvr_jax.core.types import Selection
from rlvr_jax.select.best import allowed, best


def skip():
  """Goes through the rest of the epoch in random order and keeps each prompt with probability `score`.

  What is passed over before the last place is filled has had its turn in this epoch, like what is kept. A
  score of NaN is passed over. When the epoch ends first, the last places are not valid.

  Source: GRESO, arXiv 2506.02177.
  """

  def select(key, candidates, num, knobs):
    del knobs
    turn, coin, ties = jax.random.split(key, 3)
    open_ = allowed(candidates, True)
    kept = open_ & (lots.uniform(coin, len(open_)) < candidates.score)
    order = lots.uniform(turn, len(open_))
    index, valid = best(ties, -order, kept, num)
    chosen = jnp.zeros(open_.shape, bool).at[index].max(valid)
    end = jnp.where(valid.all(), order[index[-1]], jnp.inf)
    return Selection(index, valid, chosen | (open_ & ~kept & (order <= end)))

  return select
