import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior.streaks import streaks


def after(model, num, *steps):
  state = model.init(plain_table(num))
  for step in steps:
    n = np.zeros(num, np.float32)
    n[list(step)] = 4
    right = np.zeros(num, np.float32)
    right[list(step)] = [4 * mean for mean in step.values()]
    state = model.update(state, Tally(jnp.array(n), jnp.array(right), jnp.array(n), jnp.array(n)))
  return state


def test_worked_example():
  state = after(streaks(), 5, {0: 1, 1: 0, 2: 0.5}, {0: 1, 1: 0, 2: 0}, {0: 0.75, 1: 0, 3: 1})
  np.testing.assert_array_equal(state.streak, [0, -3, -1, 1, 0])
  belief = streaks().belief(state, jnp.arange(5))
  np.testing.assert_allclose(belief.mean, [1 / 2, 1 / 5, 1 / 3, 2 / 3, 1 / 2], rtol=1e-6)


def test_kinds_do_not_add_and_thresholds_move():
  np.testing.assert_array_equal(after(streaks(), 1, {0: 1}, {0: 1}, {0: 0}).streak, [-1])
  model = streaks(right=0.75, wrong=0.25)
  np.testing.assert_array_equal(after(model, 3, {0: 0.75, 1: 0.25, 2: 0.5}).streak, [1, -1, 0])
  with pytest.raises(ValueError, match="wrong < right"):
    streaks(right=0.5, wrong=0.5)
