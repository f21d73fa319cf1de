"""Groups whose rows have all ended, where a round may leave rows unfinished."""

import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import OPEN


def finished(*, most: int = 0):
  """The groups without an open row; of more than `most` those whose rows come first.

  Args:
    most: groups; 0: all.
  """
  if most < 0:
    raise ValueError(f"most must be at least 0, got {most}")

  def choose(key, rows, knobs):
    del key, knobs
    n = len(rows.valid)
    done = groups.count(rows.group, rows.valid & (rows.status == OPEN)) == 0
    done = rows.valid & done[rows.group]
    if not most:
      return done
    index = jnp.arange(n, dtype=jnp.int32)
    first = jnp.full(n, n, jnp.int32).at[rows.group].min(jnp.where(done, index, n))
    leads = done & (first[rows.group] == index)
    place = jnp.cumsum(leads) - 1  # of the group that begins here
    return done & (place[jnp.minimum(first[rows.group], n - 1)] < most)

  return choose
