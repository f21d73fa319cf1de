"""The responses a prompt got when it was drawn last, as drafts of its next ones."""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import EOS, LENGTH, STOP, Array, Replay, places


class DraftState(flax.struct.PyTreeNode):
  """Kept responses, R = buckets * ways of them."""

  tokens: Array  # int32 [R,T], prompt included
  logprobs: Array  # float32 [R,T], under the law each was sampled from
  start: Array  # int32 [R]
  length: Array  # int32 [R]
  uid: Array  # uint32 [R,2]
  prompt_id: Array  # int32 [R]
  valid: Array  # bool [R]


def drafts(*, ways: int = 8, most: int = 4096, same_noise: bool = False) -> Replay:
  """Keeps the latest responses of each prompt; the k-th row of its next group comes in with the k-th of them.

  It comes in as a draft (see decode.speculative): whoever rolls out has to verify it. Drafts go to the
  first wave of a round. A prompt has a bucket of `ways` responses to itself if most / ways is at least the
  number of prompts; otherwise prompts of equal id modulo the number of buckets push each other out. A draft
  whose prompt has other tokens now is not used.

  Args:
    ways: responses kept of a prompt: rows of a group. More rows begin without a draft.
    most: responses kept in all, of 8 bytes a place; at least `ways`.
    same_noise: rows get the uid of their draft too, which the coupled verification needs.
  """
  if ways < 1 or most < ways:
    raise ValueError(f"need ways >= 1 and most >= ways, got {ways} and {most}")

  def init(table, num_places):
    num = min(len(table.length), most // ways) * ways
    i = jnp.zeros(num, jnp.int32)
    return DraftState(
      tokens=jnp.zeros((num, num_places), jnp.int32),
      logprobs=jnp.zeros((num, num_places), jnp.float32),
      start=i,
      length=i,
      uid=jnp.zeros((num, 2), jnp.uint32),
      prompt_id=i,
      valid=jnp.zeros(num, bool),
    )

  def resume(state, rows):
    bucket = rows.prompt_id % (len(state.valid) // ways)
    slot = bucket[:, None] * ways + jnp.arange(ways, dtype=jnp.int32)[None]
    fits = state.valid[slot] & (state.prompt_id[slot] == rows.prompt_id[:, None])
    rank = groups.rank(rows.group, rows.valid)
    mine = fits & (jnp.cumsum(fits, 1) - 1 == rank[:, None])
    pick = jnp.take_along_axis(slot, mine.argmax(1)[:, None], 1)[:, 0]
    old = jax.tree.map(lambda x: x[pick], state)
    prompt = places(rows.tokens) < rows.response_start[:, None]
    same = ((old.tokens == rows.tokens) | ~prompt).all(1) & (old.start == rows.response_start)
    back = rows.valid & (rows.wave == 0) & mine.any(1) & same
    put = lambda new, x: jnp.where(back.reshape(-1, *[1] * (x.ndim - 1)), new, x)
    rows = rows.replace(
      tokens=put(old.tokens, rows.tokens),
      behavior_logprobs=put(old.logprobs, rows.behavior_logprobs),
      length=put(old.length, rows.length),
      uid=put(old.uid, rows.uid) if same_noise else rows.uid,
    )
    return rows, jnp.zeros_like(rows.length)  # what is accepted comes back, and only then

  def add(state, rows, chosen, step):
    del chosen, step
    buckets = len(state.valid) // ways
    ended = (rows.status == EOS) | (rows.status == LENGTH) | (rows.status == STOP)
    new = rows.valid & (rows.wave >= 0) & ended & (rows.length > rows.response_start)
    bucket = rows.prompt_id % buckets
    rank = groups.rank(bucket, new, buckets)
    slot = jnp.where(new & (rank < ways), bucket * ways + rank, len(state.valid))
    renewed = groups.count(bucket, new, buckets) > 0
    inside = places(rows.tokens) < rows.length[:, None]
    kept = state.replace(valid=state.valid & ~jnp.repeat(renewed, ways))
    now = DraftState(
      tokens=jnp.where(inside, rows.tokens, 0),
      logprobs=rows.behavior_logprobs,
      start=rows.response_start,
      length=rows.length,
      uid=rows.uid,
      prompt_id=rows.prompt_id,
      valid=new,
    )
    kept = jax.tree.map(lambda a, b: a.at[slot].set(b, mode="drop"), kept, now)
    return kept, jnp.zeros_like(rows.valid)

  return Replay(init=init, held=None, resume=resume, merge=None, add=add)
