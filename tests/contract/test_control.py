"""What every controller must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import control as package
from rlvr_jax.core.types import Feedback, Tally, plain_table
from tests import toy

FACTORIES = toy.factories(
  *toy.modules(package), variants={"constant": [{"temperature": 1, "beta": 0.5}]}
)


@pytest.mark.parametrize("factory", FACTORIES)
def test_controllers(factory):
  control = factory()
  state = control.init(plain_table(20))
  rows = toy.random_rows(0)
  counts = jnp.ones(20, jnp.int32)
  tally = Tally(jnp.ones(20), jnp.zeros(20), counts, counts)
  zero = jnp.zeros((), jnp.int32)
  feedback = Feedback(rows, jnp.zeros(rows.tokens.shape), jnp.float32(1.5), tally, zero, zero)
  knobs = control.value(state)
  for _ in range(2):
    for name, value in knobs.items():
      assert value.dtype in (jnp.float32, jnp.int32) and np.isfinite(value).all(), name
      assert name != "temperature" or (value.shape == () and value > 0)
    new = jax.jit(control.update)(state, feedback)
    assert toy.kinds(new) == toy.kinds(state)
    assert toy.kinds(control.value(new)) == toy.kinds(knobs)
    state, knobs = new, control.value(new)
