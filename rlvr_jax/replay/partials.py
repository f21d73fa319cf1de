"""What a round began and the batch did not take, kept until the next round goes on with it."""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, hosts
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import OPEN, Array, Replay, Rows

COUNTED = -1  # the wave of a row that came in closed
# What a row takes along; the rest is the seed's.
KEPT = (*rows_lib.BY_PLACE, "length", "status", "uid", "temperature")


class PartialState(flax.struct.PyTreeNode):
  rows: Rows  # [most,T], those that wait come first, the groups that have waited longest first; no extras
  waits: Array  # int32 [M], positive for the prompts of these, higher the longer they have waited
  over: Array  # int32 [], rows that found no room
  left: Array  # int32 [], rows whose prompt was drawn and that could not go on


def partials(*, most: int = 512, max_age: int = 0) -> Replay:
  """Keeps every row of a round that is not chosen, and puts it back when its prompt is drawn, which is next.

  A row comes back as it was: tokens, log-probs, entropies and version of each token, uid and temperature.
  With the uid its randomness goes on where it stopped: had the parameters stayed the same, it would end up
  with the tokens of a row that was never interrupted. One that had ended comes back closed, is verified
  again with the rest of its group, and is not told to beliefs again. The recipe has to choose whole groups,
  roll out one wave, and give each prompt the same number of rows at every step.

  Args:
    most: rows that may wait. A round of N rows that trains n of them needs N - n.
    max_age: steps; a row begins anew, with its uid, if in the next step a token of it would be older; 0:
      never. Tokens that are lost by it have been booked as banked, and do not come back as reused.

  `check` raises a ValueError once a row found no room, or could not go on because the prompt in the table is
  another one now, or has fewer rows than it had.
  """
  if most < 1 or max_age < 0:
    raise ValueError(f"need most >= 1 and max_age >= 0, got {most} and {max_age}")

  def init(table, num_places):
    none = jnp.zeros((), jnp.int32)
    waits = jnp.zeros(len(table.length), jnp.int32)
    return PartialState(rows_lib.blank(most, num_places), waits, none, none)

  def resume(state, rows):
    kept, place = state.rows, jnp.arange(most, dtype=jnp.int32)
    num = len(state.waits)
    # The rows of a prompt lie together, as they did in the round.
    first = (
      jnp.full(num, most, jnp.int32).at[kept.prompt_id].min(jnp.where(kept.valid, place, most))
    )
    size = groups.count(kept.prompt_id, kept.valid, num).astype(jnp.int32)
    rank = groups.rank(rows.group, rows.valid)
    back = rows.valid & (rows.wave == 0) & (rank < size[rows.prompt_id])
    old = jax.tree.map(lambda x: x[jnp.where(back, first[rows.prompt_id] + rank, 0)], kept)
    prompt = jnp.arange(rows.tokens.shape[1])[None] < rows.response_start[:, None]
    back &= (old.response_start == rows.response_start) & (
      (old.tokens == rows.tokens) | ~prompt
    ).all(1)
    took = _where(back, old, rows, KEPT)
    closed = back & (old.status != OPEN)
    took = took.replace(wave=jnp.where(closed, COUNTED, rows.wave))
    return took, jnp.where(back, old.response_mask.sum(1), 0)

  def add(state, rows, chosen, step):
    banked = rows.valid & ~chosen
    kept, index = state.rows, jnp.arange(most, dtype=jnp.int32)
    drawn = jnp.zeros(len(state.waits), bool).at[rows.prompt_id].max(rows.valid)
    same = (kept.uid[:, None] == rows.uid[None]).all(2) & rows.valid[None]
    left = kept.valid & drawn[kept.prompt_id] & ~same.any(1)
    stays = kept.valid & ~drawn[kept.prompt_id]
    order = jnp.argsort(~stays, stable=True)
    bank = jax.tree.map(lambda x: x[order], kept.replace(valid=stays))
    new = rows.replace(extras={}, valid=banked)
    place = jnp.where(banked, stays.sum() + jnp.cumsum(banked) - 1, most)
    bank = jax.tree.map(lambda a, b: a.at[place].set(b, mode="drop"), bank, new)
    if max_age:
      bank = _begin_anew(bank, bank.valid & (step + 1 - oldest(bank) > max_age))
    waits = jnp.where(bank.valid, most - index, 0)
    waits = jnp.zeros_like(state.waits).at[bank.prompt_id].max(waits)
    over = jnp.maximum(stays.sum() + banked.sum() - most, 0)
    return PartialState(bank, waits, over.astype(jnp.int32), left.sum().astype(jnp.int32)), banked

  def check(state):
    over, left = (int(x) for x in hosts.host((state.over, state.left)))
    if over:
      raise ValueError(
        f"no room for {over} rows that wait for the next step: raise `most` of partials from {most} to at "
        f"least {most + over}, or draw fewer prompts beyond those that are trained"
      )
    if left:
      raise ValueError(
        f"{left} rows of earlier steps could not go on: the table has other prompts than when they were "
        "begun, or gives them fewer rows; resume with the task and sizes of that run, or start a new one"
      )

  return Replay(
    init=init, held=lambda state: state.waits, resume=resume, merge=None, add=add, check=check
  )


def oldest(rows: Rows):
  """int32 [N]: the lowest version among the tokens of a row; the largest int32 if it has none."""
  none = jnp.iinfo(jnp.int32).max
  return jnp.where(rows.version >= 0, rows.version, none).min(1)


def _where(mask, a: Rows, b: Rows, names) -> Rows:
  """b, with the named fields of a where mask [N]."""
  pick = lambda x, y: jnp.where(mask.reshape(-1, *[1] * (x.ndim - 1)), x, y)
  return b.replace(**{name: pick(getattr(a, name), getattr(b, name)) for name in names})


def _begin_anew(rows: Rows, mask) -> Rows:
  """Rows without what they have of a response where mask [N]."""
  n, t = rows.tokens.shape
  prompt = jnp.arange(t)[None] < rows.response_start[:, None]
  empty = rows_lib.blank(n, t).replace(
    tokens=jnp.where(prompt, rows.tokens, 0),
    length=rows.response_start,
    status=jnp.full(n, OPEN, jnp.int32),
  )
  return _where(mask, empty, rows, (*rows_lib.BY_PLACE, "length", "status", "correct"))
