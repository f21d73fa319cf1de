"""Beta laws against scipy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from rlvr_jax.core import beta_laws as laws
from rlvr_jax.core.types import Belief

COUNTS = np.array([[1, 1], [5, 5], [41, 41], [2, 7], [9, 1], [0.5, 3], [300, 200]])


def test_as_beta():
  a, b = COUNTS.T
  n = a + b
  f = lambda x: jnp.array(x, jnp.float32)
  got = laws.as_beta(Belief(mean=f(a / n), variance=f(a * b / (n * n * (n + 1))), evidence=f(n)))
  np.testing.assert_allclose(got, [a, b], rtol=1e-3)
  sure = laws.as_beta(Belief(mean=f([0, 0.3, 1]), variance=f([0, 0, 0]), evidence=f([9, 9, 9])))
  np.testing.assert_allclose(sure[0] / (sure[0] + sure[1]), [0, 0.3, 1], atol=1e-5)


@pytest.mark.parametrize("a,b", [(1, 1), (0.3, 0.5), (41, 3)])
def test_draws(a, b):
  n = 200_000
  f = lambda x: jnp.full(n, x, jnp.float32)
  drawn = np.asarray(jax.jit(laws.draw_beta)(jax.random.key(0), f(a), f(b)))
  assert stats.kstest(drawn.astype(float), stats.beta(a, b).cdf).pvalue > 1e-3


def by_enumeration(a, b, k):
  """I in float64: the entropy of the law, less its mean after each outcome."""
  entropy = lambda a, b: stats.beta(a, b).entropy()
  chance = [
    special.comb(k, s) * np.exp(special.betaln(a + s, b + k - s) - special.betaln(a, b))
    for s in range(k + 1)
  ]
  assert sum(chance) == pytest.approx(1)
  return entropy(a, b) - sum(p * entropy(a + s, b + k - s) for s, p in enumerate(chance))


@pytest.mark.parametrize("k", [0, 1, 8])
def test_information_is_the_fall_of_entropy(k):
  a, b = COUNTS.T
  got = np.asarray(laws.verdict_information(jnp.float32(a), jnp.float32(b), k))
  expect = [by_enumeration(x, y, k) for x, y in COUNTS]
  np.testing.assert_allclose(got, expect, rtol=5e-3, atol=2e-5)


def test_digammas():
  x = np.logspace(-6, 6, 200).astype(np.float32)
  for k in (0, 3, 8):
    exact = special.digamma(x.astype(float) + np.arange(k + 1)[:, None])
    np.testing.assert_allclose(np.stack(laws.digammas(x, k)), exact, rtol=2e-6, atol=2e-6)
