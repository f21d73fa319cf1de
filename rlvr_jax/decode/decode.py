"""Rows in, longer rows out: one jitted loop over slots that are refilled as rows finish.

A tick feeds each slot the token at its `fill` (the first place its cache does not hold yet) and, if that
was the row's last token, draws the next one. A fresh prompt, an interrupted rollout and a row that was
cut short are thus one case, and no logits are carried between ticks. What a row samples depends on its
uid, its tokens and the parameters alone: not on the number of slots, the order of the rows or the moment
of refill (exact in float32 on a CPU).
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core.types import EOS, ERROR, LENGTH, OPEN, Array, KVCache, Policy, Rows
from rlvr_jax.decode import logits as law


class DecodeCounts(flax.struct.PyTreeNode):
  """What one call did; int32."""

  prefilled: Array  # [N] prompt tokens computed, booked on the row that leads its context
  generated: Array  # [N] tokens drawn
  replayed: Array  # [N] response tokens that were fed again because the row came in with them
  ticks: Array  # [] steps of the loop


class DecodeState(flax.struct.PyTreeNode):
  rows: Rows
  slot_row: Array  # int32 [S], row in the slot; N: idle
  fill: Array  # int32 [S], places of the slot's cache that hold the row's tokens
  cache: KVCache  # [S,T]
  order: Array  # int32 [N], rows to run, open ones first
  head: Array  # int32 [], next in `order`
  num: Array  # int32 [], rows to run
  counts: DecodeCounts


def decode(
  policy: Policy,
  params,
  rows: Rows,
  *,
  version,
  eos_ids,
  slots: int,
  num_contexts: int,
  prompt_places: int,
  rule: law.Truncation | None = None,
):
  """Grows every open row until it ends, or reaches its limit.

  Args:
    policy, params: the model. Parameters are arguments: new ones never recompile.
    rows: [N,T]. Open valid rows are grown; the others are left as they are.
    version: int32 [], stamped on the tokens drawn.
    eos_ids: int32 [E], any of them ends a row and is kept as its last token; -1 matches nothing.
    slots: S, rows computed at a time. Fewer than N refills; more than N is N.
    num_contexts: `rows.context` lies in [0, num_contexts). Static.
    prompt_places: P; no prompt is longer. Static.
    rule: which tokens may be drawn.

  Returns:
    rows: grown, each with a status that says why it ended: EOS, LENGTH, or ERROR if its logits were not
      finite (nothing is appended then).
    counts: DecodeCounts.

  Raises:
    ValueError: when tracing, if the static sizes make no sense.
  """
  n, t = rows.tokens.shape
  if slots < 1 or num_contexts < 1:
    raise ValueError(f"decode needs slots >= 1 and num_contexts >= 1, got {slots}, {num_contexts}")
  if not 1 <= prompt_places <= t:
    raise ValueError(
      f"prompt_places must lie in [1, {t}] (the places of a row), got {prompt_places}"
    )
  slots = min(slots, n)
  rows = _close_the_full(rows, eos_ids)
  prompts, leader, prompt_length = _prefill(policy, params, rows, num_contexts, prompt_places)
  state = _start(policy, rows, slots, leader, prompt_length)
  admit = functools.partial(_admit, prompts)
  tick = functools.partial(_tick, policy, params, version, eos_ids, rule)
  state = admit(state)

  def body(state):
    if slots < n:  # with a slot for every row there is nothing left to admit
      ready = (state.head < state.num) & ~_live(state).all()
      state = jax.lax.cond(ready, admit, lambda s: s, state)
    return tick(state)

  state = jax.lax.while_loop(lambda s: (s.head < s.num) | _live(s).any(), body, state)
  return state.rows, state.counts


def _of(x, row):
  """x of the row in each slot; an idle slot reads the last row."""
  return x[jnp.minimum(row, len(x) - 1)]


def _live(state):
  """bool [S]: the slot holds a row that is not closed."""
  idle = state.slot_row >= len(state.rows.status)
  return ~idle & (_of(state.rows.status, state.slot_row) == OPEN)


def _is_eos(token, eos_ids):
  return (token[:, None] == eos_ids[None, :]).any(1)


def _limit(rows):
  """int32 [N]: no row outgrows its places, whatever its limit says."""
  return jnp.minimum(rows.limit, rows.tokens.shape[1])


def _close_the_full(rows, eos_ids):
  """Closes rows that come in open but already ended, at their limit, or without any token."""
  n = len(rows.length)
  last = rows.tokens[jnp.arange(n), jnp.maximum(rows.length - 1, 0)]
  ended = (rows.length > rows.response_start) & _is_eos(last, eos_ids)
  status = jnp.where(rows.length >= _limit(rows), LENGTH, OPEN)
  status = jnp.where(ended, EOS, status)
  status = jnp.where(rows.length < 1, ERROR, status)  # no token: nothing to condition on
  todo = (rows.status == OPEN) & rows.valid
  return rows.replace(status=jnp.where(todo, status, rows.status).astype(jnp.int32))


def _prefill(policy, params, rows, num_contexts, prompt_places):
  """Runs the model once over the prompt of every context that has an open row.

  Returns the cache [B,P], the row that leads each context [B] (N: none) and prompt lengths [B].
  """
  n = len(rows.status)
  todo = (rows.status == OPEN) & rows.valid
  index = jnp.where(todo, jnp.arange(n, dtype=jnp.int32), n)
  leader = jax.ops.segment_min(index, rows.context, num_contexts)
  leader = jnp.minimum(leader, n)  # an empty segment yields the largest integer
  tokens = _of(rows.tokens, leader)[:, :prompt_places]
  length = jnp.where(leader < n, _of(rows.response_start, leader), 0)
  position = jnp.broadcast_to(jnp.arange(prompt_places, dtype=jnp.int32)[None], tokens.shape)
  cache = policy.init_cache(num_contexts, prompt_places)
  _, cache = policy.hidden(params, tokens, position, position < length[:, None], cache)
  return cache, leader, length


def _start(policy, rows, slots, leader, prompt_length):
  n, t = rows.tokens.shape
  todo = (rows.status == OPEN) & rows.valid
  zero = jnp.zeros(n, jnp.int32)
  counts = DecodeCounts(
    prefilled=zero.at[leader].add(prompt_length, mode="drop"),
    generated=zero,
    replayed=zero,
    ticks=jnp.zeros((), jnp.int32),
  )
  return DecodeState(
    rows=rows,
    slot_row=jnp.full(slots, n, jnp.int32),
    fill=jnp.zeros(slots, jnp.int32),
    cache=policy.init_cache(slots, t),
    order=jnp.argsort(~todo, stable=True).astype(jnp.int32),
    head=jnp.zeros((), jnp.int32),
    num=todo.sum().astype(jnp.int32),
    counts=counts,
  )


def _admit(prompts, state):
  """Gives free slots the next rows of the queue: their prompt's cache is copied in."""
  rows, n = state.rows, len(state.rows.status)
  free = ~_live(state)
  index = state.head + jnp.cumsum(free) - 1
  take = free & (index < state.num)
  row = jnp.where(take, _of(state.order, index), jnp.where(free, n, state.slot_row))
  context = _of(rows.context, row)
  # The last token of the prompt is fed again by the first tick, which needs its hidden state.
  start = jnp.minimum(_of(rows.response_start, row), _of(rows.length, row)) - 1
  fill = jnp.where(take, start, state.fill)
  places = prompts.places

  def copy(own, prompt, axis):
    old = jax.lax.slice_in_dim(own, 0, places, axis=axis)
    block = jnp.where(take[:, None, None, None], prompt[context], old)
    return jax.lax.dynamic_update_slice_in_dim(own, block, 0, axis)

  cache = KVCache(
    k=tuple(copy(own, prompt, 3) for own, prompt in zip(state.cache.k, prompts.k, strict=True)),
    v=tuple(copy(own, prompt, 2) for own, prompt in zip(state.cache.v, prompts.v, strict=True)),
  )
  head = state.head + take.sum().astype(jnp.int32)
  return state.replace(slot_row=row.astype(jnp.int32), fill=fill, cache=cache, head=head)


