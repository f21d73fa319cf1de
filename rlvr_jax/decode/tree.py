"""Trees: rows that fork while they grow, or after, on the slots and caches of `decode.decode`.

A leaf that forks at place f becomes two rows with the same first f tokens; the second is a row that was not
in use. The rows given to a prompt are thus its leaves: some grow at once, its roots, and the others wait to
become children.

Segments run until the plan asks for a pause, or nothing is left to do. Between two of them the plan looks at
all rows and says where to fork and what to cut off, and slots are given anew, as many as there are rows to
grow: a child takes over a copy of its parent's cache, at any place that the cache has passed. Where no slot
is free, it queues and is caught up with from its tokens, many at a time.

What a row samples depends on its uid and its tokens; the uid of a child on that of its parent, the place and
a number that no other child of the parent has there, nor had before it was cut off. So where a plan's
decisions depend on rows alone, neither slots nor the order of rows change what grows.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, KILLED, LENGTH, OPEN, Array, Policy, Rows
from rlvr_jax.decode import decode as engine
from rlvr_jax.decode import shards
from rlvr_jax.decode.stops import Stops


class Forks(flax.struct.PyTreeNode):
  """Children that rows should get: K each at most, at places of the path of the row."""

  at: (
    Array  # int32 [N,K], places shared: the prompt at least, at most the row's length; -1: no child
  )
  token: Array | None = None  # int32 [N,K], the child's first token; -1 or None: it is drawn
  logprob: Array | None = None  # float32 [N,K], of that token, under the whole softmax
  entropy: Array | None = None  # float32 [N,K], of that softmax


class Plan(NamedTuple):
  """How trees grow: functions of arrays, jitted by the engine.

  `seen` is a pytree of the plan's own arrays [N,...]; a child takes over its parent's.

  Decisions happen at pauses, and whenever all rows are closed; the last one is that which forks nothing and
  leaves no row open.
  """

  # (rows, version) -> (rows, roots bool [N]: valid rows that grow from the start, seen)
  init: Any
  pause: Any  # (rows, seen) -> bool []: decide before anything more is drawn
  branch: (
    Any  # (rows, seen) -> (rows, seen, Forks); of rows, limit, temperature and status may change
  )
  # (rows, seen) -> bool [N], what to cut off after these forks, with everything below it
  prune: Any = None
  see: Any = None  # see engine.Watch
  # Which forks get the rows that are left: True: all first children in order of birth, then all second ones,
  # ...; False: all children of the first row born, then of the next.
  by_rank: bool = True
  lockstep: bool = False  # it compares rows that must be equally long: each needs a slot
  spare: bool = True  # rows may run out: forks that get none are counted. False: an error


class Growth(flax.struct.PyTreeNode):
  """What the engine keeps of the trees."""

  room: Array  # bool [N], rows that the trees may use
  born: Array  # int32 [N], how many rows its group had before
  suppressed: Array  # int32 [N], forks of the row that found no row to become
  gone: Array  # int32 [N], children of the row that were cut off
  new: Array  # bool [N], children of the last pause, not in slots yet


class Outcome(NamedTuple):
  """What the host learns of a pause; numbers, int32 [] each."""

  open: Array  # rows that are open
  changed: Array  # rows that forked or were cut off
  strange: Array  # forks at places that are not inside the response
  emptied: Array  # groups that lost their last row
  missing: Array  # forks that found no row, over all pauses
  stuck: Array  # whether the plan asks for the same pause again


def grow(
  policy: Policy,
  params,
  rows: Rows,
  plan: Plan,
  *,
  version,
  eos_ids,
  slots: int,
  num_contexts: int,
  prompt_places: int,
  rule=None,
  stops: Stops | None = None,
):
  """Grows trees from rows [N,T] until every leaf has ended.

  Args:
    rows: open valid rows of equal `group` become the leaves of one prompt; those that the plan does not begin
      with hold nothing but the prompt. If they lie over several devices, each grows all of them.
    plan: see Plan.
    slots: rows computed at a time.
    The rest: see decode.decode. `stops` must not leave off early.

  Returns:
    rows: leaves; those that were not used, or were cut off, are not valid (KILLED). `parent` and `fork_at`
      say what is shared.
    counts: DecodeCounts; tokens are counted on the row that drew them, as `pruned` too where they were cut
      off, and a row may have drawn for several leaves, one after the other.
    suppressed: int32 [N], forks that found no row left.

  Raises:
    ValueError: for a fork outside a response, rows that run out where the plan does not allow for it, a
      prompt that loses its last branch, or a plan that pauses without end.
  """
  n, t = rows.tokens.shape
  stops = stops or Stops()
  if stops.groups is not None or stops.tokens is not None:
    raise ValueError(
      "trees grow to their end: stops must not leave off after some groups or tokens"
    )
  if plan.lockstep and slots < n:
    raise ValueError(
      f"this plan compares rows of equal length: it needs a slot for each of the {n} rows, not {slots}; set "
      "slots to 0 (as many as rows)"
    )
  if slots < 1 or num_contexts < 1 or not 1 <= prompt_places <= t:
    raise ValueError(
      f"trees need slots >= 1, num_contexts >= 1 and prompt_places in [1, {t}], got {slots}, "
      f"{num_contexts}, {prompt_places}"
    )
  split, lies = (
    shards.split_of(rows.tokens),
    jax.tree.map(lambda x: getattr(x, "sharding", None), rows),
  )
  if split is not None:
    rows = jax.device_put(rows, split.everywhere)
  most = min(slots, n)
  sizes = _sizes(most)
  version, eos_ids = jnp.asarray(version, jnp.int32), jnp.asarray(eos_ids, jnp.int32)
  parts = engine.parts_of(policy, watch=engine.Watch(plan.pause, plan.see))
  plant, decide = _parts(plan)
  context = rows.context
  rows, growth, seen = plant(rows, version)
  places = min(engine.PLACES, t)
  now = _fitting(sizes, int(((rows.status == OPEN) & rows.valid).sum()))
  prompts, state = parts.start(params, rows, eos_ids, now, places, num_contexts, prompt_places)
  state = state.replace(seen=seen)
  while True:
    state, report = parts.segment(params, prompts, state, version, eos_ids, rule, stops)
    report = jax.device_get(report)
    now, places = len(state.slots.row), state.cache.places
    if report.filled >= places:
      places = engine.enough(places, report.filled, t)
      state = parts.resize(state, num_contexts, now, places)
    elif report.behind:
      state = parts.catch_up(params, prompts, state, stops)
    elif report.paused or report.done:
      state, growth, outcome = decide(state, growth, version, eos_ids)
      outcome = jax.device_get(outcome)
      _check(plan, outcome)
      if not outcome.open:
        break
      wanted = _fitting(sizes, int(outcome.open))
      if outcome.changed or wanted != now:
        state = parts.seat(state, growth.new, stops, num_contexts, wanted)
    else:
      nobody = jnp.zeros(n, bool)
      state = parts.seat(state, nobody, stops, num_contexts, _fitting(sizes, int(report.live)))
  rows = state.rows.replace(context=_of_root(context, state.rows.parent))
  if split is not None:
    rows = jax.tree.map(jax.device_put, rows, lies)
  return rows, state.counts, growth.suppressed


def probe(policy: Policy, params, rows: Rows, at, *, num_tokens: int, number: int = 0, **options):
  """Looks ahead: what row n might say after its first at[n] places, at most `num_tokens` tokens of it.

  Args:
    at: int32 [N], places shared with the row: the prompt at least, at most its length; -1: not asked.
    number: tells several looks from one place apart.
    options: of decode.decode.

  Returns:
    rows, of which those asked for are valid, to be looked at and dropped; counts, with all that was drawn as
    `probed` too.
  """
  at = jnp.asarray(at, jnp.int32)
  asked = rows.valid & (at >= 0)
  strange = asked & ((at < rows.response_start) | (at > rows.length))
  if num_tokens < 1 or bool(strange.any()):
    raise ValueError(
      f"a look-ahead is of 1 or more tokens, from a place inside the response: {num_tokens}, {at}"
    )
  index = jnp.arange(len(at), dtype=jnp.int32)
  uid = trees.child_uids(rows.uid, at, jnp.full(len(at), -1 - number, jnp.int32))
  ahead = rows_lib.fork(rows, jnp.where(asked, index, -1), at, uid)
  limit = jnp.minimum(at + num_tokens, rows.limit)
  ahead = ahead.replace(
    limit=jnp.where(asked, limit, rows.limit),
    parent=jnp.full(len(at), -1, jnp.int32),  # which is not among these rows
    valid=asked,
  )
  ahead, counts = engine.decode(policy, params, ahead, **options)
  return ahead, counts.replace(probed=counts.generated)


@jax.jit
def _of_root(x, parent):
  return x[trees.root(parent)]


def _sizes(most: int) -> list[int]:
  """Numbers of slots that are compiled, ascending: each about half of the next."""
  sizes = [most]
  while sizes[0] > engine.MIN_SLOTS:
    sizes.insert(0, max(-(-sizes[0] // 2), engine.MIN_SLOTS))
  return sizes


def _fitting(sizes: list[int], num: int) -> int:
  return next((size for size in sizes if size >= num), sizes[-1])


def _check(plan: Plan, outcome: Outcome):
  if outcome.strange:
    raise ValueError(
      f"{outcome.strange} forks lie outside the response they fork: a fork shares the prompt at least, and "
      "at most what its row has, less the last token if that has ended"
    )
  if outcome.missing and not plan.spare:
    raise ValueError(
      f"the rows ran out: {outcome.missing} forks found none. Give each prompt more rows (budget / "
      "prompts), or plan fewer forks"
    )
  if outcome.emptied:
    raise ValueError(f"{outcome.emptied} prompts lost their last branch: prune must leave one each")
  if outcome.stuck:
    raise ValueError(
      "the plan asks for the same pause again: branch must change what pause looks at"
    )


@functools.cache
def _parts(plan: Plan):
  """`_plant` and `_decide` of the plan."""
  decide = jax.jit(functools.partial(_decide, plan), donate_argnums=(0, 1))
  return jax.jit(functools.partial(_plant, plan)), decide


def _plant(plan, rows, version):
  room = rows.valid & (rows.status == OPEN)
  rows, roots, seen = plan.init(rows, version)
  roots = roots & room
  off = room & ~roots
  rows = rows.replace(
    valid=rows.valid & ~off, status=jnp.where(off, KILLED, rows.status).astype(jnp.int32)
  )
  zero = jnp.zeros(len(room), jnp.int32)
  born = jnp.where(roots, groups.rank(rows.group, roots), 0)
  new = jnp.zeros(len(room), bool)
  return rows, Growth(room=room, born=born, suppressed=zero, gone=zero, new=new), seen


def _decide(plan, state, growth, version, eos_ids):
  """The plan's decision, carried out on the rows."""
  rows, seen, forks = plan.branch(state.rows, state.seen)
  changed = rows.status != state.rows.status
  rows, growth, strange, first = _fork(rows, forks, growth, plan.by_rank)
  source = jnp.where(growth.new, rows.parent, jnp.arange(len(rows.status)))
  seen = jax.tree.map(lambda x: x[source], seen)
  counts = state.counts
  if forks.token is not None:
    rows, forced = _force(rows, forks, first, growth.new, version, eos_ids)
    counts = counts.replace(generated=counts.generated + forced)
  emptied = jnp.zeros((), jnp.int32)
  if plan.prune is not None:
    gone = trees.descendants(rows.parent, plan.prune(rows, seen) & rows.valid)
    lost = jnp.where(gone, trees.owned(rows).sum(1), 0).astype(jnp.int32)
    counts = counts.replace(pruned=counts.pruned + lost)
    live = lambda valid: groups.count(rows.group, valid) > 0
    emptied = (live(rows.valid) & ~live(rows.valid & ~gone)).sum()
    above = jnp.where(gone & (rows.parent >= 0), rows.parent, len(gone))
    growth = growth.replace(gone=growth.gone.at[above].add(1, mode="drop"))
    rows = trees.without(rows, gone)
    rows = rows.replace(status=jnp.where(gone, KILLED, rows.status).astype(jnp.int32))
    growth = growth.replace(new=growth.new & ~gone)
    changed |= gone
  outcome = Outcome(
    open=(rows.valid & (rows.status == OPEN)).sum(),
    changed=(growth.new | changed).sum(),
    strange=strange,
    emptied=emptied,
    missing=growth.suppressed.sum(),
    stuck=plan.pause(rows, seen) & ~(growth.new | changed).any(),
  )
  state = state.replace(rows=rows, seen=seen, counts=counts)
  return state, growth, jax.tree.map(lambda x: x.astype(jnp.int32), outcome)


