"""Epochs against sets: every prompt once, none twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.types import Belief, Candidates
from rlvr_jax.select.epoch import epoch

M = 7
select = jax.jit(epoch(), static_argnums=2)


def candidates(visited=(), taken=()):
  has = lambda ids: jnp.zeros(M, bool).at[jnp.array(sorted(ids), jnp.int32)].set(True)
  i = jnp.arange(M, dtype=jnp.int32)
  return Candidates(
    i, jnp.ones(M), jnp.zeros(M, jnp.int32), Belief(*[jnp.ones(M)] * 3), has(taken), has(visited)
  )


def pick(key, num, **sets):
  out = select(key, candidates(**sets), num, {})
  chosen = [int(i) for i, v in zip(out.index, out.valid) if v]
  assert set(np.flatnonzero(out.consumed)) == set(chosen)
  return chosen


@pytest.mark.parametrize("num", [1, 2, 3, 7])
def test_an_epoch_draws_every_prompt_once(num):
  visited = []
  for step in range(-(-M // num)):
    chosen = pick(jax.random.fold_in(jax.random.key(0), step), num, visited=visited)
    assert len(chosen) == min(num, M - len(visited))
    visited += chosen
  assert sorted(visited) == list(range(M))


sets = st.sets(st.integers(0, M - 1))


@given(sets, sets, st.integers(0, 99))
def test_only_what_is_neither_visited_nor_taken(visited, taken, seed):
  chosen = pick(jax.random.key(seed), 4, visited=visited, taken=taken)
  left = set(range(M)) - visited - taken
  assert len(chosen) == len(set(chosen)) == min(4, len(left))
  assert set(chosen) <= left


def test_fewer_prompts_than_asked_leave_the_last_places_invalid():
  out = select(jax.random.key(0), candidates(visited={0, 1, 2, 3}, taken={3, 4}), 4, {})
  np.testing.assert_array_equal(out.valid, [True, True, False, False])
  assert set(out.index[:2].tolist()) == {5, 6}
  assert len(set(out.index.tolist())) == 4  # places that are not valid repeat no prompt either


def test_every_prompt_is_as_likely_to_come_first():
  num = 3000
  draw = jax.vmap(lambda key: epoch()(key, candidates(visited={2}), 1, {}).index[0])
  first = np.asarray(draw(jax.random.split(jax.random.key(1), num)))
  share = np.bincount(first, minlength=M) / num
  expect = np.array([1, 1, 0, 1, 1, 1, 1]) / 6
  np.testing.assert_allclose(share, expect, atol=4.5 * (expect.max() / num) ** 0.5)
