"""Random streams: equal where they must be, different everywhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import groups, keys

KEY = jax.random.key(7)
data = lambda key: tuple(jax.random.key_data(key).tolist())


def test_streams_differ_by_name_and_by_every_number():
  streams = [
    keys.stream(KEY, name, *ints)
    for name in ("row", "round", "weigh", "select")
    for ints in ((), (0,), (1,), (0, 1), (1, 0), (0, 0))
  ]
  assert len({data(key) for key in streams}) == len(streams)
  assert data(KEY) not in {data(key) for key in streams}


def test_T31_streams_are_a_function_of_the_seed():
  assert data(keys.stream(jax.random.key(7), "row", 3)) == data(keys.stream(KEY, "row", 3))
  assert data(keys.stream(jax.random.key(8), "row", 3)) != data(keys.stream(KEY, "row", 3))


def test_traced_numbers_give_the_same_stream():
  traced = jax.jit(lambda i: jax.random.key_data(keys.stream(KEY, "row", i, 2)))(5)
  assert tuple(traced.tolist()) == data(keys.stream(KEY, "row", 5, 2))


def uids(counts, drawn, step=0, width=8):
  """As collecting does it: rows of each prompt, numbered on from those it drew before."""
  group, valid = groups.expand(jnp.array(counts), width)
  prompt = jnp.array([11, 4])[group]
  replica = jnp.array(drawn)[group] + groups.rank(group, valid)
  out = np.asarray(keys.row_uids(KEY, step, prompt, replica))
  return [tuple(u) for u, v in zip(out.tolist(), valid) if v]


def test_two_waves_of_four_equal_one_of_eight():
  first, second = uids([2, 2], [0, 0]), uids([2, 2], [2, 2])
  assert sorted(first + second) == sorted(uids([4, 4], [0, 0]))
  # An uneven split draws the same rows too.
  assert sorted(uids([1, 3], [0, 0]) + uids([3, 1], [1, 3])) == sorted(uids([4, 4], [0, 0]))


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**20), st.integers(0, 2**20))
def test_no_two_rows_of_a_batch_share_their_randomness(step, a, b):
  prompts = jnp.array([a] * 16 + [b if b != a else a + 1] * 16)
  replica = jnp.tile(jnp.arange(16), 2)
  rows = keys.row_uids(KEY, step, prompts, replica)
  later = keys.row_uids(KEY, step + 1, prompts, replica)
  assert rows.shape == (32, 2) and rows.dtype == jnp.uint32
  assert len({tuple(u) for u in np.concatenate([rows, later]).tolist()}) == 64


def test_uids_do_not_depend_on_the_batch_around_them():
  pair = keys.row_uids(KEY, 3, jnp.array([5, 6]), jnp.array([0, 1]))
  alone = keys.row_uids(KEY, 3, jnp.array([6]), jnp.array([1]))
  np.testing.assert_array_equal(pair[1:], alone)


def test_uniforms_depend_on_row_and_position_alone():
  uid = keys.row_uids(KEY, 0, jnp.arange(4), jnp.zeros(4, jnp.int32))
  u = keys.token_uniforms(uid, jnp.arange(4))
  order = jnp.array([2, 0, 3, 1])
  np.testing.assert_array_equal(keys.token_uniforms(uid[order], order), u[order])
  moved = keys.token_uniforms(uid, jnp.arange(4) + 1)
  assert not (moved == u).any()


def test_uniforms_are_uniform():
  num = 4000
  uid = keys.row_uids(KEY, 0, jnp.arange(num), jnp.zeros(num, jnp.int32))
  u = np.asarray(keys.token_uniforms(uid, jnp.full(num, 9)))
  assert u.shape == (num, 2) and u.min() >= 0 and u.max() < 1
  shares = np.stack([np.histogram(c, 10, (0, 1))[0] for c in u.T]) / num
  np.testing.assert_allclose(shares, 0.1, atol=5 * (0.09 / num) ** 0.5)
  assert np.corrcoef(u.T)[0, 1] == pytest.approx(0, abs=5 / num**0.5)
