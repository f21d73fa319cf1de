"""Rows in, longer rows out: slots that are refilled as rows finish, and shrink with the work.

A tick feeds each slot the token at its `fill` (the first place its cache does not hold yet) and, if that
was the row's last token, draws the next one. A fresh prompt, an interrupted rollout and a row that was
cut short are thus one case, and no logits are carried between ticks. What a row samples depends on its
uid, its tokens and the parameters alone: not on the number of slots, the order of the rows or the moment
of refill (exact in float32 on a CPU).

A prompt is computed once and kept once, however many rows continue it; a slot's own cache holds what
comes after (`core.types.Shared`). Giving a slot to another row therefore moves a few integers.

A segment is one jitted loop of ticks. It runs until the work is done, or until it pays to go on with
other sizes: with fewer slots, when the queue is empty and few rows are left, or with more cache places,
when a row has filled those there are. The host then re-enters the loop compiled for those sizes. It reads
two numbers a segment, nothing a token.

Where rows lie on several data shards, each has its own queue, slots, prompts and loop (`decode.shards`), and
meets the others between segments only. There slots do not shrink, as shards would at different times, and
cache places grow for all once one needs it.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.types import (
  EOS,
  ERROR,
  LENGTH,
  OPEN,
  STOP,
  Array,
  KVCache,
  Policy,
  Rows,
  Shared,
)
from rlvr_jax.decode import logits as law
from rlvr_jax.decode import shards
from rlvr_jax.decode.stops import Stops

SHRINK = 4  # slots are cut to a quarter once a quarter suffices
MIN_SLOTS = 16  # fewer cost about the same: a tick then only streams the weights
PLACES = 64  # places of a slot's own cache to begin with; doubled when a row fills them
PREFILL = 256  # prompt tokens computed at a time, over some prompts
CHUNK = 16  # of those, a prompt has at least so many
TILE = 16  # slots that attend to their prompts together
TICKS = 16  # of a segment, where shards must agree on when to leave off
BEHIND = 16  # tokens of a row fed one a tick; what is further behind is caught up with first
LANES = 4  # rows that catch up side by side


class DecodeCounts(flax.struct.PyTreeNode):
  """What one call did; int32. With D > 1 shards, ticks are those of the longest loop."""

  prefilled: Array  # [N] prompt tokens computed, booked on the row that leads its context
  generated: Array  # [N] tokens drawn
  replayed: Array  # [N] response tokens that were fed again because the row came in with them
  pruned: Array  # [N] of the tokens drawn, those of branches that were cut off (decode.tree)
  probed: Array  # [N] of the tokens drawn, those of look-aheads (decode.tree)
  ticks: Array  # [] steps of the loop
  slot_ticks: Array  # [] slots computed, summed over ticks
  drafted: Array | None = None  # [N] tokens of drafts (decode.speculative); None: there were none
  accepted: Array | None = None  # [N] of these, the tokens that were kept


class Tiles(flax.struct.PyTreeNode):
  """Which slots attend to which prompts together; see core.types.Shared."""

  slot: Array  # int32 [tiles,X,W]
  prompt: Array  # int32 [tiles]
  num: Array  # int32 []


class Slots(flax.struct.PyTreeNode):
  """What each slot is at, and the queue."""

  row: Array  # int32 [S], row in the slot; N: idle
  start: Array  # int32 [S], places of the row that its prompt's cache holds
  fill: Array  # int32 [S], places of the row that are in a cache, the prompt's or the slot's own
  stop: Array  # int32 [S], state of the stop strings' automaton after those
  head: Array  # int32 [], next in the order of rows to run
  tiles: Tiles


class DecodeState(flax.struct.PyTreeNode):
  rows: Rows
  slots: Slots
  cache: KVCache  # [S,C], place c holds position start + c
  order: Array  # int32 [N], rows to run, open ones first
  num: Array  # int32 [], rows to run
  counts: DecodeCounts
  seen: Any = ()  # what a Watch keeps


class Watch(NamedTuple):
  """Something that looks on while rows grow, and says when it wants to act between two segments."""

  pause: Any  # (rows, seen) -> bool []
  see: Any = (
    None  # (seen, row [S], place [S], law [S,V], token [S]) -> seen, of each draw; row N: none
  )


class Report(NamedTuple):
  """What the host learns of a segment; numbers, int32 [] each."""

  filled: Array  # places of the cache that rows in slots need
  done: Array  # whether all is done
  behind: Array  # whether a row has tokens to catch up with
  paused: Array  # whether the watch wants to act
  live: Array  # slots in use


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
  stops: Stops | None = None,
):
  """Grows every open row until it ends, or reaches its limit. Host code over jitted parts.

  Args:
    policy, params: the model. Parameters are arguments: new ones never recompile.
    rows: [N,T]. Open valid rows are grown; the others are left as they are. If `tokens` lie along mesh
      axes of D > 1 devices, so must the others, and each shard grows the N / D rows it holds. Params may
      lie along these axes too: they are gathered once a call.
    version: int32 [], stamped on the tokens drawn.
    eos_ids: int32 [E], any of them ends a row and is kept as its last token; -1 matches nothing.
    slots: S, rows computed at a time, over all shards: each has S // D, at least 1. Fewer than N refills;
      more than N is N.
    num_contexts: `rows.context` lies in [0, num_contexts).
    prompt_places: P; no prompt is longer.
    rule: which tokens may be drawn; scalars, or one number a row [N].
    stops: strings that end a row, and when to leave off before all rows have ended. With D > 1 that is
      looked at every 16 ticks, so that up to 16 more are done.

  Returns:
    rows: grown, each with a status that says why it ended: EOS, STOP, LENGTH, or ERROR if its logits
      were not finite, nothing may be drawn (in both cases nothing is appended), or a token of it lies
      outside the vocabulary. OPEN rows are left only where `stops` said to leave off.
    counts: DecodeCounts.

  Raises:
    ValueError: if the sizes make no sense, or D does not divide N.
  """
  n, t = rows.tokens.shape
  if slots < 1 or num_contexts < 1:
    raise ValueError(f"decode needs slots >= 1 and num_contexts >= 1, got {slots}, {num_contexts}")
  if not 1 <= prompt_places <= t:
    raise ValueError(
      f"prompt_places must lie in [1, {t}] (the places of a row), got {prompt_places}"
    )
  if n == 0:
    raise ValueError("decode needs at least one row; padding rows are not valid")
  for x in jax.tree.leaves(rule):
    if jnp.ndim(x) and len(x) != n:
      raise ValueError(f"the rule has {len(x)} numbers, one a row, and there are {n} rows")
  split, stops = shards.split_of(rows.tokens), stops or Stops()
  parts = parts_of(policy, split)
  version, eos_ids = jnp.asarray(version, jnp.int32), jnp.asarray(eos_ids, jnp.int32)
  law_of = version, eos_ids, rule, stops
  sizes = min(slots, n), min(PLACES, t), num_contexts, prompt_places
  run = _decode_in_one if split is None else functools.partial(_decode_in_parts, split)
  return run(parts, params, rows, law_of, *sizes)


def _decode_in_one(parts, params, rows, law_of, slots, places, num_contexts, prompt_places):
  parts.warm(params, rows, law_of, slots, places, num_contexts, prompt_places)
  prompts, state = parts.start(params, rows, law_of[1], slots, places, num_contexts, prompt_places)
  while True:
    state, report = parts.segment(params, prompts, state, *law_of)
    report = jax.device_get(report)
    if report.done:
      return state.rows.replace(context=rows.context), state.counts
    slots, places = len(state.slots.row), state.cache.places
    if report.filled >= places:
      places = enough(places, report.filled, rows.tokens.shape[1])
      state = parts.resize(state, num_contexts, slots, places)
    elif report.behind:
      state = parts.catch_up(params, prompts, state, law_of[3])
    else:
      state = parts.resize(state, num_contexts, _smaller(slots), places)


def _decode_in_parts(
  split, parts, params, rows, law_of, slots, places, num_contexts, prompt_places
):
  version, eos_ids, rule, stops = law_of
  n, t = rows.tokens.shape
  slots = min(max(slots // split.num, 1), n // split.num)
  params = shards.whole(split, params)
  part, rule = parts.apart(rows, rule)
  prompts, state = parts.start(params, part, eos_ids, slots, places, num_contexts, prompt_places)
  in_common = stops.groups is not None or stops.tokens is not None
  own = stops.replace(groups=None, tokens=None)
  while True:
    # A shard whose places are full waits for the others: no longer than it took to fill them.
    ticks = TICKS if in_common else places if places < t else np.iinfo(np.int32).max
    state, report = parts.segment(
      params, prompts, state, version, eos_ids, rule, own, jnp.asarray(ticks, jnp.int32)
    )
    report = jax.device_get(parts.agree(report, state, stops))
    if report.done:
      grown, of_rows, totals = parts.join(state)
      return grown.replace(context=rows.context), DecodeCounts(*of_rows, *totals)
    if report.filled >= places:
      places = enough(places, report.filled, t)
      state = parts.resize(state, num_contexts, slots, places)
    elif report.behind:
      state = parts.catch_up(params, prompts, state, own)


def enough(places, filled, most):
  """Cache places, doubled until `filled` leave one free."""
  while places <= filled and places < most:
    places = min(2 * places, most)
  return places


def _smaller(slots):
  """The next size below, if there is one."""
  return max(-(-slots // SHRINK), min(MIN_SLOTS, slots))


class _Model(NamedTuple):
  """What decoding needs of a Policy."""

  hidden: Any
  logits: Any
  init_cache: Any
  vocab_size: int


class Parts(NamedTuple):
  """The jitted parts of `decode` for one model; each is compiled once for each set of sizes."""

  warm: Any
  start: Any
  segment: Any
  resize: Any
  catch_up: Any
  seat: Any  # for trees
  # For rows on several shards only.
  apart: Any
  agree: Any
  join: Any


def parts_of(
  policy: Policy, split: shards.Split | None = None, watch: Watch | None = None
) -> Parts:
  """The parts for a policy; equal policies share them, and so what was compiled.

  With a watch, `seen` of the state is what it keeps. With a split, rows, rule, prompts and state have the
  leading axis of `decode.shards`.
  """
  logits = shards.whole_inside(policy.logits) if split else policy.logits
  model = _Model(policy.hidden, logits, policy.init_cache, policy.vocab_size)
  return _parts(model, split, watch)


@functools.cache
def _parts(policy: Any, split: shards.Split | None, watch: Watch | None) -> Parts:
  each = functools.partial(shards.each, split)

  @functools.partial(jax.jit, donate_argnums=2)
  def segment(params, prompts, state, version, eos_ids, rule, stops, ticks=None):
    one = lambda *args: _segment(policy, *args, shrinks=split is None, watch=watch)
    return each(one, 5)(params, version, eos_ids, stops, ticks, prompts, state, rule)

  if watch is not None:  # the other parts do not look at it
    return _parts(policy, split, None)._replace(segment=segment)
  num_shards = split.num if split else 1

  @functools.partial(jax.jit, static_argnums=(3, 4, 5, 6))
  def start(params, rows, eos_ids, slots, places, num_contexts, prompt_places):
    def one(params, eos_ids, rows):
      rows = _close_the_full(rows, eos_ids, policy.vocab_size)
      rows, num_used = _number_contexts(rows, num_contexts)
      num = min(num_contexts, len(rows.status))
      share = -(-num_contexts // num_shards)
      prompts, leader, length = _prefill(policy, params, rows, num, num_used, share, prompt_places)
      average = -(-len(rows.status) * num_shards // num_contexts)
      return prompts, _start(policy, rows, slots, places, leader, length, average)

    return each(one, 2)(params, eos_ids, rows)

  @functools.partial(jax.jit, static_argnums=(1, 2, 3))  # other shapes: donation could not help
  def resize(state, num_contexts, slots, places):
    return each(lambda state: _resize(state, num_contexts, slots, places), 0)(state)

  @functools.partial(jax.jit, donate_argnums=2)
  def catch_up(params, prompts, state, stops):
    one = lambda params, stops, *args: _catch_up(policy, params, stops, *args)
    return each(one, 2)(params, stops, prompts, state)

  seat = jax.jit(_seat, static_argnums=(3, 4))

  warmed = set()

  def warm(params, rows, law_of, slots, places, num_contexts, prompt_places):
    """Compiles the smaller sizes at once: first needed at step k, they would compile at step k."""
    shapes = jax.tree.map(jnp.shape, law_of), rows.tokens.shape, slots, num_contexts, prompt_places
    sizes = str(shapes)
    if sizes in warmed:
      return
    warmed.add(sizes)
    idle = rows.replace(valid=jnp.zeros_like(rows.valid))
    prompts, state = start(params, idle, law_of[1], slots, places, num_contexts, prompt_places)
    while _smaller(slots) < slots:
      slots = _smaller(slots)
      state = resize(state, num_contexts, slots, places)
      state, _ = segment(params, prompts, state, *law_of)

  if split is None:
    return Parts(warm, start, segment, resize, catch_up, seat, None, None, None)

  @jax.jit
  def apart(rows, rule):
    return shards.apart(split, (rows, rule), len(rows.status))

  @functools.partial(jax.jit, out_shardings=split.everywhere)
  def agree(report, state, stops):
    """What `segment` reports, of all shards; done as well once the rules in common say so."""
    enough = stops.enough(shards.together(state.rows), state.counts.generated)
    most = jax.tree.map(jnp.max, report)
    return most._replace(done=(report.done.min() | enough).astype(jnp.int32))

  @functools.partial(jax.jit, out_shardings=(split.along, split.along, split.everywhere))
  def join(state):
    """Rows; the counts of each row; ticks and slot ticks."""
    counts = state.counts
    of_rows = counts.prefilled, counts.generated, counts.replayed, counts.pruned, counts.probed
    totals = counts.ticks.max(), counts.slot_ticks.sum()
    return shards.together(state.rows), shards.together(of_rows), totals

  return Parts(warm, start, segment, resize, catch_up, seat, apart, agree, join)


def _segment(
  policy, params, version, eos_ids, stops, ticks, prompts, state, rule, *, shrinks, watch
):
  """Ticks until done or until the host should act, or so many as there may be.

  Returns the state and a Report.
  """
  t = state.rows.tokens.shape[1]
  slots, places = len(state.slots.row), state.cache.places
  num_prompts, began = len(prompts.v[0]), state.counts.ticks

  def work(state):
    left = (state.slots.head < state.num) | _live(state.rows, state.slots).any()
    return left & ~stops.enough(state.rows, state.counts.generated)

  def filled(state):
    last = jnp.maximum(_of(state.rows.length, state.slots.row) - 1, state.slots.fill)
    return jnp.where(_live(state.rows, state.slots), last - state.slots.start, 0).max()

  def behind(state):
    return (_lag(state.rows, state.slots) > BEHIND).any()

  def paused(state):
    return jnp.zeros((), bool) if watch is None else watch.pause(state.rows, state.seen)

  def go_on(state):
    on = work(state) & ~behind(state) & ~paused(state)
    if ticks is not None:
      on &= state.counts.ticks - began < ticks
    if places < t:
      on &= filled(state) < places
    if shrinks and _smaller(slots) < slots:
      few = _live(state.rows, state.slots).sum() <= _smaller(slots)
      on &= (state.slots.head < state.num) | ~few
    return on

  def step(state):
    ready = (state.slots.head < state.num) & ~_live(state.rows, state.slots).all()
    admit = functools.partial(_admit, state.rows, state.order, state.num, num_prompts)
    # Only the integers go through the condition: a cache that did would be copied.
    held = jax.lax.cond(ready, admit, lambda s: s, state.slots)
    state = state.replace(slots=held)
    return _tick(policy, params, prompts, version, eos_ids, rule, stops, state, watch)

  state = jax.lax.while_loop(go_on, step, state)
  live = _live(state.rows, state.slots).sum()
  report = Report(filled(state), ~work(state), behind(state), paused(state), live)
  return state, jax.tree.map(lambda x: x.astype(jnp.int32), report)


def _lag(rows, slots):
  """int32 [S]: tokens of the row in each slot that were not fed, but for the last; 0 if not live."""
  return jnp.where(_live(rows, slots), _of(rows.length, slots.row) - 1 - slots.fill, 0)


def _catch_up(policy, params, stops, prompts, state):
  """Feeds rows that are far behind all their tokens but the last, many at a time."""
  rows, n, t = state.rows, len(state.rows.status), state.rows.tokens.shape[1]
  lanes, width = min(LANES, len(state.slots.row)), min(PREFILL // LANES, t)
  chosen = _lag(rows, state.slots) > BEHIND
  lag = lambda slots: jnp.where(chosen, _lag(rows, slots), 0)

  def some(state):
    slots = state.slots
    lane = jnp.argsort(-lag(slots), stable=True)[:lanes]
    row = jnp.where(lag(slots)[lane] > 0, slots.row[lane], n)
    end = jnp.where(row < n, _of(rows.length, row) - 1, 0)
    begin = jnp.where(row < n, slots.fill[lane], 0)
    tiles = _tiles(rows, row, len(prompts.v[0]), slots.tiles.slot.shape[2])
    texts = rows.tokens[jnp.minimum(row, n - 1)]
    view = Shared(
      own=jax.tree.map(lambda x: x[lane], state.cache),
      prompts=prompts,
      start=slots.start[lane],
      tile_slot=tiles.slot,
      tile_prompt=tiles.prompt,
      num_tiles=tiles.num,
    )

    def feed(carry):
      fill, own = carry
      position = fill[:, None] + jnp.arange(width, dtype=jnp.int32)[None]
      token = jnp.take_along_axis(texts, jnp.minimum(position, t - 1), 1)
      _, after = policy.hidden(
        params, token, position, position < end[:, None], view.replace(own=own)
      )
      return jnp.minimum(fill + width, end), after.own

    fill, own = jax.lax.while_loop(lambda c: (c[0] < end).any(), feed, (begin, view.own))
    again = end - jnp.maximum(begin, _of(rows.response_start, row))
    counts = state.counts.replace(
      replayed=state.counts.replayed.at[row].add(jnp.maximum(again, 0), mode="drop")
    )
    idle = row == n
    put = lambda x, new: x.at[lane].set(jnp.where(idle, x[lane], new))
    slots = slots.replace(
      fill=put(slots.fill, fill), stop=put(slots.stop, _read(stops, rows, row, fill))
    )
    cache = jax.tree.map(lambda x, new: x.at[lane].set(new), state.cache, own)
    return state.replace(slots=slots, cache=cache, counts=counts)

  return jax.lax.while_loop(lambda state: (lag(state.slots) > 0).any(), some, state)


def _read(stops, rows, row, fill):
  """int32 [S]: the automaton's state after the response tokens of rows [S] before places `fill` [S]."""
  begin = _of(rows.response_start, row)
  texts = rows.tokens[jnp.minimum(row, len(rows.status) - 1)]

  def one(i, state):
    return stops.after(state, texts[:, i], (i >= begin) & (i < fill))

  return jax.lax.fori_loop(0, fill.max(), one, jnp.zeros(len(row), jnp.int32))


