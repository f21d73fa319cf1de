"""Rollouts that leave off once enough groups are done; what is unfinished stays open, to be resumed."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import hosts
from rlvr_jax.core.types import OPEN
from rlvr_jax.decode.stops import Stops
from rlvr_jax.rollout.linear import linear


def partial(
  *, groups: int = 0, slots: int = 0, patience: int = 0, top_k: int = 0, top_p: float = 1.0,
  min_p: float = 0.0,
):  # fmt: skip
  """Rolls out until `groups` groups have no open row. Rows that come in with a response go on where they are.

  With fewer slots than rows, those with the longest response begin first: what was under way goes on before
  anything new, so that no row can wait for ever.

  Args:
    groups: 0: all. Groups that are done when they come in count.
    slots: rows decoded at a time, 0: all of them. With fewer than rows so many are in flight until the last
      one has begun.
    patience: versions; a group is rolled out to its end, however long that takes, once a token of it is so
      much older than the parameters. 0: never.
    top_k, top_p, min_p: see rollout.linear.

  Returns:
    rollout, as rollout.linear has it.
  """
  if groups < 0 or patience < 0:
    raise ValueError(f"groups and patience must be at least 0, got {groups} and {patience}")
  grow = linear(slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)

  def rollout(policy, params, rows, version, eos_ids, *, stops=None, **sizes):
    num = len(rows.length)
    queue = 0 < slots < num

    def until(enough, rows):
      rule = (stops or Stops()).replace(groups=jnp.asarray(enough, jnp.int32)) if groups else stops
      return grow(policy, params, rows, version, eos_ids, stops=rule, **sizes)

    if queue:
      rows, back = _longest_first(rows)
    rows, counts = until(groups, rows)
    if patience:
      late, any_late = _late(rows, version, patience)
      if hosts.host(any_late):
        valid = rows.valid
        rows, more = until(num + 1, rows.replace(valid=late))
        rows = rows.replace(valid=valid)
        counts = jax.tree.map(jnp.add, counts, more)
    if queue:
      rows, counts = _put_back(rows, counts, back)
    return rows, counts

  return rollout


@jax.jit
def _longest_first(rows):
  order = jnp.argsort(-rows.response_length, stable=True)
  return jax.tree.map(lambda x: x[order], rows), jnp.argsort(order)


@jax.jit
def _put_back(rows, counts, back):
  move = lambda x: x[back] if x.ndim else x
  return jax.tree.map(move, rows), jax.tree.map(move, counts)


@jax.jit
def _late(rows, version, patience):
  """bool [N], open rows of groups with a token that is `patience` versions old; whether there are any."""
  begun = rows.valid[:, None] & (rows.version >= 0)
  old = (begun & (version - rows.version >= patience)).any(1)
  group = jnp.zeros(len(old), bool).at[rows.group].max(old)
  late = group[rows.group] & rows.valid & (rows.status == OPEN)
  return late, late.any()
