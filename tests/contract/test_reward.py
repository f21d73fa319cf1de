"""What every reward must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import reward as package
from tests import toy

FACTORIES = toy.factories(*toy.modules(package))


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("seed", range(3))
def test_rewards(factory, seed):
  reward = jax.jit(factory())
  rows = toy.random_rows(seed)
  out = reward(rows, {})
  assert out.shape == (8,) and out.dtype == jnp.float32 and np.isfinite(out).all()
  # A reward belongs to its row wherever the row is, and padding has no say in it.
  order = np.random.default_rng(seed).permutation(8)
  np.testing.assert_allclose(reward(toy.take(rows, order), {}), out[order], rtol=1e-6)
  soiled = reward(toy.soiled(rows), {})
  np.testing.assert_array_equal(jnp.where(rows.valid, soiled, 0), jnp.where(rows.valid, out, 0))
