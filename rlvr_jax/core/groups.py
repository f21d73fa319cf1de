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


def centred(x, group, valid, num=None):
  """float32 [N]: x - mean of its group, 0 for a row that is not valid. Where all x of a group are equal it
  is exactly 0: the distances to the lowest x are averaged, as the mean of equal numbers may be rounded."""
  x = x.astype(jnp.float32)
  d = jnp.where(valid, x - lowest(x, group, valid, num)[group], 0.0)
  return jnp.where(valid, d - mean(d, group, valid, num)[group], 0.0)


def leave_one_out(x, group, valid, num=None):
  """float32 [N]: mean of the OTHER valid rows of the group, of a row that is not valid too; 0 if there
  are none."""
  others = count(group, valid, num)[group] - valid
  rest = total(x, group, valid, num)[group] - jnp.where(valid, x, 0.0)
  return jnp.where(others > 0, rest / jnp.maximum(others, 1.0), 0.0)


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


def _in_order(x, group, valid, num):
  """Rows sorted by group, then x; rows that are not valid come last.

  Returns:
    order int32 [N]: the row at each sorted place; first int32 [num + 1]: where each group begins.
  """
  key = jnp.where(valid, group, num)
  order = jnp.lexsort((jnp.arange(len(group)), x, key))
  size = jax.ops.segment_sum(jnp.ones(len(group), jnp.int32), key, num + 1)
  return order, jnp.cumsum(size) - size


def rank(group, valid, num=None, *, by=None):
  """int32 [N]: place of each row among the valid rows of its group; N for a row that is not valid.

  Rows are ordered by `by` [N] (default: not at all), ties by row index.
  """
  n = len(group)
  num = num or n
  order, first = _in_order(jnp.zeros(n) if by is None else by, group, valid, num)
  place = jnp.arange(n, dtype=jnp.int32) - first[jnp.where(valid, group, num)[order]]
  return jnp.where(valid, jnp.zeros(n, jnp.int32).at[order].set(place), n)


def smallest(x, k, group, valid, num=None):
  """float32: the k-th smallest x of each group, counted from 0; 0 unless 0 <= k < count.

  Args:
    k: int32 [num].
  """
  num = num or len(group)
  order, first = _in_order(x, group, valid, num)
  inside = (k >= 0) & (k < count(group, valid, num))
  at = jnp.where(inside, first[:num] + k, 0)
  return jnp.where(inside, x.astype(jnp.float32)[order[at]], 0.0)


def median(x, group, valid, num=None, *, lower=False):
  """float32: the middle x of each group. Of an even number: the lower of the two if `lower`, else their
  mean."""
  size = count(group, valid, num).astype(jnp.int32)
  low = smallest(x, (size - 1) // 2, group, valid, num)
  if lower:
    return low
  # Not (low + high) / 2: equal values must stay what they are.
  return low + (smallest(x, size // 2, group, valid, num) - low) / 2


def densest(x, size, group, valid, num=None):
  """bool [N]: rows of the shortest interval that holds `size` x of the group; of several, the lowest.

  Args:
    size: int32 [num], at least 1 and at most the count of the group (else the group has no such rows).
  """
  n = len(group)
  num = num or n
  order, first = _in_order(x, group, valid, num)
  y, key = x.astype(jnp.float32)[order], jnp.where(valid, group, num)[order]
  place = jnp.arange(n, dtype=jnp.int32)
  size = jnp.append(size, n + 1)  # rows that are not valid start no interval
  end = place + size[key] - 1
  starts = end < jnp.append(first[1:], n)[key]
  width = jnp.where(starts, y[jnp.where(starts, end, 0)] - y, jnp.inf)
  shortest = jax.ops.segment_min(width, key, num + 1)
  begin = jnp.where(starts & (width == shortest[key]), place, n)
  begin = jax.ops.segment_min(begin, key, num + 1)[key]
  inside = (place >= begin) & (place < begin + size[key])
  return jnp.zeros(n, bool).at[order].set(inside)


def split(group, label, valid):
  """int32 [N] < N: groups of the valid rows that agree on `group` and on the whole number `label` [N].

  Rows that are not valid share one that no valid row is in, unless all are valid.
  """
  n = len(group)
  order = jnp.lexsort((label, group, ~valid))
  a, b, c = group[order], label[order], valid[order]
  new = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
  new = jnp.where(c[1:], new, c[:-1])
  number = jnp.append(jnp.zeros(1, jnp.int32), jnp.cumsum(new).astype(jnp.int32))
  return jnp.zeros(n, jnp.int32).at[order].set(number)


def expand(counts, width):
  """Lays out counts [B] rows of each group one after the other in `width` rows.

  Returns:
    group int32 [width], valid bool [width]. Rows past sum(counts) are padding that names the last
    group. Counts that sum to more than `width` are cut silently here: callers check the sum.
  """
  index = jnp.arange(len(counts), dtype=jnp.int32)
  group = jnp.repeat(index, counts, total_repeat_length=width)
  return group, jnp.arange(width) < counts.sum()
