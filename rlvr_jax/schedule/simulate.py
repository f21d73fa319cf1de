"""What a way of scheduling rollouts takes, from the lengths of the responses alone.

Discrete events in plain Python: no clock, no randomness but `lcg`, so that every number can be reproduced.
Time is in ticks of the decode engine unless a price is given: a tick in which `b` rows grow costs

    tick + row * b

with `tick` for what every step pays (weights are read) and `row` for what grows with the batch; a token of a
prefix that is kept costs `again` when its row goes on. Left out: computing prompts, and verification.

  static       batches of rows in order; each waits for its longest
  refill       a slot that becomes free takes the next row: what decode.decode does
  carry_over   more groups than are trained; once enough are done, the rest waits for the next step
  overlap      rollouts and updates on devices of their own, a number of batches ahead
  pipeline     a fleet that never stops beside a trainer, with samples of bounded staleness

The gain of all of them depends above all on the spread of the lengths: quote it with every ratio.
"""

import heapq
import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class Cost(NamedTuple):
  """Prices: of a tick, of each row that grows in it, and of a token that is computed again."""

  tick: float = 1.0
  row: float = 0.0
  again: float = 0.0


UNIT = Cost()
BEHIND = 16  # of decode.decode: what a row is further behind is fed in one go
Numbers = Sequence[float] | np.ndarray
Whole = Sequence[int] | np.ndarray


class Spent(NamedTuple):
  finish: np.ndarray  # float [n], when each row was done; static: when its batch was
  time: float
  ticks: int
  use: float  # share of slots times ticks in which a row grew


# --------------------------------------------------------------------------------------------------
# Lengths


def lcg(num: int, seed: int = 1) -> np.ndarray:
  """`num` numbers in (0,1): x <- (1103515245 x + 12345) mod 2^31, u = (x + 0.5) / 2^31."""
  out, x = np.empty(num), seed
  for i in range(num):
    x = (1103515245 * x + 12345) % 2**31
    out[i] = (x + 0.5) / 2**31
  return out


def lengths(
  num: int, median: float = 1000, sigma: float = 0.9, cap: int = 8000, seed: int = 1
) -> np.ndarray:
  """int64 [num]: log-normal lengths, rounded and cut to [1, cap]."""
  return _log_normal(sigma * _normal(lcg(num, seed)), median, cap)


def grouped_lengths(
  groups: int, size: int, seed: int = 1, median: float = 1000, between: float = 0.8,
  within: float = 0.35, cap: int = 8000,
) -> np.ndarray:  # fmt: skip
  """int64 [groups * size]: as `lengths`, where the rows of a group share a part of their logarithm."""
  z = _normal(lcg(groups * (size + 1), seed)).reshape(groups, size + 1)
  return _log_normal((between * z[:, :1] + within * z[:, 1:]).reshape(-1), median, cap)


def _normal(uniform):
  return np.array([NormalDist().inv_cdf(u) for u in uniform])


def _log_normal(log, median, cap):
  return np.clip(np.floor(median * np.exp(log) + 0.5), 1, cap).astype(np.int64)


# --------------------------------------------------------------------------------------------------
# One call


class _Slots:
  """Slots in which rows grow by a token a tick; what happens is that some row is done."""

  def __init__(self, num: int, cost: Cost):
    if num < 1:
      raise ValueError(f"slots must be at least 1, got {num}")
    self.num, self.cost = num, cost
    self.ticks, self.time, self.busy = 0, 0.0, 0
    self._running: list[tuple[int, int]] = []  # (tick at which it is done, row)

  @property
  def free(self) -> int:
    return self.num - len(self._running)

  def start(self, row: int, work: int, kept: int = 0) -> None:
    """`kept` tokens it has already are computed first, while all others wait."""
    self.time += self.cost.again * int(kept)
    heapq.heappush(self._running, (self.ticks + int(work), row))

  def advance(self) -> list[int]:
    """Rows that are done next, all at one time."""
    rows, ticks = len(self._running), self._running[0][0] - self.ticks
    self.ticks += ticks
    self.busy += rows * ticks
    self.time += ticks * (self.cost.tick + self.cost.row * rows)
    done = []
    while self._running and self._running[0][0] == self.ticks:
      done.append(heapq.heappop(self._running)[1])
    return done

  def clear(self) -> dict[int, int]:
    """Takes all rows out; what is left to do of each."""
    left = {row: end - self.ticks for end, row in self._running}
    self._running = []
    return left


