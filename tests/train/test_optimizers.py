"""MGUP around AdamW, Lion and Muon: worked numbers, plain numpy, and what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core import table
from rlvr_jax.recipes.mgup import alignment, largest
from rlvr_jax.train import optimizers

P0 = [1.0, -1.0, 0.5, 2.0]
G = [[0.4, -0.1, 0.2, -0.3], [-0.5, -0.2, 0.1, -0.3]]


def trace(transform, params=P0, gradients=G):
  """The parameters after each gradient."""
  tree = {"w": jnp.asarray(params, jnp.float32)}
  state, out = transform.init(tree), []
  update = jax.jit(transform.update)
  for g in gradients:
    updates, state = update({"w": jnp.asarray(g, jnp.float32)}, state, tree)
    tree = optax.apply_updates(tree, updates)
    out.append(np.asarray(tree["w"]))
  return out


def mgup(direction, rate=0.01, weight_decay=0.0, **options):
  scaled = optimizers.scaled(direction, alignment(**options))
  return optimizers.with_rate(scaled, rate, weight_decay=weight_decay)


ADAM = optimizers.adam(b1=0.9, b2=0.999, eps=1e-6, eps_inside=True)
LION = optimizers.lion(b1=0.9, b2=0.99)


def test_worked_adamw():
  one, two = trace(mgup(ADAM))
  np.testing.assert_allclose(one, [0.980002, -0.999000, 0.499000, 2.019998], atol=2e-6)
  np.testing.assert_allclose(two, [0.980164, -0.979699, 0.498068, 2.039996], atol=2e-6)
  _, two = trace(mgup(ADAM, cautious=True))
  np.testing.assert_allclose(two, [0.983256, -0.960705, 0.461362, 2.039996], atol=2e-6)


def test_worked_lion():
  one, two = trace(mgup(LION))
  np.testing.assert_allclose(one, [0.98, -0.999, 0.499, 2.02], atol=2e-6)
  np.testing.assert_allclose(two, [1.00, -0.998, 0.498, 2.04], atol=2e-6)


def test_eps_before_and_after_the_bias_correction():
  m, v = np.zeros(4), np.zeros(4)
  for t, g in enumerate(np.array(G), 1):
    m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g * g
    rate = np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
  options = {"b1": 0.9, "b2": 0.99, "eps": 0.1}
  outside = (m / (1 - 0.9**2)) / (np.sqrt(v / (1 - 0.99**2)) + 0.1)
  for inside, expect in ((True, rate * m / (np.sqrt(v) + 0.1)), (False, outside)):
    direction = optimizers.adam(**options, eps_inside=inside)
    before, after = trace(optimizers.with_rate(optimizers.scaled(direction), 0.01))
    np.testing.assert_allclose(before - after, 0.01 * expect, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("direction", [ADAM, LION])
def test_equal_factors_are_the_base_and_decay_is_not_scaled(direction):
  plain = trace(optimizers.with_rate(optimizers.scaled(direction), 0.01, weight_decay=0.1))
  for options, factor in (
    ({"alpha": 1.0, "gamma": 1.0}, 1.0),
    ({"ratio": 1.0, "alpha": 3.0}, 3.0),
    ({"ratio": 0.0, "gamma": 0.5}, 0.5),
    ({"min_size": 5}, 1.0),
  ):
    first = trace(mgup(direction, weight_decay=0.1, **options))[0]
    decayed = np.array(P0) * (1 - 0.01 * 0.1)
    np.testing.assert_allclose(first - decayed, factor * (plain[0] - decayed), atol=1e-6)


def test_the_state_is_that_of_the_base():
  params = {"w": jnp.ones(3)}
  scaled = optimizers.scaled(ADAM, alignment()).init(params)
  assert jax.tree.structure(scaled) == jax.tree.structure(ADAM.transform.init(params))


@pytest.mark.parametrize("seed", range(3))
def test_exactly_k_largest_with_ties_by_index(seed):
  x = np.random.default_rng(seed).integers(-3, 4, 40).astype(np.float32)
  x[:4] = [0.0, -0.0, 1e-30, -1e30]
  run = jax.jit(largest, static_argnums=1)
  for k in (0, 1, 13, 40):
    order = np.lexsort((np.arange(40), -x))
    expect = np.zeros(40, bool)
    expect[order[:k]] = True
    np.testing.assert_array_equal(run(jnp.asarray(x), k), expect)
  np.testing.assert_array_equal(run(jnp.zeros((3, 4)), 5).reshape(-1), np.arange(12) < 5)


def test_alignment_is_of_signs_and_ranks_only():
  u, g = jnp.array([1.0, 2.0, -1.0, 0.5]), jnp.array([0.3, -0.1, -0.2, 0.9])
  phi = alignment()
  np.testing.assert_allclose(phi(u, g), [2.0, 0.1, 0.1, 2.0])  # products .3 -.2 .2 .45
  np.testing.assert_array_equal(phi(u, 7 * g), phi(u, g))
  np.testing.assert_allclose(alignment(cautious=True)(u, g), [2.0, 0.1, 2.0, 2.0])
  np.testing.assert_array_equal(phi(jnp.ones(1), jnp.ones(1)), [1.0])


def test_muon_in_plain_numpy():
  rng = np.random.default_rng(0)
  params, gradients = rng.normal(size=(3, 5)), rng.normal(size=(2, 3, 5))
  transform = mgup(optimizers.muon(), rate=0.1, weight_decay=0.1)
  got = trace(transform, params, gradients)
  p, buffer = params.copy(), np.zeros((3, 5))
  for g, after in zip(gradients, got):
    buffer = 0.95 * buffer + g
    d = g + 0.95 * buffer
    phi = np.full(15, 0.1)
    phi[np.argsort(-(d * g).reshape(-1))[:7]] = 2.0
    x = d / np.linalg.norm(d)
    for _ in range(5):
      gram = x @ x.T
      x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    p = p * (1 - 0.1 * 0.1) - 0.1 * 0.2 * np.sqrt(5) * x * phi.reshape(3, 5)
    np.testing.assert_allclose(after, p, atol=1e-4)
  # A tall matrix is the transpose; what is not a matrix is Adam's, unscaled.
  d = jnp.asarray(params, jnp.float32)
  np.testing.assert_allclose(
    optimizers.orthogonalise(d.T), optimizers.orthogonalise(d).T, atol=1e-5
  )
  adam = optimizers.scaled(optimizers.adam(b1=0.95, b2=0.95, eps=1e-8))
  vector = mgup(optimizers.muon(), rate=0.1)
  np.testing.assert_allclose(trace(vector)[1], trace(optimizers.with_rate(adam, 0.1))[1], rtol=1e-6)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_the_table(name):
  direction = table.build("optimizer", name, optimizers.OPTIMIZERS, {})
  first = trace(optimizers.with_rate(optimizers.scaled(direction), 0.1))[0]
  np.testing.assert_array_equal(np.sign(first - np.array(P0)), -np.sign(G[0]))


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: optimizers.adam(b1=1.0), "b1 must lie"),
    (lambda: optimizers.muon(ns_steps=0), "ns_steps must be"),
    (lambda: alignment(ratio=2.0), "ratio must lie"),
    (lambda: alignment(gamma=0.0), "must be positive"),
  ],
)
def test_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()
