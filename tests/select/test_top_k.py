"""The best, draws without replacement, bands: against sorting, enumeration and counting."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlvr_jax.core.types import Belief, Candidates
from rlvr_jax.select.best import best
from rlvr_jax.select.top_k import band, gumbel_top_k, top_k


def candidates(score, *, taken=(), visited=(), source=None, mean=None):
  c = len(score)
  has = lambda ids: jnp.zeros(c, bool).at[jnp.array(sorted(ids), jnp.int32)].set(True)
  i = jnp.arange(c, dtype=jnp.int32)
  rate = jnp.array(score if mean is None else mean, jnp.float32)
  return Candidates(
    id=i,
    score=jnp.array(score, jnp.float32),
    source=jnp.zeros(c, jnp.int32) if source is None else jnp.array(source, jnp.int32),
    belief=Belief(rate, rate * 0, rate * 0 + 1),
    taken=has(taken),
    visited=has(visited),
  )


def draws(select, these, num, times, knobs=None, seed=0):
  """int [times,num]: what is chosen with different keys; -1 where nothing is."""

  def one(key):
    out = select(key, these, num, knobs or {})
    return jnp.where(out.valid, out.index, -1)

  keys = jax.random.split(jax.random.key(seed), times)
  return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(keys))


numbers = st.sampled_from([0.0, 1.0, 2.5, -3.0, np.inf, -np.inf, np.nan])
BEST = jax.jit(best, static_argnums=3)


@given(st.lists(st.tuples(numbers, st.booleans()), min_size=6, max_size=6), st.integers(0, 99))
def test_best_against_sorting(pairs, seed):
  score, open_ = (np.array(x) for x in zip(*pairs))
  index, valid = BEST(jax.random.key(seed), jnp.float32(score), jnp.array(open_), 4)
  chosen = np.asarray(index)[np.asarray(valid)].tolist()
  rank = np.where(score > -np.inf, score, -1e30)
  assert rank[chosen].tolist() == sorted(rank[open_], reverse=True)[:4]
  assert len(set(chosen)) == len(chosen) and open_[chosen].all()
  np.testing.assert_array_equal(valid, np.arange(4) < open_.sum())


def test_ties_are_drawn_by_lot():
  got = draws(top_k(), candidates([1, 3, 1, 1, 0]), 3, 3000)
  assert (got[:, 0] == 1).all()
  pairs = [tuple(p) for p in got[:, 1:]]
  number = [pairs.count(p) for p in itertools.permutations((0, 2, 3), 2)]
  assert sum(number) == 3000 and stats.chisquare(number).pvalue > 1e-3


def test_gumbel_draws_without_replacement():
  score, tau = np.array([0.0, 0.3, 0.5, 0.1]), 0.25
  weight = np.exp(score / tau)
  orders = list(itertools.permutations(range(4), 2))
  chance = [weight[i] / weight.sum() * weight[j] / (weight.sum() - weight[i]) for i, j in orders]
  for select, knobs in (
    (gumbel_top_k(temperature=tau), None),
    (gumbel_top_k(knob="tau"), {"tau": jnp.float32(tau)}),
  ):
    got = [tuple(x) for x in draws(select, candidates(score), 2, 6000, knobs)]
    number = [got.count(order) for order in orders]
    assert stats.chisquare(number, 6000 * np.array(chance)).pvalue > 1e-3
  with pytest.raises(ValueError, match="knob 'tau'"):
    gumbel_top_k(knob="tau")(jax.random.key(0), candidates(score), 2, {"temperature": 1})


def test_a_share_of_places_explores():
  got = draws(top_k(explore=0.25, epochs=False), candidates(range(20)), 4, 2000)
  assert all(len(set(row)) == 4 for row in got.tolist())
  # A place explores with chance 1/4, and then finds one of the four best by chance too.
  ranked = 4 - stats.binom(4, 0.25).rvs(20_000, random_state=0)
  expect = np.mean([r + (4 - r) * (4 - r) / (20 - r) for r in ranked])
  assert (got >= 16).sum(1).mean() == pytest.approx(expect, abs=0.06)
  everything = draws(top_k(explore=1.0), candidates([5, 1, np.nan, 2]), 3, 50)
  assert {tuple(sorted(row)) for row in everything.tolist()} == {(0, 1, 3)}


def test_too_few():
  out = top_k()(jax.random.key(0), candidates([1, 2, 3], taken=[2], visited=[0]), 2, {})
  np.testing.assert_array_equal(out.valid, [True, False])
  assert out.index[0] == 1
  np.testing.assert_array_equal(out.consumed, [False, True, False])
  free = top_k(epochs=False)(
    jax.random.key(0), candidates([1, 2, 3], taken=[2], visited=[0]), 2, {}
  )
  np.testing.assert_array_equal(free.index, [1, 0])
  assert free.valid.all() and not free.consumed.any()
  with pytest.raises(ValueError, match="4 candidates are asked for, there are 3"):
    top_k()(jax.random.key(0), candidates([1, 2, 3]), 4, {})


def test_band():
  these = candidates([9, 9, 9, 9, 9], mean=[0.1, 0.3, 0.5, np.nan, 0.95])
  got = draws(band(low=0.2, high=0.8), these, 3, 200)
  assert {tuple(row) for row in got.tolist()} == {(1, 2, 0), (2, 1, 0)}


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    (top_k, {"explore": 1.5}, "explore"),
    (gumbel_top_k, {"temperature": 0.0}, "temperature"),
    (band, {"low": 0.9}, "low <= high"),
  ],
)
def test_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    make(**args)


@pytest.mark.parametrize("kind", ["rising", "falling", "random", "equal"])
def test_the_best_of_many_whatever_their_order(kind):
  """So many that they are looked through in blocks, the last of which is not full."""
  num, many = 3, 3001
  score = np.random.default_rng(0).permutation(many).astype(np.float32)
  score = {"rising": np.sort(score), "falling": -np.sort(score), "equal": score * 0}.get(
    kind, score
  )
  allowed = np.arange(many) % 3 != 1
  index, valid = best(jax.random.key(0), jnp.asarray(score), jnp.asarray(allowed), num)
  assert valid.all() and allowed[index].all() and len(set(index.tolist())) == num
  assert sorted(score[index]) == sorted(score[allowed])[-num:]
  few = np.zeros(many, bool)
  few[[7, many - 1]] = True
  index, valid = best(jax.random.key(0), jnp.asarray(score), jnp.asarray(few), num)
  assert valid.tolist() == [True, True, False] and set(index[:2].tolist()) == {7, many - 1}
