"""Statistics within groups of rows, as segment reductions over flat [N] arrays.

`group` int32 [N] names the group of each row, in any order and of any sizes; `valid` bool [N] says which
rows count. A result has one entry a group, [num], where num defaults to N: index it with `group` to get
one entry a row. An empty group yields 0.
"""

import jax
import jax.numpy as jnp


def total(x, group, valid, num=None):
  """Sum of x in each group."""
  return jax.ops.segment_sum(jnp.where(valid, x, jnp.zeros((), x.dtype)), group, num or len(group))


def count(group, valid, num=None):
  """float32: number of valid rows in each group."""
  return total(jnp.ones(group.shape, jnp.float32), group, valid, num)


def mean(x, group, valid, num=None):
  return total(x, group, valid, num) / jnp.maximum(count(group, valid, num), 1.0)


def std(x, group, valid, num=None, *, ddof=0):
  """Root of the sum of squared deviations / (count - ddof); a group of at most ddof rows yields 0."""
  d = x - mean(x, group, valid, num)[group]
  free = count(group, valid, num) - ddof
  return jnp.sqrt(
    jnp.where(free > 0, total(d * d, group, valid, num) / jnp.maximum(free, 1.0), 0.0)
  )


def highest(x, group, valid, num=None):
  top = jax.ops.segment_max(jnp.where(valid, x, -jnp.inf), group, num or len(group))
  return jnp.where(jnp.isfinite(top), top, 0.0)


def lowest(x, group, valid, num=None):
  return -highest(-x, group, valid, num)


def rank(group, valid, num=None, *, by=None):
  """int32 [N]: place of each row among the valid rows of its group; N for a row that is not valid.

  Rows are ordered by `by` [N] (default: not at all), ties by row index.
  """
  n = len(group)
  num = num or n
  key = jnp.where(valid, group, num)
  order = jnp.lexsort((jnp.arange(n), jnp.zeros(n) if by is None else by, key))
  size = jax.ops.segment_sum(jnp.ones(n, jnp.int32), key, num + 1)
  first = jnp.cumsum(size) - size
  place = jnp.arange(n, dtype=jnp.int32) - first[key[order]]
  return jnp.where(valid, jnp.zeros(n, jnp.int32).at[order].set(place), n)


def expand(counts, width):
  """Lays out counts [B] rows of each group one after the other in `width` rows.

  Returns:
    group int32 [width], valid bool [width]. Rows past sum(counts) are padding that names the last
    group. Counts that sum to more than `width` are cut silently here: callers check the sum.
  """
  index = jnp.arange(len(counts), dtype=jnp.int32)
  group = jnp.repeat(index, counts, total_repeat_length=width)
  return group, jnp.arange(width) < counts.sum()
