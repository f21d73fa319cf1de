"""Masked sums against lists; whatever lies outside the mask is never seen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import masked

N = 5
numbers = st.lists(st.floats(-9, 9, width=16), min_size=N, max_size=N)
masks = st.lists(st.booleans(), min_size=N, max_size=N)
UGLY = (np.nan, np.inf, -np.inf, 200.0, -200.0)


@given(numbers, masks)
def test_equal_plain_python(x, mask):
  kept = [a for a, m in zip(x, mask) if m]
  dirty = jnp.array([a if m else np.nan for a, m in zip(x, mask)], jnp.float32)
  mask = jnp.array(mask)
  n = len(kept)
  mean = sum(kept) / n if n else 0.0
  squares = sum((a - mean) ** 2 for a in kept)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  close(masked.total(dirty, mask), sum(kept))
  close(masked.mean(dirty, mask), mean)
  close(masked.variance(dirty, mask), squares / n if n else 0.0)
  close(masked.variance(dirty, mask, ddof=1), squares / (n - 1) if n > 1 else 0.0)
  close(masked.highest(dirty, mask), max(kept, default=0.0))


def test_axis():
  x = jnp.array([[1.0, 2.0, jnp.nan], [5.0, jnp.inf, jnp.nan], [jnp.nan] * 3])
  mask = jnp.array([[True, True, False], [True, False, False], [False] * 3])
  np.testing.assert_array_equal(masked.mean(x, mask, 1), [1.5, 5.0, 0.0])
  np.testing.assert_array_equal(masked.total(x, mask, 0), [6.0, 2.0, 0.0])


def test_share_of_true_in_booleans():
  x = jnp.array([True, False, True, True])
  assert masked.mean(x, jnp.array([True, True, True, False])) == pytest.approx(2 / 3)


@pytest.mark.parametrize("f", [masked.total, masked.mean, masked.variance, masked.highest])
def test_T5_gradients_ignore_what_is_masked(f):
  mask = jnp.array([True, True] + [False] * len(UGLY))
  clean = jnp.array([1.0, 3.0] + [0.0] * len(UGLY))
  dirty = jnp.array([1.0, 3.0, *UGLY])
  g = jax.grad(f)(dirty, mask)
  assert np.isfinite(g).all()
  np.testing.assert_array_equal(g, jax.grad(f)(clean, mask))
  np.testing.assert_array_equal(g[2:], 0)
  nothing = jnp.zeros_like(mask)
  assert f(dirty, nothing) == 0
  np.testing.assert_array_equal(jax.grad(f)(dirty, nothing), 0)
