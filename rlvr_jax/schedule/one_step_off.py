"""The next batch is collected while the learner is at this one."""

from rlvr_jax.core.types import Schedule
from rlvr_jax.schedule.bounded_staleness import bounded_staleness


def one_step_off() -> Schedule:
  """Every batch is one version old, but for the first. A step takes as long as the slower of rollout and
  update, and the transfer of the parameters: see schedule.simulate.overlap."""
  return bounded_staleness(bound=1)
