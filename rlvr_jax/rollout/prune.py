"""Rollouts of which some are cut off on the way, so that those that go on are fewer and better balanced."""

import functools

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, keys, survival, traits
from rlvr_jax.core.types import KILLED, LENGTH, OPEN
from rlvr_jax.decode import reading
from rlvr_jax.rollout.linear import linear


def prune(
  *, keep: float = 0.5, share: float = 0.5, detect: int = 512, features: int = 256, slots: int = 0,
  top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
):  # fmt: skip
  """Rolls out `detect` tokens, lets ceil(keep * size) rows of each group go on, and rolls these out.

  Which ones is drawn, so that `share` of them are expected to be right (core.survival.tilted); the hidden
  state of the last token says how likely each one is. Rows that have ended by then always stay, and count as
  places taken. What is cut off is booked as pruned; the next rows of the queue take its slots.

  Args:
    keep: of the rows of a group, in (0, 1].
    share: of right rows, in [0, 1].
    detect: response tokens; positive. Rows of a lower limit are not cut off.
    features: numbers that the head sees of a hidden state, through a random matrix.
    slots, top_k, top_p, min_p: see rollout.linear.

  Returns:
    rollout, as rollout.linear has it, which also takes knobs, those of control.quality. Without knobs it
    cuts off nothing.

  Source: ARRoL, arXiv 2603.24840.
  """
  if not 0 < keep <= 1 or not 0 <= share <= 1:
    raise ValueError(f"need keep in (0, 1] and share in [0, 1], got {keep} and {share}")
  if min(detect, features) < 1:
    raise ValueError(f"need detect and features >= 1, got {detect} and {features}")
  whole = linear(slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)

  def rollout(policy, params, rows, version, eos_ids, *, knobs=None, **sizes):
    grow = lambda rows: whole(policy, params, rows, version, eos_ids, **sizes)
    if knobs is None:
      return grow(rows)
    limit = rows.limit
    early = jnp.minimum(limit, rows.response_start + detect)
    rows, counts = grow(rows.replace(limit=early))
    read, judge = _parts(policy.hidden, policy.init_cache, keep, share, features)
    rows, rest = _reopen(rows, limit)
    rows, cut = judge(rows, rest, read(params, rows), survival.Quality.of_knobs(knobs))
    rows, more = grow(rows)
    counts = jax.tree.map(jnp.add, counts, more)
    return rows, counts.replace(pruned=counts.pruned + jnp.where(cut, counts.generated, 0))

  extras = {"detected": (features,), "inclusion": ()}
  return traits.declare(rollout, reads_knobs=True, extras=extras)


@jax.jit
def _reopen(rows, limit):
  """Rows with their own limits, those that were stopped on the way open; which ones these are."""
  rest = rows.valid & (rows.status == LENGTH) & (rows.length < limit)
  status = jnp.where(rest, OPEN, rows.status).astype(jnp.int32)
  return rows.replace(limit=limit, status=status), rest


@functools.cache
def _parts(hidden, init_cache, keep, share, features):
  @jax.jit
  def read(params, rows):
    wanted = rows.valid & (rows.length > 0)
    states = reading.last_hidden(hidden, init_cache, params, rows, wanted)
    return survival.project(states, features)

  @jax.jit
  def judge(rows, rest, seen, quality):
    group, ended = rows.group, rows.valid & ~rest
    score = jax.nn.sigmoid(survival.logit(quality.head, seen))
    p = survival.posterior(quality.right, quality.seen, score)
    places = jnp.ceil(keep * groups.count(group, rows.valid) - 1e-4)
    left = jnp.maximum(places - groups.count(group, ended), 0.0)
    wants = (share * places - groups.total(p, group, ended)) / jnp.maximum(left, 1.0)
    chance = survival.tilted(p, group, rest, left, wants)
    first = jax.ops.segment_min(jnp.arange(len(group), dtype=jnp.int32), group, len(group))
    u = _uniforms(rows.uid[first[group]])
    acts = quality.acts > 0
    stays = survival.systematic(chance, group, rest, u) | ~acts
    cut = rest & ~stays
    chance = jnp.where(acts, chance, 1.0)
    return rows.replace(
      valid=rows.valid & ~cut,
      status=jnp.where(cut, KILLED, rows.status).astype(jnp.int32),
      extras=rows.extras
      | {
        "detected": jnp.where(rest[:, None], seen, 0.0),
        "inclusion": jnp.where(rest & stays, chance, 0.0),
      },
    ), cut

  return read, judge


def _uniforms(uid):
  """float32 [N]: numbers of groups, from the uid [N,2] of their first rows."""
  one = lambda data: jax.random.uniform(keys.stream(jax.random.wrap_key_data(data), "prune"))
  return jax.vmap(one)(uid)
