"""Group statistics against lists of lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import groups

N = 7  # one shape: one compilation
flat = lambda elements: st.lists(elements, min_size=N, max_size=N)
batches = st.tuples(
  flat(st.floats(-8, 8, width=16)), flat(st.integers(0, N - 1)), flat(st.booleans())
)


def members(x, group, valid):
  """The valid x of each of the N groups."""
  return [[a for a, g, v in zip(x, group, valid) if g == b and v] for b in range(N)]


def spread(a, ddof):
  mean = sum(a) / len(a)
  return (sum((x - mean) ** 2 for x in a) / (len(a) - ddof)) ** 0.5


@given(batches)
def test_statistics_equal_plain_python(batch):
  x, group, valid = batch
  lists = members(*batch)
  # What is not valid may hold anything at all.
  dirty = [a if v else np.nan for a, v in zip(x, valid)]
  args = jnp.array(dirty, jnp.float32), jnp.array(group), jnp.array(valid)
  expect = {
    groups.total: [sum(a) for a in lists],
    groups.mean: [sum(a) / len(a) if a else 0 for a in lists],
    groups.std: [spread(a, 0) if a else 0 for a in lists],
    groups.highest: [max(a, default=0) for a in lists],
    groups.lowest: [min(a, default=0) for a in lists],
  }
  for f, values in expect.items():
    np.testing.assert_allclose(f(*args), values, rtol=1e-5, atol=1e-5, err_msg=f.__name__)
  sample = [spread(a, 1) if len(a) > 1 else 0 for a in lists]
  np.testing.assert_allclose(groups.std(*args, ddof=1), sample, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(groups.count(*args[1:]), [len(a) for a in lists])


@given(batches)
def test_rank_equals_plain_python(batch):
  x, group, valid = batch
  by = jnp.array(x, jnp.float32)
  args = jnp.array(group), jnp.array(valid)

  def place(i, sort):
    mine = sorted((j for j in range(N) if valid[j] and group[j] == group[i]), key=sort)
    return mine.index(i) if valid[i] else N

  in_order = [place(i, lambda j: j) for i in range(N)]
  sorted_by = [place(i, lambda j: (x[j], j)) for i in range(N)]
  np.testing.assert_array_equal(groups.rank(*args), in_order)
  np.testing.assert_array_equal(groups.rank(*args, by=by), sorted_by)


@given(batches)
def test_order_statistics_equal_plain_python(batch):
  x, group, valid = batch = ([round(4 * a) / 4 for a in batch[0]], *batch[1:])  # exact in float32
  lists = [sorted(a) for a in members(*batch)]
  args = (
    jnp.array([a if v else np.nan for a, v in zip(x, valid)], jnp.float32),
    *map(jnp.array, batch[1:]),
  )
  lower = [a[(len(a) - 1) // 2] if a else 0 for a in lists]
  middle = [(a[(len(a) - 1) // 2] + a[len(a) // 2]) / 2 if a else 0 for a in lists]
  np.testing.assert_array_equal(groups.median(*args, lower=True), lower)
  np.testing.assert_array_equal(groups.median(*args), middle)
  size = [(len(a) + 1) // 2 for a in lists]
  inside = groups.densest(args[0], jnp.array(size, jnp.int32), *args[1:])
  for b, (a, w) in enumerate(zip(lists, size)):
    start = min(range(len(a) - w + 1), key=lambda i: a[i + w - 1] - a[i]) if a else 0
    mine = [x[i] for i in range(N) if valid[i] and group[i] == b and inside[i]]
    assert sorted(mine) == a[start : start + w]
  assert not np.asarray(inside)[~np.array(valid)].any()


@given(batches)
def test_comparisons_equal_plain_python(batch):
  x, group, valid = batch
  args = (
    jnp.array([a if v else np.nan for a, v in zip(x, valid)], jnp.float32),
    *map(jnp.array, batch[1:]),
  )
  lists = members(*batch)
  d, others = np.zeros(N), np.zeros(N)
  for i in range(N):
    mine = lists[group[i]]
    if valid[i]:
      d[i] = x[i] - sum(mine) / len(mine)
    rest = [x[j] for j in range(N) if j != i and valid[j] and group[j] == group[i]]
    others[i] = sum(rest) / len(rest) if rest else 0
  np.testing.assert_allclose(groups.centred(*args), d, atol=1e-5)
  np.testing.assert_allclose(groups.leave_one_out(*args), others, atol=1e-4)
  label = [int(a) % 3 - 1 for a in x]
  same = np.asarray(groups.split(args[1], jnp.array(label), args[2]))
  for i in range(N):
    for j in range(N):
      alike = valid[i] and valid[j] and group[i] == group[j] and label[i] == label[j]
      if valid[i] and valid[j]:
        assert (same[i] == same[j]) == alike
      elif valid[i] != valid[j]:
        assert same[i] != same[j]


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3))
def test_expand_equals_plain_python(counts):
  width = 12
  group, valid = groups.expand(jnp.array(counts), width)
  laid = [b for b, n in enumerate(counts) for _ in range(n)]
  np.testing.assert_array_equal(group, laid + [2] * (width - len(laid)))
  np.testing.assert_array_equal(valid, [True] * len(laid) + [False] * (width - len(laid)))
  assert group.dtype == jnp.int32


def test_num_sets_the_number_of_groups():
  x, group, valid = jnp.array([1.0, 2.0, 4.0]), jnp.array([4, 0, 4]), jnp.array([True] * 3)
  np.testing.assert_array_equal(groups.total(x, group, valid, 5), [2, 0, 0, 0, 5])
  np.testing.assert_array_equal(groups.rank(group, valid, 5), [0, 0, 1])


def test_whole_numbers_stay_whole_in_sums():
  # 2**24 + 1 is no float32.
  x = jnp.array([2**24, 1], jnp.int32)
  out = groups.total(x, jnp.zeros(2, jnp.int32), jnp.ones(2, bool))
  assert out.dtype == jnp.int32 and out[0] == 2**24 + 1


@pytest.mark.parametrize("ddof", [0, 1])
def test_T15_a_group_of_one_has_no_spread(ddof):
  group, valid = jnp.array([0, 0, 0, 1]), jnp.array([True, False, False, True])
  out = groups.std(jnp.array([3.0, jnp.nan, 9.0, 5.0]), group, valid, ddof=ddof)
  np.testing.assert_array_equal(out, 0)


def test_T18_order_of_rows_does_not_matter():
  rng = np.random.default_rng(0)
  x, group, valid = rng.normal(size=N), np.array([0, 1, 0, 1, 2, 1, 0]), np.ones(N, bool)
  order = rng.permutation(N)
  f = jax.jit(lambda *args: groups.mean(*args))
  np.testing.assert_allclose(f(x, group, valid), f(x[order], group[order], valid), rtol=1e-6)
