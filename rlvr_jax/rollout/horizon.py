"""Whole responses, and the same ones cut short and asked for their answer at once."""

import functools

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import OPEN, places
from rlvr_jax.decode import speculative as drafts
from rlvr_jax.rollout.linear import linear


def horizon(
  *, ratios: tuple[float, ...] = (0.25, 0.5, 0.75), cue: tuple[int, ...] = (), tail: int = 50,
  train_cue: bool = True, slots: int = 0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
):  # fmt: skip
  """Of every 1 + len(ratios) rows of a group the first is rolled out; the others fork from it.

  A fork keeps floor(ratio * length) response tokens, at least one where there is one before the end token;
  then come the cue, which nobody draws, and up to `tail` tokens of the policy's own.

  Args:
    ratios: where responses are cut, each in (0, 1).
    cue: token ids that ask for the answer, as of "I know enough. The answer is" in the policy's own format;
      none: the policy just has to end soon.
    tail: tokens after the cue; positive.
    train_cue: the cue is part of what is trained, with the log-probs that the policy gives it; this is how it
      learns to stop. False: of a fork the tail alone, beside the prefix.
    slots, top_k, top_p, min_p: see rollout.linear.

  Returns:
    rollout, as rollout.linear has it. Cues that are trained count as generated.

  Source: JET, arXiv 2509.23392.
  """
  if not all(0 < r < 1 for r in ratios):
    raise ValueError(f"ratios must lie in (0, 1), got {ratios}")
  ratios, cue = tuple(ratios), tuple(cue)
  if tail < 1:
    raise ValueError(f"tail must be positive, got {tail}")
  grow = linear(slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)

  def rollout(policy, params, rows, version, eos_ids, *, prompt_places, **sizes):
    most = rows.tokens.shape[1] - prompt_places
    last = max((int(r * most) for r in ratios), default=0)
    if ratios and last + len(cue) >= most:
      raise ValueError(
        f"a response of {most} tokens that is cut at {last} has no room for a cue of {len(cue)} and an "
        "answer: raise max_new_tokens, or lower ratios"
      )

    sizes |= {"prompt_places": prompt_places}
    valid = rows.valid
    source, ratio = _plan(rows, ratios)
    first = rows.replace(valid=valid & (source < 0))
    whole, counts = grow(policy, params, first, version, eos_ids, **sizes)
    rows = _cut(whole.replace(valid=valid), source, ratio, jnp.asarray(cue, jnp.int32), tail)
    if cue and train_cue and ratios:
      rows, seen = drafts.verify(
        policy, params, rows, version=version, eos_ids=jnp.full(1, -1, jnp.int32),
        log_lenience=jnp.inf,
      )  # fmt: skip
      counts = counts.replace(
        generated=counts.generated + seen.accepted, prefilled=counts.prefilled + seen.computed
      )
    rows, more = grow(policy, params, rows, version, eos_ids, **sizes)
    return rows, jax.tree.map(jnp.add, counts, more)

  return rollout


@functools.partial(jax.jit, static_argnums=1)
def _plan(rows, ratios):
  """(int32 [N] the row that row n is a cut of, -1: it is whole; float32 [N] where it is cut)."""
  turn = 1 + len(ratios)
  rank = groups.rank(rows.group, rows.valid)
  kind = jnp.where(rows.valid, rank % turn, 0)
  same = (rows.group[:, None] == rows.group[None]) & rows.valid[None]
  first = same & (rank[None] == (rank - kind)[:, None])
  source = jnp.where(kind > 0, first.argmax(1), -1).astype(jnp.int32)
  return source, jnp.asarray((1.0, *ratios), jnp.float32)[kind]


@jax.jit
def _cut(rows, source, ratio, cue, tail):
  """The cuts of finished rows, open, with the cue as a draft."""
  parent = jnp.maximum(source, 0)
  child, start = source >= 0, rows.response_start[parent]
  length = rows.length[parent] - start
  kept = jnp.floor(ratio * length.astype(jnp.float32) + 1e-4).astype(jnp.int32)
  kept = jnp.minimum(jnp.maximum(kept, 1), jnp.maximum(length - 1, 0))  # never the end token
  new = rows_lib.fork(rows, source, start + kept, rows.uid)
  end = new.length + len(cue)
  at = places(rows.tokens)
  inside = child[:, None] & (at >= new.length[:, None]) & (at < end[:, None])
  if len(cue):
    text = cue[jnp.clip(at - new.length[:, None], 0, len(cue) - 1)]
    new = new.replace(tokens=jnp.where(inside, text, new.tokens))
  limit = jnp.minimum(end + tail, new.limit)
  return new.replace(
    length=jnp.where(child, end, new.length),
    limit=jnp.where(child, limit, new.limit),
    status=jnp.where(child, OPEN, new.status).astype(jnp.int32),
  )
