"""Rows in, longer rows out: slots that are refilled as rows finish, and shrink with the work.

A tick feeds each slot the token at its `fill` (the first place its cache does not hold yet) and, if that
was the row's last token, draws the next one. A fresh prompt, an interrupted rollout and a row that was
cut short are thus one case, and no logits are carried between ticks. What a row samples depends on its
uid, its tokens and the parameters alone: not on the number of slots, the order of the rows or the moment
of refill (exact in float32 on a CPU).

A segment is one jitted loop of ticks. It runs until the work is done, or until it pays to go on with
other sizes: with fewer slots, when the queue is empty and few rows are left, or with more cache places,
when a row has filled those there are. The host then re-enters the loop compiled for those sizes. It reads
two numbers a segment, nothing a token.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core.types import EOS, ERROR, LENGTH, OPEN, Array, KVCache, Policy, Rows
from rlvr_jax.decode import logits as law

SHRINK = 4  # slots are cut to a quarter once a quarter suffices
MIN_SLOTS = 16  # fewer cost about the same: a tick then only streams the weights
PLACES = 256  # cache places to begin with; doubled when a row fills them
PREFILL = 128  # prompt tokens computed at a time


class DecodeCounts(flax.struct.PyTreeNode):
  """What one call did; int32."""

  prefilled: Array  # [N] prompt tokens computed, booked on the row that leads its context
  generated: Array  # [N] tokens drawn
  replayed: Array  # [N] response tokens that were fed again because the row came in with them
  ticks: Array  # [] steps of the loop
  slot_ticks: Array  # [] slots computed, summed over ticks


class DecodeState(flax.struct.PyTreeNode):
  rows: Rows
  slot_row: Array  # int32 [S], row in the slot; N: idle
  fill: Array  # int32 [S], places of the slot's cache that hold the row's tokens
  cache: KVCache  # [S,C]
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
  """Grows every open row until it ends, or reaches its limit. Host code over jitted parts.

  Args:
    policy, params: the model. Parameters are arguments: new ones never recompile.
    rows: [N,T]. Open valid rows are grown; the others are left as they are.
    version: int32 [], stamped on the tokens drawn.
    eos_ids: int32 [E], any of them ends a row and is kept as its last token; -1 matches nothing.
    slots: S, rows computed at a time. Fewer than N refills; more than N is N.
    num_contexts: `rows.context` lies in [0, num_contexts).
    prompt_places: P; no prompt is longer.
    rule: which tokens may be drawn; scalars, or one number a row [N].

  Returns:
    rows: grown, each with a status that says why it ended: EOS, LENGTH, or ERROR if its logits were not
      finite (nothing is appended then).
    counts: DecodeCounts.

  Raises:
    ValueError: if the sizes make no sense.
  """
  n, t = rows.tokens.shape
  if slots < 1 or num_contexts < 1:
    raise ValueError(f"decode needs slots >= 1 and num_contexts >= 1, got {slots}, {num_contexts}")
  if not 1 <= prompt_places <= t:
    raise ValueError(
      f"prompt_places must lie in [1, {t}] (the places of a row), got {prompt_places}"
    )
  parts = parts_of(policy)
  slots, places = min(slots, n), min(max(PLACES, prompt_places), t)
  version, eos_ids = jnp.asarray(version, jnp.int32), jnp.asarray(eos_ids, jnp.int32)
  parts.warm(params, rows, version, eos_ids, rule, slots, places, num_contexts, prompt_places)
  prompts, state = parts.start(params, rows, eos_ids, slots, places, num_contexts, prompt_places)
  while True:
    state, report = parts.segment(params, prompts, state, version, eos_ids, rule)
    filled, done = jax.device_get(report).tolist()
    if done:
      return state.rows, state.counts
    slots, places = len(state.slot_row), state.cache.places
    if filled >= places:
      state = parts.resize(state, slots, min(2 * places, t))
    else:
      prompts = None  # slots shrink when the queue is empty
      state = parts.resize(state, _smaller(slots), places)


def _smaller(slots):
  """The next size below, if there is one."""
  return max(-(-slots // SHRINK), min(MIN_SLOTS, slots))


class _Model(NamedTuple):
  """What decoding needs of a Policy."""

  hidden: Any
  logits: Any
  init_cache: Any


class Parts(NamedTuple):
  """The jitted parts of `decode` for one model; each is compiled once for each set of sizes."""

  warm: Any
  start: Any
  segment: Any
  resize: Any


def parts_of(policy: Policy) -> Parts:
  """The parts for a policy; equal policies share them, and so what was compiled."""
  return _parts(policy.hidden, policy.logits, policy.init_cache)


@functools.cache
def _parts(hidden, logits, init_cache) -> Parts:
  policy: Any = _Model(hidden, logits, init_cache)

  @functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
  def start(params, rows, eos_ids, slots, places, num_contexts, prompt_places):
    rows = _close_the_full(rows, eos_ids)
    prompts, leader, length = _prefill(policy, params, rows, num_contexts, prompt_places)
    state = _admit(prompts, _start(policy, rows, slots, places, leader, length))
    # With a slot for every row there is nothing to admit later.
    return (None if slots == len(rows.length) else prompts), state

  @functools.partial(jax.jit, donate_argnums=2)
  def segment(params, prompts, state, version, eos_ids, rule):
    return _segment(policy, params, prompts, state, version, eos_ids, rule)

  @functools.partial(jax.jit, static_argnums=(1, 2))  # other shapes: donation could not help
  def resize(state, slots, places):
    return _resize(state, slots, places)

  warmed = set()

  def warm(params, rows, version, eos_ids, rule, slots, places, num_contexts, prompt_places):
    """Compiles the smaller sizes at once: first needed at step k, they would compile at step k."""
    sizes = jax.tree.structure(rule), rows.tokens.shape, slots, places, num_contexts, prompt_places
    if sizes in warmed:
      return
    warmed.add(sizes)
    idle = rows.replace(valid=jnp.zeros_like(rows.valid))
    prompts, state = start(params, idle, eos_ids, slots, places, num_contexts, prompt_places)
    if prompts is not None:
      state, _ = segment(params, prompts, state, version, eos_ids, rule)
    while _smaller(slots) < slots:
      slots = _smaller(slots)
      state = resize(state, slots, places)
      state, _ = segment(params, None, state, version, eos_ids, rule)

  return Parts(warm, start, segment, resize)


def _segment(policy, params, prompts, state, version, eos_ids, rule):
  """Ticks until done or until other sizes are better.

  Returns the state, and int32 [2]: places in use, whether all is done.
  """
  t = state.rows.tokens.shape[1]
  slots, places = len(state.slot_row), state.cache.places
  admit = functools.partial(_admit, prompts)
  tick = functools.partial(_tick, policy, params, version, eos_ids, rule)

  def work(state):
    return (state.head < state.num) | _live(state).any()

  def filled(state):
    return jnp.where(_live(state), state.fill, 0).max()

  def go_on(state):
    on = work(state)
    if places < t:
      on &= filled(state) < places
    if _smaller(slots) < slots:
      on &= (state.head < state.num) | (_live(state).sum() > _smaller(slots))
    return on

  def refill(state):
    ready = (state.head < state.num) & ~_live(state).all()
    return tick(jax.lax.cond(ready, admit, lambda s: s, state))

  state = jax.lax.while_loop(go_on, tick if prompts is None else refill, state)
  report = jnp.stack([filled(state), ~work(state)]).astype(jnp.int32)
  return state, report


def _resize(state, slots, places):
  """The state with fewer slots, live rows first, or with more cache places."""
  more = places - state.cache.places
  if more:
    grow = lambda x, axis: jnp.pad(x, [(0, more if a == axis else 0) for a in range(4)])
    cache = KVCache(
      k=tuple(grow(k, 3) for k in state.cache.k), v=tuple(grow(v, 2) for v in state.cache.v)
    )
    return state.replace(cache=cache)
  if slots == len(state.slot_row):
    return state
  keep = jnp.argsort(~_live(state), stable=True)[:slots]
  cut = lambda x: x[keep]
  return state.replace(
    slot_row=cut(state.slot_row), fill=cut(state.fill), cache=jax.tree.map(cut, state.cache)
  )


def _of(x, row):
  """x of the row in each slot; an idle slot reads the last row."""
  return x[jnp.minimum(row, len(x) - 1)]


def _rule_of(rule, row):
  """The rule of the row in each slot."""
  return jax.tree.map(lambda x: _of(x, row) if jnp.ndim(x) else x, rule)


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
  cache = policy.init_cache(num_contexts, prompt_places)
  width = min(PREFILL, prompt_places)
  pad = -prompt_places % width
  tokens = jnp.pad(tokens, ((0, 0), (0, pad)))

  def chunk(carry):
    first, cache = carry
    these = jax.lax.dynamic_slice_in_dim(tokens, first, width, 1)
    position = jnp.broadcast_to(first + jnp.arange(width, dtype=jnp.int32)[None], these.shape)
    _, cache = policy.hidden(params, these, position, position < length[:, None], cache)
    return first + width, cache

  # As many chunks as the longest prompt here needs: none at all when sizes are only warmed.
  start = jnp.zeros((), jnp.int32), cache
  _, cache = jax.lax.while_loop(lambda c: c[0] < length.max(), chunk, start)
  return cache, leader, length


def _start(policy, rows, slots, places, leader, prompt_length):
  n = len(rows.length)
  todo = (rows.status == OPEN) & rows.valid
  zero = jnp.zeros(n, jnp.int32)
  counts = DecodeCounts(
    prefilled=zero.at[leader].add(prompt_length, mode="drop"),
    generated=zero,
    replayed=zero,
    ticks=jnp.zeros((), jnp.int32),
    slot_ticks=jnp.zeros((), jnp.int32),
  )
  return DecodeState(
    rows=rows,
    slot_row=jnp.full(slots, n, jnp.int32),
    fill=jnp.zeros(slots, jnp.int32),
    cache=policy.init_cache(slots, places),
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
  z = law.truncate(full, _rule_of(rule, row))
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
    slot_ticks=state.counts.slot_ticks + len(row),
  )
  fill = jnp.where(live, state.fill + 1, state.fill)
  return state.replace(rows=rows, fill=fill, cache=cache, counts=counts)
