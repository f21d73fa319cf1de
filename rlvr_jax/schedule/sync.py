"""One thing after the other."""

from rlvr_jax.core.types import Schedule
from rlvr_jax.schedule.bounded_staleness import bounded_staleness


def sync() -> Schedule:
  """Each batch is collected with the newest parameters: what is trained is on-policy."""
  return bounded_staleness(bound=0)