def _tick(policy, params, version, eos_ids, rule, state):
  rows, row, n = state.rows, state.slot_row, len(state.rows.status)
  live = _live(state)
  length = _of(rows.length, row)
  token = _of(rows.tokens, row)[jnp.arange(len(row)), state.fill]
  hidden, cache = policy.hidden(
    params, token[:, None], state.fill[:, None], live[:, None], state.cache
  )
  raw = policy.logits(params, hidden[:, 0])
  full = law.temper(raw, _of(rows.temperature, row))
  draws = live & (state.fill + 1 == length)
  good = jnp.isfinite(raw).all(1)
  z = law.truncate(full, rule)
  greedy = _of(rows.temperature, row) <= 0
  new = law.draw(_of(rows.uid, row), length, z)
  new = jnp.where(greedy, jnp.argmax(z, 1), new).astype(jnp.int32)

  writes = draws & good
  target = jnp.where(writes, row, n)
  put = lambda x, value: x.at[target, length].set(value, mode="drop")
  ends = _is_eos(new, eos_ids)
  status = jnp.where(length + 1 >= _of(_limit(rows), row), LENGTH, OPEN)
  status = jnp.where(good, jnp.where(ends, EOS, status), ERROR).astype(jnp.int32)
  rows = rows.replace(
    tokens=put(rows.tokens, new),
    behavior_logprobs=put(rows.behavior_logprobs, law.logprob(z, new)),
    full_logprobs=put(rows.full_logprobs, law.logprob(full, new)),
    entropy=put(rows.entropy, law.entropy(full)),
    version=put(rows.version, jnp.broadcast_to(version, new.shape)),
    response_mask=put(rows.response_mask, jnp.ones(new.shape, bool)),
    length=rows.length.at[target].add(1, mode="drop"),
    status=rows.status.at[jnp.where(draws, row, n)].set(status, mode="drop"),
  )
  again = live & (state.fill >= _of(rows.response_start, row)) & ~draws
  counts = state.counts.replace(
    generated=state.counts.generated.at[target].add(1, mode="drop"),
    replayed=state.counts.replayed.at[jnp.where(again, row, n)].add(1, mode="drop"),
    ticks=state.counts.ticks + 1,
  )
  fill = jnp.where(live, state.fill + 1, state.fill)
  return state.replace(rows=rows, fill=fill, cache=cache, counts=counts)