def _resize(state, num_contexts, slots, places):
  """The state with fewer slots, live rows first, or with more cache places."""
  more = places - state.cache.places
  if more:
    grow = lambda leaves, axis: tuple(
      jnp.pad(x, [(0, more if a == axis else 0) for a in range(x.ndim)]) for x in leaves
    )
    cache = state.cache
    cache = cache.replace(
      k=grow(cache.k, 3),
      v=grow(cache.v, 2),
      k_scale=grow(cache.k_scale, 2),
      v_scale=grow(cache.v_scale, 2),
    )
    return state.replace(cache=cache)
  if slots == len(state.slots.row):
    return state
  keep = jnp.argsort(~_live(state.rows, state.slots), stable=True)[:slots]
  held = state.slots
  cut = lambda x: x[keep]
  held = held.replace(
    row=cut(held.row), start=cut(held.start), fill=cut(held.fill), stop=cut(held.stop)
  )
  num_prompts = min(num_contexts, len(state.rows.status))
  held = held.replace(tiles=_tiles(state.rows, held.row, num_prompts, held.tiles.slot.shape[2]))
  return state.replace(slots=held, cache=jax.tree.map(cut, state.cache))


def _seat(state, new, stops, num_contexts, slots):
  """The state with `slots` slots for trees that forked: `new` [N] are children, not in slots yet.

  Rows that have a slot keep it; children follow beside copies of their parents' caches, if these are held.
  Other open rows queue: those that did before, then children.
  """
  rows, held, n, old = state.rows, state.slots, len(state.rows.status), len(state.slots.row)
  index = jnp.arange(n, dtype=jnp.int32)
  is_open = rows.valid & (rows.status == OPEN)
  # A child may have taken the place, in Rows, of a row that a slot still names.
  stale = (held.row < n) & _of(new, held.row)
  slot_of = jnp.full(n + 1, old).at[jnp.where(stale, n, held.row)].set(jnp.arange(old))
  slot_of = slot_of.at[n].set(old)
  stays = _live(rows, held) & ~stale
  joins = new & is_open & (slot_of[rows.parent] < old)  # without a parent: place n, no slot
  place, num = jnp.arange(slots), stays.sum()
  stayer = jnp.argsort(~stays, stable=True)[jnp.minimum(place, old - 1)]
  child = jnp.argsort(~joins, stable=True)[jnp.clip(place - num, 0, n - 1)].astype(jnp.int32)
  old_one, new_one = place < num, (place >= num) & (place < num + joins.sum())
  source = jnp.where(old_one, stayer, jnp.where(new_one, slot_of[rows.parent[child]], 0))
  row = jnp.where(old_one, held.row[stayer], jnp.where(new_one, child, n)).astype(jnp.int32)
  fill = jnp.minimum(held.fill[source], _of(rows.length, row) - 1)
  seated = jnp.zeros(n + 1, bool).at[row].set(True)[:n]
  waits = is_open & ~seated
  turn = jnp.zeros(n, jnp.int32).at[state.order].set(index)
  turn = jnp.where(waits, jnp.where(new, n + index, turn), 2 * n)
  return state.replace(
    slots=Slots(
      row=row,
      start=held.start[source],
      fill=fill,
      stop=jnp.where(old_one, held.stop[source], _read(stops, rows, row, fill)),
      head=jnp.zeros((), jnp.int32),
      tiles=_tiles(rows, row, min(num_contexts, n), held.tiles.slot.shape[2]),
    ),
    cache=jax.tree.map(lambda x: x[source], state.cache),
    order=jnp.argsort(turn, stable=True).astype(jnp.int32),
    num=waits.sum().astype(jnp.int32),
  )


