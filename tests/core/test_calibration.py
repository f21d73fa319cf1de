import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import calibration

f = lambda *x: jnp.array(x, jnp.float32)


def test_by_hand():
  sums = calibration.measure(
    f(0.25, 0.25, 0.75, 1.0, np.nan, 0.5), f(0, 1, 1, 1, 1, 0), jnp.array([1, 1, 1, 1, 1, 0], bool), bins=4
  )  # fmt: skip
  got = calibration.summary(sums)
  assert got["posterior/brier"] == pytest.approx((0.0625 + 0.5625 + 0.0625 + 0) / 4)
  loss = -(np.log(0.75) + np.log(0.25) + np.log(0.75) + np.log(1 - 1e-4)) / 4
  assert got["posterior/log_loss"] == pytest.approx(loss, rel=1e-4)
  # Bins [.25, .5): 0.5 predicted, 1 came; [.75, 1]: 1.75 predicted, 2 came.
  assert got["posterior/ece"] == pytest.approx((0.5 + 0.25) / 4)
  curve = calibration.curve(sums)
  np.testing.assert_allclose(curve["predicted"], [0.25, 0.875])
  np.testing.assert_allclose(curve["realised"], [0.5, 1])
  np.testing.assert_array_equal(curve["count"], [2, 2])


def test_sums_add_up_and_nothing_gives_nothing():
  rng = np.random.default_rng(0)
  p, y = f(*rng.random(64)), f(*rng.integers(0, 2, 64))
  ok = jnp.ones(64, bool)
  measure = jax.jit(calibration.measure)
  parts = measure(p, y, ok.at[:40].set(False)), measure(p, y, ok.at[40:].set(False))
  both = jax.tree.map(jnp.add, *parts)
  whole = measure(p, y, ok)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), both, whole)
  assert calibration.summary(measure(p, y, ~ok)) == {}