def refill(
  work: Whole, slots: int, *, order: Iterable[int] | None = None, cost: Cost = UNIT
) -> Spent:
  """Free slots take the next row at once (list scheduling, "continuous batching").

  Args:
    work: [n], ticks of each row; 0: it is done before it begins.
    order: in which rows are taken; default as they come.
  """
  fleet, finish = _Slots(slots, cost), np.zeros(len(work))
  queue = deque(i for i in (range(len(work)) if order is None else order) if work[i] > 0)
  while queue or fleet.free < slots:
    while queue and fleet.free:
      row = queue.popleft()
      fleet.start(row, work[row])
    done = fleet.advance()
    finish[done] = fleet.time
  return Spent(finish, fleet.time, fleet.ticks, fleet.busy / max(slots * fleet.ticks, 1))


def static(work: Whole, slots: int, *, cost: Cost = UNIT) -> Spent:
  """Batches of `slots` rows in order; every row is computed until the longest of its batch is done."""
  finish, ticks, time = np.zeros(len(work)), 0, 0.0
  for i in range(0, len(work), slots):
    batch = work[i : i + slots]
    ticks += int(max(batch))
    time += int(max(batch)) * (cost.tick + cost.row * len(batch))
    finish[i : i + slots] = time
  return Spent(finish, time, ticks, float(np.sum(work)) / max(slots * ticks, 1))


def refill_ticks(work: Whole, slots: int) -> int:
  """Ticks of one call of decode.decode with so many slots: DecodeCounts.ticks."""
  return refill(work, slots).ticks


def static_ticks(work: Whole, slots: int) -> int:
  """Ticks of a call for each batch of `slots` rows."""
  return static(work, slots).ticks


def resumed_work(new: Whole, kept: Whole, behind: int = BEHIND) -> np.ndarray:
  """int64 [n]: ticks of rows that come in with `kept` tokens and get `new` more.

  Of a prefix a tick feeds one token, and draws none; the first tick also finds those that are more than
  `behind` tokens from their end, which are then fed in one go, outside of ticks.
  """
  new, kept = np.asarray(new, np.int64), np.asarray(kept, np.int64)
  return np.where(new > 0, new + np.where(kept - 1 > behind, 1, kept), 0)


def until_groups(
  work: Whole, group: Whole, slots: int, groups: int, *, cost: Cost = UNIT
) -> tuple[Spent, np.ndarray]:
  """As `refill`, but everything stops once so many groups are done: decode.stops with `groups`.

  Returns:
    Spent; int64 [n], ticks that each row got. `finish` is 0 for a row that was not done.
  """
  left, names = np.asarray(work, np.int64).copy(), np.asarray(group).tolist()
  queue = deque(np.flatnonzero(left).tolist())
  todo = Counter(names[i] for i in queue)
  missing = groups - len(set(names) - set(todo))
  fleet, finish = _Slots(slots, cost), np.zeros(len(left))
  while missing > 0 and (queue or fleet.free < slots):
    while queue and fleet.free:
      row = queue.popleft()
      fleet.start(row, left[row])
    for row in fleet.advance():
      finish[row], left[row] = fleet.time, 0
      todo[names[row]] -= 1
      missing -= todo[names[row]] == 0
  for row, rest in fleet.clear().items():
    left[row] = rest
  got = np.asarray(work) - left
  return Spent(finish, fleet.time, fleet.ticks, fleet.busy / max(slots * fleet.ticks, 1)), got


# --------------------------------------------------------------------------------------------------
# Steps with rows that are carried over


class Carried(NamedTuple):
  time: float
  generated: int  # tokens
  trained: int  # tokens of the rows that were trained
  rows: int  # rows that were trained
  mean_age: (
    float  # steps between the one in which a trained row was begun and the one that trains it
  )
  max_age: int
  stale_share: float  # of the trained tokens, those from earlier steps
  held: int  # groups that wait at the end, done or not
  held_tokens: int  # tokens of those
  peak: int  # most groups that waited after a step


