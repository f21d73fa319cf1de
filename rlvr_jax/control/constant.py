"""Numbers that do not change."""

import jax.numpy as jnp

from rlvr_jax.core.types import Controller


def constant(**values: float) -> Controller:
  """Each name is a knob with that value throughout the run."""
  knobs = {name: jnp.asarray(value, jnp.float32) for name, value in values.items()}
  return Controller(
    init=lambda table: (),
    value=lambda state: dict(knobs),
    update=lambda state, feedback: state,
  )
