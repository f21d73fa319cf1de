"""Hierarchical beliefs against numpy, and what borrowing is worth."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior.beta import beta
from rlvr_jax.posterior.hierarchical import hierarchical


def tally(n, k):
  return Tally(jnp.array(n, jnp.float32), jnp.array(k, jnp.float32), jnp.array(n), jnp.array(n))


def by_numpy(n, k, above, borrow, least, most):
  """(mean, correlation) of the rates of prompts with k of n right."""
  n, k = n[n > 0].astype(float), k[n > 0].astype(float)
  total, c = n.sum(), len(n)
  size = (n * n).sum() / max(total, 1e-6)
  m = k.sum() / max(total, 1e-6)
  worth = total / (1 + max(size - 1, 0) * above[1])
  mean = (worth * m + borrow * above[0]) / (worth + borrow)
  spread = (n * (k / n - m) ** 2).sum()
  free = max(c - 1, 0)
  excess = spread / (m * (1 - m)) - free if m * (1 - m) > 1e-6 else 0.0
  rho = (excess + borrow * above[1]) / (max(total - size - free, 0) + borrow)
  return mean, np.clip(rho, 1 / (most + 1), 1 / (least + 1))


def test_moments_level_by_level():
  rng = np.random.default_rng(0)
  m = 60
  source, level = rng.integers(0, 2, m), rng.integers(1, 4, m)
  n = rng.integers(0, 9, m)
  k = rng.binomial(n, np.where(source, 0.2, 0.7))
  model = hierarchical(borrow=3.0, least=0.5, most=32.0)
  state = model.update(model.init(plain_table(m, source=source, difficulty=level)), tally(n, k))
  belief = model.belief(state, jnp.arange(m))
  limits = 3.0, 0.5, 32.0
  everything = by_numpy(n, k, (1 / 2, 1 / 3), *limits)
  for s in (0, 1):
    own = by_numpy(n[source == s], k[source == s], everything, *limits)
    for d in (1, 2, 3):
      cell = (source == s) & (level == d)
      mean, rho = by_numpy(n[cell], k[cell], own, *limits)
      strength = 1 / rho - 1
      expect = (strength * mean + k[cell]) / (strength + n[cell])
      np.testing.assert_allclose(belief.mean[cell], expect, rtol=1e-3)
      np.testing.assert_allclose(belief.evidence[cell], strength + n[cell], rtol=1e-3)


def test_new_prompts_borrow_and_the_moments_are_found():
  rng = np.random.default_rng(1)
  m, laws = 4000, ((2.0, 8.0), (6.0, 2.0))
  source = np.arange(m) % 2
  rate = np.where(source, rng.beta(*laws[1], m), rng.beta(*laws[0], m))
  seen = np.arange(m) < m // 2
  n = np.where(seen, rng.integers(2, 9, m), 0)
  k = rng.binomial(n, rate)
  model = hierarchical()
  state = model.update(model.init(plain_table(m, source=source)), tally(n, k))
  np.testing.assert_allclose(state.mean, [0.2, 0.75], atol=0.02)
  np.testing.assert_allclose(state.strength, [10, 8], rtol=0.3)
  plain = beta()
  other = plain.update(plain.init(plain_table(m)), tally(n, k))
  error = lambda model, state: np.square(np.asarray(model.belief(state, jnp.arange(m)).mean) - rate)
  ours, theirs = error(model, state), error(plain, other)
  assert ours[~seen].mean() < 0.3 * theirs[~seen].mean()
  assert ours[seen].mean() < 0.9 * theirs[seen].mean()


def test_before_anything_is_seen_and_where_all_is_hopeless():
  model = hierarchical()
  state = model.init(plain_table(3, source=[0, 2, 2]))
  belief = model.belief(state, jnp.arange(3))
  np.testing.assert_allclose(belief.mean, 0.5)
  np.testing.assert_allclose(belief.variance, 1 / 12, rtol=1e-6)
  for k in (0, 8):
    new = state
    for _ in range(30):
      new = jax.jit(model.update)(new, tally([0, 8, 8], [0, k, k]))
    mean = np.asarray(model.belief(new, jnp.arange(3)).mean)
    assert np.isfinite(mean).all() and (abs(mean[1:] - k / 8) < 0.1).all()


@pytest.mark.parametrize("args", [{"keep": 0}, {"borrow": 0}, {"least": 0}, {"least": 40.0}])
def test_errors(args):
  with pytest.raises(ValueError, match=next(iter(args))):
    hierarchical(**args)