def carry_over(
  work: Whole, size: int, *, groups: int, slots: int, steps: int, drawn: int | None = None,
  cost: Cost = UNIT, behind: int | None = None,
) -> Carried:  # fmt: skip
  """Each step trains `groups` groups; whatever else is under way is carried on in the next.

  A step begins with the groups that wait, in the order in which they came to wait, and then takes new ones.
  It ends once enough groups are done; groups that were done at the same time, but are not needed, wait.

  Args:
    work: [n], tokens of each row; group g has rows [g * size, (g + 1) * size).
    drawn: groups in hand at the start of a step; at least `groups`. None: a new one whenever a slot is free
      and no row waits.
    behind: a row that goes on takes the ticks of `resumed_work`; None: only those of its new tokens.

  Raises:
    ValueError: if `drawn` is less than `groups`, or there are too few rows.
  """
  if drawn is not None and drawn < groups:
    raise ValueError(f"a step that trains {groups} groups must draw as many, got {drawn}")
  fleet, left = _Slots(slots, cost), np.asarray(work, np.int64).copy()
  begun: dict[int, int] = {}  # row -> step
  before = np.zeros(len(left), np.int64)  # tokens of each row from earlier steps
  waits: deque[int] = deque()  # groups
  surplus: list[int] = []
  fresh = peak = 0
  ages, trained, stale = [], 0, 0

  def rows_of(g):
    return range(g * size, (g + 1) * size)

  def new_group():
    nonlocal fresh
    if (fresh + 1) * size > len(left):
      raise ValueError(f"{len(left)} rows are not enough for {steps} steps")
    fresh += 1
    return fresh - 1

  for step in range(steps):
    done, surplus = surplus, []
    hand: list[int] = []
    while waits and (drawn is None or len(hand) + len(done) < drawn):
      hand.append(waits.popleft())
    while drawn is not None and len(hand) + len(done) < drawn:
      hand.append(new_group())
    queue = deque(row for g in hand for row in rows_of(g) if left[row])
    while len(done) < groups:
      while fleet.free:
        if not queue:
          if drawn is not None:
            break
          hand.append(new_group())
          queue.extend(rows_of(hand[-1]))
        row = queue.popleft()
        begun.setdefault(row, step)
        again = before[row] if behind is not None else 0
        ticks = resumed_work([left[row]], [again], behind or 0)[0]
        fleet.start(row, int(ticks), before[row])
      ended = fleet.advance()
      left[ended] = 0
      at_once = {row // size for row in ended}
      done += [g for g in hand if g in at_once and not left[g * size : (g + 1) * size].any()]
    for row, rest in fleet.clear().items():
      left[row] = min(rest, left[row])
    finished, surplus = done[:groups], done[groups:]
    waits.extend(g for g in hand if g not in done)
    for row in (row for g in finished for row in rows_of(g)):
      ages.append(step - begun[row])
      trained += int(work[row])
      stale += int(before[row])
    before = np.asarray(work) - left
    peak = max(peak, len(waits) + len(surplus))
  held = [*waits, *surplus]
  return Carried(
    time=fleet.time,
    generated=int(before.sum()),
    trained=trained,
    rows=len(ages),
    mean_age=float(np.mean(ages)),
    max_age=max(ages),
    stale_share=stale / trained,
    held=len(held),
    held_tokens=int(sum(before[row] for g in held for row in rows_of(g))),
    peak=peak,
  )


# --------------------------------------------------------------------------------------------------
# Rollouts beside updates


def overlap(
  rollout: Numbers, learn: Numbers, transfer: float = 0.0, *, ahead: int = 1
) -> np.ndarray:
  """float [n]: when each update is done and its params are with the sampler, under bounded_staleness.

  Rollouts and updates have devices of their own. `ahead` batches lie ready before an update; while it runs
  the batch it makes room for is collected, and then the new params are sent, for which both wait. With 0
  ahead nothing overlaps.

  Args:
    rollout, learn: [n], how long each batch takes.
  """
  now, out = float(sum(rollout[:ahead])), []
  for i, seconds in enumerate(learn):
    if ahead:
      more = rollout[i + ahead] if i + ahead < len(rollout) else 0.0
      now += max(seconds, more) + transfer
    else:
      now += rollout[i] + seconds + transfer
    out.append(now)
  return np.array(out)


def capacity(most: int, running: int, accepted: int, staleness: int, version: int, batch: int):
  """Rollouts that may be begun now; none if negative.

      min(most - running, (staleness + version + 1) batch - (accepted + running))

  Args:
    most: rollouts at a time.
    accepted: rollouts done so far, trained ones included, rejected ones not; version * batch when a run is
      taken up again.
    staleness: versions that a sample may lag behind.
    batch: samples of an update.

  Source: AReaL, arXiv 2505.24298.
  """
  return min(most - running, (staleness + version + 1) * batch - (accepted + running))


class Piped(NamedTuple):
  time: float
  period: float
  train_use: float  # share of the time in which the trainer worked
  steps: int  # updates done
  max_staleness: int
  mean_staleness: float
  dropped: int
  histogram: dict[int, int]  # staleness -> trained samples


def pipeline(
  work: Numbers, batch: int, slots: int, train: float, staleness: int, steps: int,
  mode: str = "completion", broadcast: float = 0.0,
) -> Piped:  # fmt: skip
  """A fleet of `slots` and one trainer. A sample has the version that the fleet knows when it begins; it may
  begin while `capacity` is positive.

  Which samples an update takes is `mode`:

    completion   the first that are done: a sample may be older than `staleness`
    start        those that began next, waiting for all of them
    drop         the earliest that are done, after samples that are too old are thrown away, running ones too

  Args:
    work: [n], time of each sample; they begin in this order.
    train: time of an update.
    broadcast: time until the fleet knows the version that an update made.

  Returns:
    Piped; with too few samples it ends early, at the last update there was.
  """
  if mode not in ("completion", "start", "drop"):
    raise ValueError(f"mode must be completion, start or drop, got {mode!r}")
  done, published, arrived = (
    0,
    1,
    2,
  )  # kinds of events, in the order in which those of one time happen
  events: list[tuple[float, int, int]] = []
  running: set[int] = set()
  ready: list[int] = []  # in the order in which they were done
  version: dict[int, int] = {}
  known = updates = begun = accepted = dropped = 0
  now = ended = 0.0
  training, histogram = False, Counter()

  while updates < steps:
    if not training:
      if mode == "drop":
        oldest = updates - staleness
        young = (
          {i for i in running if version[i] >= oldest},
          [i for i in ready if version[i] >= oldest],
        )
        dropped += len(running) + len(ready) - len(young[0]) - len(young[1])
        accepted -= len(ready) - len(young[1])
        running, ready = young
      if mode == "start":
        wanted = range(updates * batch, (updates + 1) * batch)
        take = list(wanted) if set(wanted) <= set(ready) else []
      else:
        order = sorted(ready) if mode == "drop" else ready
        take = order[:batch] if len(ready) >= batch else []
      if take:
        histogram.update(updates - version[i] for i in take)
        chosen = set(take)
        ready = [i for i in ready if i not in chosen]
        training = True
        heapq.heappush(events, (now + train, published, updates + 1))
    while (
      begun < len(work) and capacity(slots, len(running), accepted, staleness, known, batch) > 0
    ):
      version[begun] = known
      running.add(begun)
      heapq.heappush(events, (now + float(work[begun]), done, begun))
      begun += 1
    if not events:
      break
    now = events[0][0]
    while events and events[0][0] == now:
      _, kind, index = heapq.heappop(events)
      if kind == done and index in running:
        running.remove(index)
        ready.append(index)
        accepted += 1
      elif kind == published:
        updates, training, ended = index, False, now
        heapq.heappush(events, (now + broadcast, arrived, index))
      elif kind == arrived:
        known = index
  samples = sum(histogram.values())
  return Piped(
    time=ended,
    period=ended / max(updates, 1),
    train_use=updates * train / ended if ended else math.nan,
    steps=updates,
    max_staleness=max(histogram, default=0),
    mean_staleness=sum(k * v for k, v in histogram.items()) / max(samples, 1),
    dropped=dropped,
    histogram=dict(sorted(histogram.items())),
  )
