"""Making rows and moving them between batches of static size. Only this module moves rows."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, trees
from rlvr_jax.core.types import KILLED, OPEN, Rows

# Fields of Rows with an entry a place, [N,T].
BY_PLACE = (
  "tokens",
  "behavior_logprobs",
  "full_logprobs",
  "entropy",
  "version",
  "response_mask",
)


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
    parent=jnp.full(n, -1, jnp.int32),
    fork_at=i(n),
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
  parent = jnp.where(rows.parent >= 0, rows.parent + offset, -1).astype(jnp.int32)
  return jax.tree.map(put, batch, rows.replace(parent=parent))


def append(pool: Rows, used, rows: Rows, chosen):
  """Appends the chosen rows to a pool, whole groups only; groups are renumbered.

  A group that no longer fits stays out, as do all after it. Within a group the order is kept. Children of
  rows that stay out are parted among themselves: see core.trees.adopt.

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
  parent, fork_at = trees.adopt(rows.parent, rows.fork_at, ~placed)
  moved = rows.replace(
    group=number[rows.group],
    context=number[rows.group],
    valid=placed,
    parent=jnp.where(parent >= 0, dest[parent], -1).astype(jnp.int32),
    fork_at=fork_at,
  )
  pool = jax.tree.map(lambda a, b: a.at[dest].set(b, mode="drop"), pool, moved)
  used = (used[0] + jnp.where(fits, size, 0).sum(), used[1] + fits.sum().astype(jnp.int32))
  return pool, used, placed


def reprompt(rows: Rows, tokens, length) -> Rows:
  """Rows with other prompts, tokens [N,P] of lengths [N]; responses move along, and keep their room."""
  n, t = rows.tokens.shape
  shift = (rows.response_start - length)[:, None]
  at = jnp.arange(t, dtype=jnp.int32)[None]
  response = (at >= length[:, None]) & (at < (rows.length[:, None] - shift))
  source = jnp.clip(at + shift, 0, t - 1)
  begin = blank(n, t)

  def move(name):
    moved = jnp.take_along_axis(getattr(rows, name), source, 1)
    return jnp.where(response, moved, getattr(begin, name))

  new = {name: move(name) for name in BY_PLACE}
  prompt = jnp.pad(tokens, ((0, 0), (0, max(t - tokens.shape[1], 0))))[:, :t]
  new["tokens"] = jnp.where(at < length[:, None], prompt, new["tokens"])
  return rows.replace(
    **new,
    length=rows.length - shift[:, 0],
    response_start=length,
    limit=rows.limit - shift[:, 0],
  )


def fork(rows: Rows, source, at, uid) -> Rows:
  """Rows become open children of others; what they held is gone.

  Args:
    source: int32 [N], the row that row n is a child of; -1: row n stays as it is.
    at: int32 [N], places that the child shares with it: the prompt at least, at most its length.
    uid: uint32 [N,2] of the children, see core.trees.child_uids.
  """
  n, num_places = rows.tokens.shape
  child = source >= 0
  new = jax.tree.map(lambda x: x[jnp.where(child, source, jnp.arange(n))], rows)
  own = child[:, None] & (jnp.arange(num_places)[None] >= at[:, None])
  begin = blank(n, num_places)
  anew = lambda name: jnp.where(own, getattr(begin, name), getattr(new, name))
  new = new.replace(**{name: anew(name) for name in BY_PLACE})
  set_to = lambda x, value: jnp.where(child, value, x).astype(x.dtype)
  return new.replace(
    length=set_to(new.length, at),
    status=set_to(new.status, OPEN),
    uid=jnp.where(child[:, None], uid, new.uid),
    parent=set_to(new.parent, source),
    fork_at=set_to(new.fork_at, at),
    correct=set_to(new.correct, 0.0),
    reward=set_to(new.reward, 0.0),
    valid=child | new.valid,
  )
