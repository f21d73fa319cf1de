"""Making and moving rows, against Python lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, ERROR, KILLED, LENGTH, OPEN, places
from tests import toy

N, CAPACITY, T = 6, 8, 2


def leaves(rows):
  return {jax.tree_util.keystr(path): x for path, x in jax.tree_util.tree_leaves_with_path(rows)}


def test_blank_rows_are_padding_of_fixed_types():
  blank = rows_lib.blank(3, 4)
  for name, x in leaves(blank).items():
    assert x.shape[0] == 3 and not x.weak_type, name
  assert not blank.valid.any() and (blank.status == KILLED).all() and (blank.version == -1).all()


def test_fresh_rows_hold_their_prompts():
  tokens = jnp.array([[5, 6, 7], [8, 9, 0]], jnp.int32)
  rows = rows_lib.fresh(
    tokens,
    jnp.array([3, 2], jnp.int32),
    group=jnp.array([1, 0, 1, 1], jnp.int32),
    valid=jnp.array([True, True, True, False]),
    uid=jnp.arange(8, dtype=jnp.uint32).reshape(4, 2),
    num_places=5,
    max_new_tokens=jnp.array([1, 9, 2, 2], jnp.int32),
    temperature=0.5,
  )
  np.testing.assert_array_equal(
    rows.tokens, [[8, 9, 0, 0, 0], [5, 6, 7, 0, 0], [8, 9, 0, 0, 0], [0] * 5]
  )
  np.testing.assert_array_equal(rows.length, [2, 3, 2, 0])
  np.testing.assert_array_equal(rows.response_start, [2, 3, 2, 0])
  np.testing.assert_array_equal(rows.limit[:3], [3, 5, 4])  # 9 more than 3 do not fit 5 places
  np.testing.assert_array_equal(rows.status, [OPEN, OPEN, OPEN, KILLED])
  np.testing.assert_array_equal(rows.context, rows.group)
  np.testing.assert_array_equal(rows.temperature, 0.5)
  assert not rows.response_mask.any()
  kinds = lambda r: {k: (x.shape[1:], x.dtype, x.weak_type) for k, x in leaves(r).items()}
  assert kinds(rows) == kinds(rows_lib.blank(4, 5))


def test_prompts_longer_than_rows_raise():
  with pytest.raises(ValueError, match="prompts of 3 places do not fit rows of 2"):
    rows_lib.fresh(
      jnp.zeros((1, 3), jnp.int32), jnp.array([3]), group=jnp.array([0]), valid=jnp.array([True]),
      uid=jnp.zeros((1, 2), jnp.uint32), num_places=2, max_new_tokens=1, temperature=1.0,
    )  # fmt: skip


def test_write_puts_rows_at_an_offset():
  batch = toy.rows(rewards=[9.0] * 5)
  new = toy.rows(rewards=[1.0, 2.0])
  for write in (rows_lib.write, jax.jit(rows_lib.write)):
    np.testing.assert_array_equal(write(batch, new, 2).reward, [9, 9, 1, 2, 9])


def simple_append(pool, rows, capacity):
  """`pool` and what is placed, as lists: pool = [(mark, group)], rows = [(mark, group, chosen)]."""
  pool, placed, number = list(pool), set(), len({g for _, g in pool})
  for g in sorted({g for _, g, c in rows if c}):
    mine = [mark for mark, h, c in rows if h == g and c]
    if len(pool) + len(mine) > capacity:
      break
    pool += [(mark, number) for mark in mine]
    placed |= set(mine)
    number += 1
  return pool, placed


append = jax.jit(rows_lib.append)
batches = st.tuples(
  st.lists(st.integers(0, N - 1), min_size=N, max_size=N),
  st.lists(st.booleans(), min_size=N, max_size=N),
)


@given(st.lists(batches, min_size=1, max_size=4))
def test_append_equals_a_python_list(rounds):
  pool, used = rows_lib.blank(CAPACITY, T), (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
  plain, mark = [], 1
  for group, chosen in rounds:
    marks = list(range(mark, mark + N))
    mark += N
    tokens = [[m, -m] for m in marks]
    rows = toy.rows(groups=group, rewards=marks, tokens=tokens, valid=chosen, prompt_id=marks)
    pool, used, placed = append(pool, used, rows, jnp.array(chosen))
    plain, there = simple_append(plain, list(zip(marks, group, chosen)), CAPACITY)
    np.testing.assert_array_equal(placed, [m in there for m in marks])
  n = len(plain)
  assert int(used[0]) == n and int(used[1]) == len({g for _, g in plain})
  np.testing.assert_array_equal(pool.valid, np.arange(CAPACITY) < n)
  for field in (pool.reward, pool.prompt_id, pool.tokens[:, 0], -pool.tokens[:, 1]):
    np.testing.assert_array_equal(field[:n], [m for m, _ in plain])
  for field in (pool.group, pool.context):
    np.testing.assert_array_equal(field[:n], [g for _, g in plain])
  blank = rows_lib.blank(CAPACITY, T)
  for name, x in leaves(pool).items():
    np.testing.assert_array_equal(x[n:], leaves(blank)[name][n:], err_msg=name)


def test_append_never_cuts_a_group_nor_passes_one_over():
  pool, used = rows_lib.blank(4, T), (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
  rows = toy.rows(groups=[0, 0, 1, 1, 1, 2], rewards=range(6), tokens=np.zeros((6, T)))
  pool, used, placed = rows_lib.append(pool, used, rows, rows.valid)
  # Group 1 does not fit; group 2 would, but stays out as well.
  np.testing.assert_array_equal(placed, [True, True, False, False, False, False])
  assert (int(used[0]), int(used[1])) == (2, 1)


def test_views_of_rows():
  rows = toy.rows(
    masks=[[True, False], [True, True], [True, True]],
    valid=[True, False, True],
    status=[EOS, KILLED, LENGTH],
    length=[2, 3, 3],
  )
  np.testing.assert_array_equal(rows.finished, [True, False, False])
  np.testing.assert_array_equal(rows.truncated, [False, False, True])
  np.testing.assert_array_equal(rows.response_length, [1, 2, 2])
  np.testing.assert_array_equal(
    rows.loss_mask, [[False, True, False], [False] * 3, [False, True, True]]
  )
  np.testing.assert_array_equal(places(rows.tokens), [[0, 1, 2]])
  assert len({OPEN, EOS, LENGTH, KILLED, ERROR}) == 5