def _fork(rows, forks, growth, by_rank):
  """Rows with the children that find a free row of their group.

  Returns:
    rows; growth; number of forks outside a response; int32 [N]: which of the N*K forks a new row is.
  """
  n, k = forks.at.shape
  flat = lambda x: jnp.broadcast_to(x[:, None], (n, k)).reshape(-1)
  row, at = flat(jnp.arange(n, dtype=jnp.int32)), forks.at.reshape(-1)
  wanted = flat(rows.valid) & (at >= 0)
  last = rows.length - (rows.status != OPEN)  # what has ended does not go on
  strange = wanted & ((at < rows.response_start[row]) | (at > last[row]))
  group = rows.group[row]
  rank = jnp.tile(jnp.arange(k, dtype=jnp.int32), n)
  order = rank * n + growth.born[row] if by_rank else growth.born[row] * k + rank
  turn = groups.rank(group, wanted, n, by=order)
  # The free rows of each group, in order.
  free = growth.room & ~rows.valid
  place = groups.rank(rows.group, free)
  number = groups.count(rows.group, free).astype(jnp.int32)
  found = wanted & (turn < number[group])
  taker = (
    jnp.full((n + 1, n), n, jnp.int32)
    .at[jnp.where(free, rows.group, n), jnp.minimum(place, n - 1)]
    .set(jnp.arange(n, dtype=jnp.int32))
  )
  into = jnp.where(found, taker[group, jnp.minimum(turn, n - 1)], n)
  source = trees.fork_source(rows.parent, rows.fork_at, row, at)
  # Children that the source has at this place, those of lower rank now, and all that it lost: the sum grows
  # with each one, so that nobody gets the uid of another, nor of one that was cut off.
  before = (
    rows.valid[None] & (rows.parent[None] == source[:, None]) & (rows.fork_at[None] == at[:, None])
  )
  same = groups.split(source, at, found)
  number = before.sum(1) + jnp.where(found, groups.rank(same, found, by=turn), 0)
  number += growth.gone[source]
  uid = trees.child_uids(rows.uid[source], at, number.astype(jnp.int32))
  scatter = lambda x, empty: (
    jnp.full((n, *x.shape[1:]), empty, x.dtype).at[into].set(x, mode="drop")
  )
  parent = scatter(source, -1)
  youngest = jax.ops.segment_max(jnp.where(rows.valid, growth.born, -1), rows.group, n)
  rows = rows_lib.fork(rows, parent, scatter(at, 0), scatter(uid, 0))
  new = parent >= 0
  lost = jnp.zeros(n, jnp.int32).at[row].add(wanted & ~found)
  growth = growth.replace(
    born=jnp.where(new, youngest[rows.group] + 1 + scatter(turn, 0), growth.born),
    suppressed=growth.suppressed + lost,
    gone=jnp.where(new, 0, growth.gone),
    new=new,
  )
  return rows, growth, strange.sum(), scatter(jnp.arange(n * k, dtype=jnp.int32), 0)


def _force(rows, forks, which, new, version, eos_ids):
  """New rows with the first token that was chosen for them; int32 [N]: how many tokens that is."""
  n = len(new)
  pick = lambda x: x.reshape(-1)[which]
  token = pick(forks.token)
  forced = new & (token >= 0)
  target, at = jnp.where(forced, jnp.arange(n), n), rows.length
  put = lambda x, value: x.at[target, at].set(value, mode="drop")
  status = jnp.where(at + 1 >= rows.limit, LENGTH, OPEN)
  status = jnp.where((token[:, None] == eos_ids[None]).any(1), EOS, status)
  rows = rows.replace(
    tokens=put(rows.tokens, token),
    behavior_logprobs=put(rows.behavior_logprobs, pick(forks.logprob)),
    full_logprobs=put(rows.full_logprobs, pick(forks.logprob)),
    entropy=put(rows.entropy, pick(forks.entropy)),
    version=put(rows.version, jnp.broadcast_to(version, (n,))),
    response_mask=put(rows.response_mask, jnp.ones(n, bool)),
    length=rows.length + forced,
    status=jnp.where(forced, status, rows.status).astype(jnp.int32),
  )
  return rows, forced.astype(jnp.int32)
