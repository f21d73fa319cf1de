"""Making rows and moving them between batches of static size. Only this module moves rows."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import KILLED, OPEN, Rows


def blank(num: int, num_places: int) -> Rows:
  """`num` rows of padding. Every dtype is explicit: a weakly typed array would retrace step two."""
  i = lambda *shape: jnp.zeros(shape, jnp.int32)
  f = lambda *shape: jnp.zeros(shape, jnp.float32)
  b = lambda *shape: jnp.zeros(shape, bool)
  n, t = num, num_places
  return Rows(
    tokens=i(n, t),
    behavior_logprobs=f(n, t),
    full_logprobs=f(n, t),
    entropy=f(n, t),
    version=jnp.full((n, t), -1, jnp.int32),
    response_mask=b(n, t),
    length=i(n),
    response_start=i(n),
    limit=i(n),
    status=jnp.full(n, KILLED, jnp.int32),
    uid=jnp.zeros((n, 2), jnp.uint32),
    group=i(n),
    context=i(n),
    prompt_id=i(n),
    source=i(n),
    temperature=jnp.ones(n, jnp.float32),
    wave=i(n),
    correct=f(n),
    reward=f(n),
    prior=f(n),
    trials=f(n),
    successes=f(n),
    valid=b(n),
    extras={},
  )


def fresh(tokens, length, *, group, valid, uid, num_places, max_new_tokens, temperature) -> Rows:
  """Open rows that hold a prompt each and wait for a response.

  Args:
    tokens: int32 [B,P] prompts, right-padded.
    length: int32 [B].
    group: int32 [N], which prompt each row belongs to; also its context.
    valid: bool [N].
    uid: uint32 [N,2].
    num_places: T; at least P.
    max_new_tokens: int32 [] or [N], response tokens each row may get (cut to fit T).
    temperature: float32 [] or [N].
  """
  n, pad = len(group), num_places - tokens.shape[1]
  if pad < 0:
    raise ValueError(f"prompts of {tokens.shape[1]} places do not fit rows of {num_places}")
  start = jnp.where(valid, length[group], 0)
  return blank(n, num_places).replace(
    tokens=jnp.where(valid[:, None], jnp.pad(tokens, ((0, 0), (0, pad)))[group], 0),
    length=start,
    response_start=start,
    limit=jnp.minimum(start + max_new_tokens, num_places).astype(jnp.int32),
    status=jnp.where(valid, OPEN, KILLED).astype(jnp.int32),
    uid=uid,
    group=group,
    context=group,
    temperature=jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), (n,)),
    valid=valid,
  )


def write(batch: Rows, rows: Rows, offset) -> Rows:
  """`batch` with `rows` at offset (may be traced)."""
  put = lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, offset, 0)
  return jax.tree.map(put, batch, rows)


def append(pool: Rows, used, rows: Rows, chosen):
  """Appends the chosen rows to a pool, whole groups only; groups are renumbered.

  A group that no longer fits stays out, as do all after it. Within a group the order is kept.

  Args:
    used: (int32 [] rows, int32 [] groups) of the pool in use so far.
    chosen: bool [N].

  Returns:
    pool, used, placed bool [N].
  """
  capacity = len(pool.group)
  size = groups.count(rows.group, chosen).astype(jnp.int32)
  live = size > 0
  start = used[0] + jnp.cumsum(size) - size
  number = (used[1] + jnp.cumsum(live) - live).astype(jnp.int32)
  fits = live & (start + size <= capacity)
  placed = chosen & fits[rows.group]
  rank = groups.rank(rows.group, chosen)
  dest = jnp.where(placed, start[rows.group] + rank, capacity)
  moved = rows.replace(group=number[rows.group], context=number[rows.group], valid=placed)
  pool = jax.tree.map(lambda a, b: a.at[dest].set(b, mode="drop"), pool, moved)
  used = (used[0] + jnp.where(fits, size, 0).sum(), used[1] + fits.sum().astype(jnp.int32))
  return pool, used, placed