def _tiles(rows, row, num_prompts, wide):
  """The tiles of slots that hold `row` [S].

  A tile has room for TILE slots: for `wide` of one prompt, about as many as a prompt has rows on average,
  and for as many prompts side by side as then fit.
  """
  n, slots = len(rows.status), len(row)
  wide = min(1 << (wide - 1).bit_length(), TILE, slots)
  side = min(max(1, TILE // wide), num_prompts)
  passes, blocks = -(-slots // wide), -(-num_prompts // side)
  prompt = jnp.where(row < n, _of(rows.context, row), -1)
  same = (prompt[:, None] == prompt[None]) & (row < n)[:, None]
  rank = jnp.tril(same, -1).sum(1)
  block = prompt // side
  first = jnp.minimum(block * side, num_prompts - side)
  key = jnp.where(row < n, block * passes + rank // wide, blocks * passes)
  used = jnp.zeros(blocks * passes, bool).at[key].set(True, mode="drop")
  index = jnp.cumsum(used) - 1
  num_tiles = min(blocks * passes, slots)
  tile = jnp.where(row < n, index[jnp.minimum(key, len(index) - 1)], num_tiles)
  empty = jnp.full((num_tiles, side, wide), slots, jnp.int32)
  return Tiles(
    slot=empty.at[tile, prompt - first, rank % wide].set(
      jnp.arange(slots, dtype=jnp.int32), mode="drop"
    ),
    prompt=jnp.zeros(num_tiles, jnp.int32).at[tile].set(first, mode="drop"),
    num=used.sum().astype(jnp.int32),
  )


def _of(x, row):
  """x of the row in each slot; an idle slot reads the last row."""
  return x[jnp.minimum(row, len(x) - 1)]


def _rule_of(rule, row):
  """The rule of the row in each slot."""
  return jax.tree.map(lambda x: _of(x, row) if jnp.ndim(x) else x, rule)


def _live(rows, slots):
  """bool [S]: the slot holds a row that is not closed."""
  return (slots.row < len(rows.status)) & (_of(rows.status, slots.row) == OPEN)


def _is_eos(token, eos_ids):
  return (token[:, None] == eos_ids[None, :]).any(1)


def _limit(rows):
  """int32 [N]: no row outgrows its places, whatever its limit says."""
  return jnp.minimum(rows.limit, rows.tokens.shape[1])


def _close_the_full(rows, eos_ids, vocab_size):
  """Closes rows that come in open but already ended, at their limit, or that cannot be continued."""
  n = len(rows.length)
  last = rows.tokens[jnp.arange(n), jnp.maximum(rows.length - 1, 0)]
  ended = (rows.length > rows.response_start) & _is_eos(last, eos_ids)
  status = jnp.where(rows.length >= _limit(rows), LENGTH, OPEN)
  status = jnp.where(ended, EOS, status)
  status = jnp.where(rows.length < 1, ERROR, status)  # no token: nothing to condition on
  inside = jnp.arange(rows.tokens.shape[1])[None] < rows.length[:, None]
  strange = inside & ((rows.tokens < 0) | (rows.tokens >= vocab_size))
  status = jnp.where(strange.any(1), ERROR, status)
  todo = (rows.status == OPEN) & rows.valid
  return rows.replace(status=jnp.where(todo, status, rows.status).astype(jnp.int32))


def _number_contexts(rows, num_contexts):
  """Rows with their contexts numbered anew, those of open rows first; and how many those are."""
  todo = (rows.status == OPEN) & rows.valid
  used = jnp.zeros(num_contexts, bool).at[rows.context].max(todo, mode="drop")
  number = (jnp.cumsum(used) - 1).astype(jnp.int32)
  return rows.replace(context=number[rows.context]), used.sum()


def _prefill(policy, params, rows, num_contexts, num_used, share, prompt_places):
  """Runs the model once over the prompt of every context that has an open row: the first `num_used`.

  It goes by blocks of `share` prompts, about as many as there are, so that others cost nothing.

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
  # Few prompts: wide chunks make large products; many: narrow ones waste less on short prompts.
  block = min(share, num_contexts, max(PREFILL // CHUNK, 1))
  width = min(max(PREFILL // block, CHUNK), prompt_places)
  pad = -prompt_places % width
  tokens = jnp.pad(tokens, ((0, 0), (0, pad)))

  def prompts(carry):
    begin, cache = carry
    # A last block that is not full begins earlier, and does some prompts again.
    cut = lambda x: jax.lax.dynamic_slice_in_dim(x, begin, block)
    put = lambda x, y: jax.lax.dynamic_update_slice_in_dim(x, y, begin, 0)
    texts, ends = cut(tokens), cut(length)

    def chunk(carry):
      first, part = carry
      these = jax.lax.dynamic_slice_in_dim(texts, first, width, 1)
      position = jnp.broadcast_to(first + jnp.arange(width, dtype=jnp.int32)[None], these.shape)
      _, part = policy.hidden(params, these, position, position < ends[:, None], part)
      return first + width, part

    # As many chunks as the longest prompt here needs.
    start = jnp.zeros((), jnp.int32), jax.tree.map(cut, cache)
    _, part = jax.lax.while_loop(lambda c: c[0] < ends.max(), chunk, start)
    return begin + block, jax.tree.map(put, cache, part)

  start = jnp.zeros((), jnp.int32), cache
  _, cache = jax.lax.while_loop(lambda c: c[0] < num_used, prompts, start)
  return cache, leader, length


def _start(policy, rows, slots, places, leader, prompt_length, average):
  n = len(rows.length)
  todo = (rows.status == OPEN) & rows.valid
  zero = jnp.zeros(n, jnp.int32)
  counts = DecodeCounts(
    prefilled=zero.at[leader].add(prompt_length, mode="drop"),
    generated=zero,
    replayed=zero,
    pruned=zero,
    probed=zero,
    ticks=jnp.zeros((), jnp.int32),
    slot_ticks=jnp.zeros((), jnp.int32),
  )
  row, none = jnp.full(slots, n, jnp.int32), jnp.zeros(slots, jnp.int32)
  held = Slots(
    row=row,
    start=none,
    fill=none,
    stop=none,
    head=jnp.zeros((), jnp.int32),
    tiles=_tiles(rows, row, len(leader), average),
  )
  return DecodeState(
    rows=rows,
    slots=held,
    cache=policy.init_cache(slots, places),
    order=jnp.argsort(~todo, stable=True).astype(jnp.int32),
    num=todo.sum().astype(jnp.int32),
    counts=counts,
  )


def _admit(rows, order, num, num_prompts, slots):
  """Gives free slots the next rows of the queue."""
  n = len(rows.status)
  free = ~_live(rows, slots)
  index = slots.head + jnp.cumsum(free) - 1
  take = free & (index < num)
  row = jnp.where(take, _of(order, index), jnp.where(free, n, slots.row)).astype(jnp.int32)
  # The last token of the prompt is fed again by the first tick, which needs its hidden state.
  start = jnp.maximum(jnp.minimum(_of(rows.response_start, row), _of(rows.length, row)) - 1, 0)
  return slots.replace(
    row=row,
    start=jnp.where(take, start, slots.start),
    fill=jnp.where(take, start, slots.fill),
    stop=jnp.where(take, 0, slots.stop),
    head=slots.head + take.sum().astype(jnp.int32),
    tiles=_tiles(rows, row, num_prompts, slots.tiles.slot.shape[2]),
  )


def _tick(policy, params, prompts, version, eos_ids, rule, stops, state, watch):
  rows, slots, n = state.rows, state.slots, len(state.rows.status)
  row, live = slots.row, _live(rows, slots)
  length = _of(rows.length, row)
  token = rows.tokens[jnp.minimum(row, n - 1), slots.fill]
  tiles = slots.tiles
  view = Shared(
    own=state.cache,
    prompts=prompts,
    start=slots.start,
    tile_slot=tiles.slot,
    tile_prompt=tiles.prompt,
    num_tiles=tiles.num,
  )
  hidden, view = policy.hidden(params, token[:, None], slots.fill[:, None], live[:, None], view)
  raw = policy.logits(params, hidden[:, 0])
  full = law.temper(raw, _of(rows.temperature, row))
  stop = stops.after(slots.stop, token, live & (slots.fill >= _of(rows.response_start, row)))
  stopped = stops.hit(stop)
  draws = live & (slots.fill + 1 == length) & ~stopped
  z = law.truncate(full, _rule_of(rule, row))
  good = jnp.isfinite(raw).all(1) & (z.max(1) > law.MASKED)
  greedy = _of(rows.temperature, row) <= 0
  new = law.draw(_of(rows.uid, row), length, z)
  new = jnp.where(greedy, jnp.argmax(z, 1), new).astype(jnp.int32)

  writes = draws & good
  target = jnp.where(writes, row, n)
  put = lambda x, value: x.at[target, length].set(value, mode="drop")
  ends = _is_eos(new, eos_ids)
  status = jnp.where(length + 1 >= _of(_limit(rows), row), LENGTH, OPEN)
  status = jnp.where(stops.hit(stops.after(stop, new, live)) | stopped, STOP, status)
  status = jnp.where(ends & ~stopped, EOS, status)
  status = jnp.where(good | stopped, status, ERROR).astype(jnp.int32)
  rows = rows.replace(
    tokens=put(rows.tokens, new),
    behavior_logprobs=put(rows.behavior_logprobs, law.logprob(z, new)),
    full_logprobs=put(rows.full_logprobs, law.logprob(full, new)),
    entropy=put(rows.entropy, law.entropy(full)),
    version=put(rows.version, jnp.broadcast_to(version, new.shape)),
    response_mask=put(rows.response_mask, jnp.ones(new.shape, bool)),
    length=rows.length.at[target].add(1, mode="drop"),
    status=rows.status.at[jnp.where(draws | (live & stopped), row, n)].set(status, mode="drop"),
  )
  again = live & (slots.fill >= _of(rows.response_start, row)) & ~draws
  counts = state.counts.replace(
    generated=state.counts.generated.at[target].add(1, mode="drop"),
    replayed=state.counts.replayed.at[jnp.where(again, row, n)].add(1, mode="drop"),
    ticks=state.counts.ticks + 1,
    slot_ticks=state.counts.slot_ticks + len(row),
  )
  if watch is not None and watch.see is not None:
    state = state.replace(seen=watch.see(state.seen, target, length, full, new))
  slots = slots.replace(fill=jnp.where(live, slots.fill + 1, slots.fill), stop=stop)
  return state.replace(rows=rows, slots=slots, cache=view.own, counts=counts)
