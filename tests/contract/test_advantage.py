"""What every advantage must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import advantage as package
from tests import toy

VARIANTS = {"group_mean": [{"scale": False}, {"ddof": 1}, {"epsilon": 0.1}]}
FACTORIES = toy.factories(*toy.modules(package), variants=VARIANTS)


@pytest.fixture(params=FACTORIES)
def advantage(request):
  return jax.jit(request.param())


@pytest.mark.parametrize("seed", range(4))
def test_shape_mask_padding_and_order(advantage, seed):
  rows = toy.random_rows(seed)
  out = advantage(rows)
  assert out.shape == rows.tokens.shape and out.dtype == jnp.float32
  assert np.isfinite(out).all() and not out[~rows.loss_mask].any()
  np.testing.assert_array_equal(advantage(toy.soiled(rows)), out)
  order = np.random.default_rng(seed).permutation(8)
  np.testing.assert_allclose(advantage(toy.take(rows, order)), out[order], rtol=1e-5, atol=1e-6)


def test_a_group_that_is_solved_or_hopeless_gets_nothing(advantage):
  rows = toy.rows([0, 1, 0, 1, 2], [1.0, 0.0, 1.0, 0.0, 1.0], [[True, True]] * 5)
  np.testing.assert_array_equal(advantage(rows), 0)


def test_right_rows_gain_and_wrong_rows_lose(advantage):
  rows = toy.rows([3, 3, 3, 1, 1], [1.0, 0.0, 0.0, 0.0, 1.0])
  np.testing.assert_array_equal(np.sign(advantage(rows)[:, 1]), [1, -1, -1, -1, 1])


def test_groups_do_not_leak(advantage):
  rows = toy.rows([0, 0, 0, 1, 1], [1.0, 0.0, 0.5, 0.0, 1.0])
  other = rows.replace(reward=jnp.array([1.0, 0.0, 0.5, 7.0, -2.0]))
  np.testing.assert_array_equal(advantage(rows)[:3], advantage(other)[:3])
