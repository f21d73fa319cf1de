"""Returns and value losses against loops, and the numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import returns

N, T = 4, 6
gae = jax.jit(returns.gae)
whiten = jax.jit(returns.whiten)
f32 = lambda x: jnp.asarray(x, jnp.float32)


def padded(*lists, mask):
  """float32 [N,T] arrays with the lists in the first row, and their mask; NaN off it."""
  hold = np.zeros((N, T), bool)
  hold[0, : len(mask)] = np.array(mask, bool)
  out = [np.full((N, T), np.nan, np.float32) for _ in lists]
  for array, values in zip(out, lists):
    array[0, : len(mask)] = values
  return *map(jnp.asarray, out), jnp.asarray(hold)


def test_worked_gae():
  reward, values, mask = padded([0, 0, 1], [0.2, 0.5, 0.4], mask=[1, 1, 1])
  a, target = gae(reward, values, mask, gamma=0.99, lam=0.95)
  np.testing.assert_allclose(a[0, :3], [0.72791, 0.46030, 0.60000], atol=1e-5)
  np.testing.assert_allclose(target[0, :3], [0.92791, 0.96030, 1.00000], atol=1e-5)
  np.testing.assert_allclose(whiten(a, mask)[0, :3], [0.98500, -1.01435, 0.02936], atol=1e-5)
  assert not a[0, 3:].any() and not a[1:].any() and not target[1:].any()


def test_worked_gae_over_observations():
  nan = np.nan
  row = [0, 0, nan, nan, 0, 1], [0.3, 0.4, nan, nan, 0.5, 0.7]
  reward, values, mask = padded(*row, mask=[1, 1, 0, 0, 1, 1])
  lam = returns.length_lambda(mask, 1.5)
  np.testing.assert_allclose(lam, [0.83333, 0, 0, 0], atol=1e-5)
  a, _ = gae(reward, values, mask, lam=lam)
  np.testing.assert_allclose(a[0], [0.49583, 0.475, 0, 0, 0.45, 0.3], atol=1e-5)
  _, target = gae(reward, values, mask, lam=1.0)
  np.testing.assert_allclose(target[0], [1, 1, 0, 0, 1, 1], atol=1e-6)
  thousand = jnp.ones((1, 1000), bool)
  np.testing.assert_allclose(returns.length_lambda(thousand, 1.5), [0.99933], atol=1e-5)


def loop(reward, values, mask, gamma, lam):
  out = np.zeros(mask.shape)
  for n, row in enumerate(mask):
    value = advantage = 0.0
    for t in reversed(np.flatnonzero(row)):
      advantage = reward[n, t] + gamma * value - values[n, t] + gamma * lam[n] * advantage
      value = values[n, t]
      out[n, t] = advantage
  return out


@pytest.mark.parametrize("seed", range(3))
def test_gae_equals_a_loop_and_skips_what_does_not_count(seed):
  rng = np.random.default_rng(seed)
  reward, values = rng.normal(size=(2, N, T)).astype(np.float32)
  mask, lam = rng.random((N, T)) < 0.6, rng.random(N).astype(np.float32)
  dirty = [np.where(mask, x, np.nan) for x in (reward, values)]
  a, target = gae(*map(f32, dirty), jnp.asarray(mask), gamma=0.9, lam=f32(lam))
  expect = loop(reward, values, mask, 0.9, lam)
  np.testing.assert_allclose(a, expect, atol=1e-5)
  np.testing.assert_allclose(target, np.where(mask, expect + values, 0), atol=1e-5)


def test_ends_of_lambda():
  rng = np.random.default_rng(0)
  reward, values = rng.normal(size=(2, N, T)).astype(np.float32)
  mask = jnp.ones((N, T), bool)
  togo = np.cumsum(reward[:, ::-1], 1)[:, ::-1]
  np.testing.assert_allclose(gae(reward, values, mask, lam=1.0)[0], togo - values, atol=1e-5)
  after = np.pad(values[:, 1:], ((0, 0), (0, 1)))
  expect = reward + 0.5 * after - values
  np.testing.assert_allclose(gae(reward, values, mask, gamma=0.5, lam=0.0)[0], expect, atol=1e-5)


def test_at_end():
  mask = jnp.array([[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
  out = returns.at_end(f32([2, 3, 4]), mask)
  np.testing.assert_array_equal(out, [[0, 0, 0, 2, 0], [3, 0, 0, 0, 0], [0, 0, 0, 0, 0]])


def test_whitened():
  rng = np.random.default_rng(0)
  x, mask = rng.normal(5, 3, (N, T)), rng.random((N, T)) < 0.6
  out = np.asarray(whiten(f32(np.where(mask, x, np.nan)), jnp.asarray(mask)))
  expect = np.where(mask, (x - x[mask].mean()) / x[mask].std(ddof=1), 0)
  np.testing.assert_allclose(out, expect, atol=1e-5)
  # T14, T15: equal numbers, one number, no number.
  for masked in (mask, np.arange(N * T).reshape(N, T) == 7, np.zeros((N, T), bool)):
    out = whiten(jnp.full((N, T), 1000.1, jnp.float32), jnp.asarray(masked))
    np.testing.assert_array_equal(out, 0)


def test_worked_value_loss():
  v, old, target = f32([0.9, 0.1]), f32([0.5, 0.5]), f32([1, 1])
  assert returns.clipped_squared(v, old, target, clip=0.2).mean() == pytest.approx(0.225)
  np.testing.assert_allclose(returns.squared(v, target), [0.005, 0.405], rtol=1e-5)
  wide = returns.clipped_squared(v, old, target, clip=9.0)
  np.testing.assert_array_equal(wide, returns.squared(v, target))


def test_worked_projection():
  y, p = f32([0.1, 0.6, 1.2]), f32([0.5, 0.3, 0.2])
  out = returns.project(y, p, f32([0, 0.25, 0.5, 0.75, 1]))
  np.testing.assert_allclose(out, [0.3, 0.2, 0.18, 0.12, 0.2], atol=1e-6)


def test_projection_keeps_mass_and_mean_on_any_atoms():
  rng = np.random.default_rng(0)
  atoms = np.sort(rng.normal(size=7))
  y, p = rng.uniform(atoms[0], atoms[-1], (5, 3)), rng.dirichlet(np.ones(3), 5)
  out = np.asarray(returns.project(f32(y), f32(p), f32(atoms)))
  np.testing.assert_allclose(out.sum(1), 1, atol=1e-5)
  np.testing.assert_allclose(out @ atoms, (y * p).sum(1), atol=1e-5)
  beyond = returns.project(f32([[9.0, -9.0]]), f32([[0.25, 0.75]]), f32(atoms))
  np.testing.assert_allclose(beyond[0], [0.75, 0, 0, 0, 0, 0, 0.25], atol=1e-6)


def test_two_atoms_are_logistic_regression():
  logits, target = f32([[0.3, -1.2]]), returns.project(f32([[1.0]]), f32([[1.0]]), f32([0, 1]))
  expect = np.log1p(np.exp(0.3 + 1.2))
  np.testing.assert_allclose(returns.cross_entropy(logits, target), [expect], rtol=1e-5)


@pytest.mark.parametrize(("kappa", "expect"), [(0.0, 0.51667), (0.1, 0.44167), (1.0, 0.13333)])
def test_worked_quantile_loss(kappa, expect):
  loss = returns.quantile_loss(f32([0.2, 0.5, 0.9]), f32([0.0, 1.0]), kappa=kappa)
  assert loss == pytest.approx(expect, abs=1e-5)


def test_quantile_loss_is_least_at_the_quantiles():
  y = np.array([0.0, 0.1, 0.4, 0.9], np.float32)
  grid = np.linspace(-0.2, 1.1, 131, dtype=np.float32)
  two = jax.vmap(lambda a: returns.quantile_loss(jnp.stack([a, f32(0.5)]), f32(y)))(grid)
  best = grid[np.asarray(two) <= np.asarray(two).min() + 1e-6]
  assert best.min() >= -0.005 and best.max() <= 0.105  # any number between y_0 and y_1: level 1/4
