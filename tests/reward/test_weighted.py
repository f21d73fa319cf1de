"""The weighted sum of reward functions, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.reward.weighted import weighted
from tests import toy

NAN = float("nan")


def _rows(**values):
  extras = {f"reward/{k}": jnp.asarray(v, jnp.float32) for k, v in values.items()}
  return toy.rows(rewards=[1.0] * 4, extras=extras)


def test_t17_zero_is_a_score_and_nan_is_none():
  rows = _rows(a=[0.0, NAN, 1.0, NAN], b=[2.0, 3.0, NAN, NAN])
  out = jax.jit(weighted(a=0.5, b=-1.0))(rows, {})
  np.testing.assert_allclose(out, [0.5 * 0 - 2, -3, 0.5, 0.0])


def test_a_weight_of_zero_only_watches():
  rows = _rows(a=[1.0, 2.0, 3.0, NAN], b=[9.0, 9.0, 9.0, 9.0])
  np.testing.assert_allclose(weighted(a=1.0, b=0.0)(rows, {}), [1, 2, 3, 0])


def test_a_function_that_was_not_called():
  with pytest.raises(KeyError, match="reward/c"):
    weighted(c=1.0)(_rows(a=[0.0] * 4), {})


def test_the_verdict_alone_is_the_outcome():
  rows = toy.random_rows(0)
  rows = rows.replace(extras={"reward/correct": rows.correct})
  np.testing.assert_array_equal(weighted(correct=1.0)(rows, {}), rows.correct)
