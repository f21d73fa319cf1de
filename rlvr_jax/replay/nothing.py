"""Every step begins anew."""

from rlvr_jax.core.types import Replay


def nothing() -> Replay:
  """Keeps no rows."""
  return Replay(init=lambda table, num_places: (), held=None, resume=None, merge=None, add=None)
