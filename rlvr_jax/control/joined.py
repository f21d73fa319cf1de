"""A controller beside another one."""

from rlvr_jax.core.types import Controller


def joined(base: Controller | None, own: Controller) -> Controller:
  """The knobs of both, if there is a base; of two of the same name that of `own` counts."""
  if base is None:
    return own
  return Controller(
    init=lambda table: (base.init(table), own.init(table)),
    value=lambda state: {**base.value(state[0]), **own.value(state[1])},
    update=lambda state, feedback: (
      base.update(state[0], feedback),
      own.update(state[1], feedback),
    ),
  )
