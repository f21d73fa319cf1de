"""The bandit over sources: worked weights, and its ring against a list."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.control.sources import source_bandit, weights
from rlvr_jax.core.types import Feedback, Tally, plain_table
from tests import toy


def feedback(source, size, valid=None):
  masks = [[True, True]] * len(source)
  rows = toy.rows(masks=masks, source=source, valid=valid)
  advantage = jnp.array([[9.0, a, a] for a in size], jnp.float32)
  nothing = jnp.zeros(1, jnp.int32)
  tally = Tally(nothing * 0.0, nothing * 0.0, nothing, nothing)
  return Feedback(rows, advantage, jnp.float32(1), tally, nothing[0], nothing[0])


def test_worked_weights():
  f = lambda *x: jnp.array(x, jnp.float32)
  there = jnp.ones(3, bool)
  got = weights(f(0.7, 0.4, 0), jnp.array([320, 640, 0]), there, tau=0.1, bonus=1.0)
  np.testing.assert_allclose(got, [0, 0, 1], atol=1e-6)
  got = weights(f(0.7, 0.4, 0.65), jnp.array([3200, 6400, 3200]), there, tau=0.1, bonus=1.0)
  np.testing.assert_allclose(got, [0.607429, 0.024146, 0.368424], atol=2e-5)


def test_ring_against_a_list():
  control = source_bandit(window=5, bonus=0.0, tau=1.0)
  state = control.init(plain_table(4, source=[0, 1, 1, 3]))
  np.testing.assert_allclose(control.value(state)["source_weights"], [1 / 3, 1 / 3, 0, 1 / 3])
  rng, kept = np.random.default_rng(0), [[], [], [], []]
  for _ in range(4):
    source, size, valid = rng.choice([0, 1, 3], 9), rng.normal(size=9), rng.random(9) < 0.8
    state = control.update(state, feedback(source, size, valid))
    for s, a, ok in zip(source, size, valid):
      kept[s] += [abs(a)] * bool(ok)
    level = np.array([np.mean(k[-5:]) if k else 0 for k in kept])
    expect = np.where([1, 1, 0, 1], np.exp(level), 0)
    got = control.value(state)["source_weights"]
    np.testing.assert_allclose(got, expect / expect.sum(), rtol=1e-5)
  np.testing.assert_array_equal(state.count, [len(k) for k in kept])
  floor = source_bandit(window=5, bonus=0.0, tau=1.0, floor=0.5).value(state)["source_weights"]
  np.testing.assert_allclose(floor, got / 2 + np.array([1, 1, 0, 1]) / 6, rtol=1e-5)


@pytest.mark.parametrize("args", [{"window": 0}, {"tau": 0}, {"bonus": -1}, {"floor": 2}])
def test_errors(args):
  with pytest.raises(ValueError, match=next(iter(args))):
    source_bandit(**args)
