import jax.numpy as jnp
import pytest

from rlvr_jax.control.constant import constant
from rlvr_jax.core.types import plain_table


def test_values_stay_whatever_happens():
  control = constant(temperature=0.7, beta=2)
  state = control.init(plain_table(9))
  for _ in range(2):
    knobs = control.value(state)
    assert set(knobs) == {"temperature", "beta"}
    assert float(knobs["temperature"]) == pytest.approx(0.7) and float(knobs["beta"]) == 2
    assert all(x.dtype == jnp.float32 and x.shape == () for x in knobs.values())
    state = control.update(state, feedback=None)


def test_changing_the_knobs_that_were_handed_out_changes_nothing():
  control = constant(beta=1)
  control.value(())["beta"] = 5
  assert float(control.value(())["beta"]) == 1
