"""Numbers that follow a plan, by the updates done."""

from collections.abc import Sequence

import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.core.types import Controller


def ramp(
  *,
  base: Controller | None = None,
  knob: str = "temperature",
  start: float = 1.0,
  end: float = 1.0,
  steps: int = 100,
) -> Controller:
  """A knob that goes linearly from start to end in that many updates, and stays there.

  Args:
    base: a controller whose knobs are there too.
    knob: its name.
    start, end: its values.
    steps: at least 1.
  """
  if steps < 1:
    raise ValueError(f"steps must be at least 1, got {steps}")
  if knob == "temperature" and min(start, end) <= 0:
    raise ValueError(f"a temperature must be positive to train, got {start} to {end}")

  def value(done):
    part = jnp.minimum(done.astype(jnp.float32) / steps, 1.0)
    return {knob: start + (end - start) * part}

  return joined(base, _counted(value))


def stairs(
  *,
  base: Controller | None = None,
  knob: str = "phase",
  values: Sequence[float] = (0.0,),
  steps: Sequence[int] = (),
) -> Controller:
  """A knob that takes one value after the other: values[i] for steps[i] updates, the last one for good.

  Args:
    base: a controller whose knobs are there too.
    knob: its name.
    values: at least one.
    steps: one number fewer than values; at least 1 each.
  """
  if len(steps) != len(values) - 1 or any(n < 1 for n in steps):
    raise ValueError(
      f"{len(values)} values need {len(values) - 1} numbers of steps, at least 1 each: {steps}"
    )
  ends = jnp.cumsum(jnp.asarray([0, *steps], jnp.int32))[1:]
  stair = jnp.asarray(values, jnp.float32)
  return joined(base, _counted(lambda done: {knob: stair[(done >= ends).sum()]}))


def _counted(value) -> Controller:
  return Controller(
    init=lambda table: jnp.zeros((), jnp.int32),
    value=value,
    update=lambda done, feedback: done + 1,
  )
