"""What every row filter and every token weight must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.keep import choose, steps, tree, weigh
from tests import toy

KEY = jax.random.key(0)


CHOICES = toy.factories(choose, variants={"resample_on_correct": [{"sample": True}]})
WEIGHTS = toy.factories(
  weigh, steps, tree, variants={"random_prefix": [{"full": 0.2, "minimum": 0.5}]}
)


@pytest.mark.parametrize("factory", CHOICES)
@pytest.mark.parametrize("seed", range(3))
def test_choices(factory, seed):
  pick = jax.jit(factory())
  rows = toy.random_rows(seed)
  out = pick(KEY, rows, {})
  assert out.shape == (8,) and out.dtype == bool
  assert not (out & ~rows.valid).any()
  np.testing.assert_array_equal(out, pick(KEY, rows, {}))
  np.testing.assert_array_equal(out, pick(KEY, toy.soiled(rows), {}))
  # Names of groups carry no meaning.
  renamed = rows.replace(group=jnp.array([2, 5, 0, 7], jnp.int32)[rows.group])
  np.testing.assert_array_equal(out, pick(KEY, renamed, {}))
  # Filters read the verdict, never the shaped reward (T56).
  np.testing.assert_array_equal(out, pick(KEY, rows.replace(reward=rows.reward * -3 + 1), {}))


@pytest.mark.parametrize("factory", WEIGHTS)
@pytest.mark.parametrize("seed", range(3))
def test_weights(factory, seed):
  weigh_ = jax.jit(factory())
  rows = toy.random_rows(seed)
  advantage = jnp.where(rows.loss_mask, rows.entropy - 1, 0.0)
  out = weigh_(KEY, rows, advantage, {})
  assert out.shape == (8, 5) and out.dtype == jnp.float32
  assert np.isfinite(out).all() and (out >= 0).all() and not out[~rows.loss_mask].any()
  dirty = jnp.where(rows.loss_mask, advantage, jnp.nan)
  np.testing.assert_array_equal(out, weigh_(KEY, toy.soiled(rows), dirty, {}))
  # What is dropped at random is made up for: weights that vary over keys have mean 1.
  many = jax.vmap(lambda key: weigh_(key, rows, advantage, {}))(jax.random.split(KEY, 400))
  varies = np.ptp(many, axis=0) > 0
  spread = np.asarray(many.std(0)) / 20 + 1e-6
  assert (np.abs(np.asarray(many.mean(0)) - 1) < 5 * spread)[varies].all()
