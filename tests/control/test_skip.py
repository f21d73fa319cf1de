import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.control.skip import skip_rates
from rlvr_jax.core.types import Feedback, Tally, plain_table
from tests import toy


def feedback(easy, hard, total, epoch=1):
  n = jnp.full(total, 8.0)
  right = jnp.full(total, 3.0).at[:easy].set(8).at[easy : easy + hard].set(0)
  tally = Tally(n, right, n.astype(jnp.int32), n.astype(jnp.int32))
  zero = jnp.zeros((), jnp.int32)
  return Feedback(toy.rows([0]), jnp.zeros((1, 2)), jnp.float32(1), tally, zero + epoch, zero)


def test_worked_rates():
  control = skip_rates()
  state = control.update(control.init(plain_table(200)), feedback(10, 20, 200))
  assert {k: round(float(v), 6) for k, v in control.value(state).items()} == {
    "keep_easy": 0.51, "keep_hard": 0.51
  }  # fmt: skip
  state = control.update(state, feedback(20, 20, 200))
  np.testing.assert_allclose(state, [0.5, 0.52], rtol=1e-6)


def test_bounds_and_what_changes_nothing():
  control = skip_rates(step=0.2)
  start = control.init(plain_table(10))
  np.testing.assert_array_equal(control.update(start, feedback(5, 5, 10, epoch=0)), start)
  unseen = feedback(0, 0, 10)
  unseen = unseen.replace(tally=unseen.tally.replace(trials=jnp.zeros(10)))
  np.testing.assert_array_equal(control.update(start, unseen), start)
  low = high = start
  for _ in range(4):
    low, high = control.update(low, feedback(5, 5, 10)), control.update(high, feedback(0, 0, 10))
  np.testing.assert_allclose([low, high], [[0.05, 0.05], [0.95, 0.95]])
  with pytest.raises(ValueError, match="lowest <= start"):
    skip_rates(start=0.01)
