"""What every reward must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import reward as package
from tests import toy

VARIANTS = {
  "weighted": [{"a": 0.5, "b": -2.0}],
  "overlong": [{"buffer": 2}],
  "compression": [{"mastery": 0.5, "slack": 0.0, "known": 0.3}],
  "flawed_positive": [{"flaw": "reward/a"}],
}
FACTORIES = toy.factories(*toy.modules(package), variants=VARIANTS)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("seed", range(3))
def test_rewards(factory, seed):
  reward = jax.jit(factory())
  rows = toy.random_rows(seed)
  rng = np.random.default_rng(seed)
  applies = lambda: jnp.asarray(np.where(rng.random(8) < 0.7, rng.random(8), np.nan), jnp.float32)
  rows = rows.replace(extras={"reward/a": applies(), "reward/b": applies()})
  out = reward(rows, {})
  assert out.shape == (8,) and out.dtype == jnp.float32 and np.isfinite(out).all()
  # A reward belongs to its row wherever the row is, and padding has no say in it.
  order = rng.permutation(8)
  np.testing.assert_allclose(reward(toy.take(rows, order), {}), out[order], rtol=1e-6)
  soiled = reward(toy.soiled(rows), {})
  np.testing.assert_array_equal(jnp.where(rows.valid, soiled, 0), jnp.where(rows.valid, out, 0))
