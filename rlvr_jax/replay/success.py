"""Right rows of earlier steps, lent to groups that have none of their own."""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Array, Replay, Rows

BORROWED = -1  # the wave of a row that no wave of this step drew


class SuccessState(flax.struct.PyTreeNode):
  rows: Rows  # [buckets * ways, T], extras left out
  head: Array  # int32 [buckets], rows ever put into each


def success(*, room: int = 8, ways: int = 4, most: int = 4096, max_age: int = 0) -> Replay:
  """Keeps the latest right rows of each prompt; each group without one borrows one of its prompt's.

  Rows are kept in buckets of `ways`, the oldest giving way to the newest. A prompt has a bucket to itself if
  most / ways is at least the number of prompts; otherwise prompts of equal id modulo the number of buckets
  share one, and push each other out. Rows stay as they were sampled: log-probs, version, uid and temperature;
  their wave is BORROWED. The verdict is kept, entries of `extras` are 0. A row is never kept twice, and never
  put over a generated one: with more groups in need than rows of padding the first groups borrow.

  Args:
    room: rows of a round that are there for borrowing, beside those that its waves leave unused.
    ways: rows of a bucket.
    most: rows kept in all; at least `ways`.
    max_age: updates after which a row is not lent any more; 0: never.

  Source: response reuse of AR3PO, arXiv 2509.25808.
  """
  if room < 0 or ways < 1 or most < ways or max_age < 0:
    raise ValueError(
      f"need room >= 0, 1 <= ways <= most and max_age >= 0, got {room}, {ways}, {most} and {max_age}"
    )

  def init(table, num_places):
    buckets = min(len(table.length), most // ways)
    empty = rows_lib.blank(buckets * ways, num_places)
    return SuccessState(empty, jnp.zeros(buckets, jnp.int32))

  def merge(state, rows, key, step):
    num, buckets = len(rows.valid), len(state.head)
    padding = ~rows.valid
    index = jnp.arange(num, dtype=jnp.int32)
    some = jnp.zeros(num, jnp.int32).at[rows.group].max(jnp.where(rows.valid, index, 0))
    prompt = rows.prompt_id[some]  # [N], of each group
    ended = groups.count(rows.group, rows.valid) > 0
    right = groups.count(rows.group, rows.valid & (rows.correct > 0.5))
    # The rows of each group's bucket that are of its prompt.
    slot = (prompt % buckets)[:, None] * ways + jnp.arange(ways, dtype=jnp.int32)[None]
    kept = state.rows
    fits = kept.valid[slot] & (kept.prompt_id[slot] == prompt[:, None])
    if max_age:
      fits &= step - kept.version.max(1)[slot] <= max_age
    draw = jnp.where(fits, jax.random.uniform(key, slot.shape), -1.0).argmax(1)
    pick = jnp.take_along_axis(slot, draw[:, None], 1)[:, 0]
    needy = ended & (right == 0) & fits.any(1)
    # The k-th needy group takes the k-th row of padding.
    order = jnp.argsort(~padding, stable=True)
    rank = jnp.cumsum(needy) - 1
    lends = needy & (rank < padding.sum())
    place = jnp.where(lends, order[jnp.minimum(rank, num - 1)], num)
    lent = jax.tree.map(lambda x: x[pick], kept)
    lent = lent.replace(
      group=index,
      context=rows.context[some],
      prior=rows.prior[some],
      wave=jnp.full(num, BORROWED, jnp.int32),
      extras={k: jnp.zeros_like(x) for k, x in rows.extras.items()},
    )
    merged = jax.tree.map(lambda a, b: a.at[place].set(b, mode="drop"), rows, lent)
    tokens = jnp.zeros(num, jnp.int32).at[place].set(lent.response_mask.sum(1), mode="drop")
    return merged, tokens

  def add(state, rows, chosen, step):
    del chosen, step
    buckets = len(state.head)
    new = rows.valid & (rows.correct > 0.5) & (rows.wave != BORROWED)
    bucket = rows.prompt_id % buckets
    count = groups.count(bucket, new, buckets).astype(jnp.int32)
    rank = groups.rank(bucket, new, buckets)
    stays = new & (rank >= (count - ways)[bucket])  # of more than a bucket holds the last
    slot = bucket * ways + (state.head[bucket] + rank) % ways
    slot = jnp.where(stays, slot, len(state.rows.valid))
    kept = jax.tree.map(
      lambda a, b: a.at[slot].set(b, mode="drop"), state.rows, rows.replace(extras={})
    )
    return SuccessState(kept, state.head + count), jnp.zeros_like(rows.valid)

  return Replay(init=init, held=None, resume=None, merge=merge, add=add, room=room)
