"""Uniqueness weights on the worked example and on random clusters."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.advantage.uniqueness import uniqueness, weights
from tests import toy

REWARD = [1.0] * 5 + [0.0] * 3
ROWS = toy.rows(
  [0] * 8, REWARD, extras={"reward/strategy": jnp.array([0, 0, 0, 0, 1, 2, 2, jnp.nan])}
)


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({"alpha": 0}, [0.72457] * 5 + [-1.20761] * 3),
    ({}, [0.18114] * 4 + [0.72457, -0.60381, -0.60381, -1.20761]),
    ({"alpha": 0.5}, [0.36228] * 4 + [0.72457, -0.85391, -0.85391, -1.20761]),
    ({"correct_only": True}, [0.18114] * 4 + [0.72457] + [-1.20761] * 3),
  ],
)
def test_worked_example(options, expect):
  np.testing.assert_allclose(uniqueness(**options)(ROWS)[:, 1], expect, atol=1e-5)


def test_renormalised_groups_keep_their_size():
  plain = np.asarray(group_mean(ddof=1)(ROWS))
  out = np.asarray(uniqueness(renormalise=True)(ROWS))
  assert np.abs(out).sum() == pytest.approx(np.abs(plain).sum(), rel=1e-5)
  assert out[4, 1] == pytest.approx(4 * out[0, 1], rel=1e-5)
  solved = ROWS.replace(reward=jnp.ones(8, jnp.float32))
  np.testing.assert_array_equal(uniqueness(renormalise=True)(solved), 0)


def test_weights_count_within_group_and_cluster():
  two = weights(jnp.array([0, 0, 0, 0, 1, 1, -1, -1]), jnp.array([0, 0, 3, 3, 3, 3, 3, 3]),
                jnp.ones(8, bool).at[1].set(False), 1.0)  # fmt: skip
  np.testing.assert_array_equal(two, [1, 1, 0.5, 0.5, 0.5, 0.5, 1, 1])  # groups never mix
  rng = np.random.default_rng(3)
  group, cluster = rng.integers(0, 3, 8), rng.integers(-1, 2, 8)
  valid = rng.random(8) < 0.7
  out = np.asarray(weights(jnp.array(cluster), jnp.array(group), jnp.array(valid), 1.0))
  for i in range(8):
    alike = valid & (group == group[i]) & (cluster == cluster[i])
    assert out[i] == pytest.approx(1 / alike.sum() if valid[i] and cluster[i] >= 0 else 1)
  renamed = np.where(cluster >= 0, 5 - cluster, -3)
  again = weights(jnp.array(renamed), jnp.array(group), jnp.array(valid), 1.0)
  np.testing.assert_array_equal(again, out)


def test_the_base_is_an_argument():
  base = group_mean(scale=False)
  np.testing.assert_array_equal(uniqueness(base=base, alpha=0)(ROWS), base(ROWS))
  with pytest.raises(ValueError, match="alpha must lie"):
    uniqueness(alpha=2)
