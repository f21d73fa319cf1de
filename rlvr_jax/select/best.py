"""The best of many candidates, and what all ways of selecting share."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import lots
from rlvr_jax.core.types import Array, Candidates, Selection


def allowed(candidates: Candidates, epochs: bool) -> Array:
  """bool [C]: not drawn in this step and, with `epochs`, not in this epoch either."""
  return ~candidates.taken & ~candidates.visited if epochs else ~candidates.taken


def best(key, score: Array, allowed: Array, num: int) -> tuple[Array, Array]:
  """The allowed candidates of highest score, best first; ties are in random order.

  A score of NaN or -inf comes after all others. Where fewer than `num` are allowed, the last places are
  not valid.

  Args:
    score: float32 [C].
    allowed: bool [C].
    num: static, at most C.

  Returns:
    index int32 [num], valid bool [num].
  """
  if num > len(score):
    raise ValueError(f"{num} candidates are asked for, there are {len(score)}")
  score = jnp.where(allowed & (score > -jnp.inf), score, -jnp.inf)  # NaN > -inf is false
  value, index = _top(score, num)
  # top_k takes the first of equals: those at the threshold are drawn again, by lot.
  lot = lots.uniform(key, len(score))
  drawn, among = _top(jnp.where(allowed & (score == value[-1]), lot, -1.0), num)
  place, above = jnp.arange(num), (value > value[-1]).sum()
  other = jnp.maximum(place - above, 0)
  valid = (place < above) | (drawn[other] >= 0)
  index = jnp.where(place < above, index, among[other])
  order = jnp.lexsort((lot[index], -score[index], ~valid))
  return index[order].astype(jnp.int32), valid[order]


def _top(x: Array, num: int) -> tuple[Array, Array]:
  """jax.lax.top_k; which ones of several equal to the last it takes is left open."""
  size = 64
  if len(x) <= 8 * size * num:
    return _top_of_few(x, num)
  # What is higher than the last lies in the `num` blocks of highest maxima. Over all of them at once a top_k
  # would take in one number after the other where scores rise along the table: 100 ms a million instead of 2.
  blocks = jnp.pad(x, (0, -len(x) % size), constant_values=-jnp.inf).reshape(-1, size)
  _, block = _top_of_few(blocks.max(1), num)
  value, place = _top_of_few(blocks[block].reshape(-1), num)
  return value, jnp.minimum(block[place // size] * size + place % size, len(x) - 1)


def _top_of_few(x: Array, num: int) -> tuple[Array, Array]:
  # Without the barrier XLA merges what is read of the result into a sort of everything, which takes a hundred
  # times as long for a million.
  return jax.lax.optimization_barrier(jax.lax.top_k(x, num))


def choose(key, score: Array, candidates: Candidates, num: int, *, epochs: bool, explore: float):
  """A Selection of the `best`, but for a random share.

  Args:
    epochs: each prompt once an epoch. If not, `visited` is neither heeded nor written.
    explore: each place goes with this chance to a prompt drawn uniformly from those left, whatever its
      score (unless that is NaN or -inf: such a prompt comes last here as well).
  """
  open_ = allowed(candidates, epochs)
  first, rest, coin = jax.random.split(key, 3)
  index, valid = best(first, score, open_, num)
  if explore:
    place = jnp.arange(num)
    ranked = jnp.minimum((jax.random.uniform(coin, (num,)) >= explore).sum(), valid.sum())
    used = jnp.zeros(open_.shape, bool).at[index].max(valid & (place < ranked))
    level = jnp.where(score > -jnp.inf, 0.0, -jnp.inf)
    other, there = best(rest, level, open_ & ~used, num)
    at = jnp.maximum(place - ranked, 0)
    index = jnp.where(place < ranked, index, other[at])
    valid = jnp.where(place < ranked, valid, there[at])
  consumed = jnp.zeros(open_.shape, bool)
  return Selection(index, valid, consumed.at[index].max(valid) if epochs else consumed)


def check(explore: float) -> None:
  if not 0 <= explore <= 1:
    raise ValueError(f"explore must lie in [0, 1], got {explore}")
