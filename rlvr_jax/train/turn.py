"""A turn of a run: one batch is collected and one update made, in this order or overlapped."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import ledger
from rlvr_jax.core.types import Learner, Params, Queued, Recipe, RunState, Schedule
from rlvr_jax.train.collect import Batch
from rlvr_jax.train.parts import Parts


class Sampler(NamedTuple):
  """What of a learner a batch is collected with."""

  params: Params
  version: jax.Array  # its step
  control: Any


def sampler_of(parts: Parts, learner: Learner) -> Sampler:
  return parts.push(Sampler(parts.forms.rollout(learner.params), learner.step, learner.control))


def collect(
  parts: Parts, state: RunState, sampler: Sampler, number
) -> tuple[RunState, Batch, dict[str, float]]:
  """Collects batch `number`: (state, batch, seconds of its phases)."""
  collector, batch, books, seconds = parts.collect(
    sampler.params, number, sampler.control, state.collector, state.ledger, sampler.version
  )
  rows, tally = parts.hand((batch.rows, batch.tally))
  state = state.replace(collector=collector, ledger=books, offered=parts.offered())
  return state, batch._replace(rows=rows, tally=tally), seconds


def learn(parts: Parts, state: RunState, batch: Batch) -> tuple[RunState, dict[str, float], bool]:
  """Makes an update: (state, metrics, whether all was finite). It takes the state's arrays over."""
  epoch, key = parts.hand((state.collector.epoch, state.collector.key))
  key = jax.random.wrap_key_data(key)
  rows = parts.annotate(state.learner.params, batch.rows)
  learner, baseline, metrics, booked = parts.learn(
    state.learner, state.baseline, rows, batch.tally, epoch, key
  )
  books = ledger.book(state.ledger, booked)
  return state.replace(learner=learner, ledger=books, baseline=baseline), *_finite(metrics, batch)


def _finite(metrics: dict[str, Any], batch: Batch) -> tuple[dict[str, float], bool]:
  # A row whose logits are not finite has no tokens, so that the loss never hears of it.
  return metrics, metrics.pop("finite") and batch.metrics.get("completion/error_frac", 0) < 1


def schedule_of(recipe: Recipe, debug: str) -> Schedule | None:
  """The recipe's schedule if it collects ahead; None: one thing after the other.

  Args:
    debug: of the config.

  Raises:
    ValueError: if something of the run needs the update's result before the next batch.
  """
  schedule = recipe.schedule
  if schedule.ahead == 0:
    return None
  if recipe.baseline is not None:
    raise ValueError("a baseline that learns needs a schedule that collects nothing ahead: sync()")
  if debug == "rollout":
    raise ValueError("debug=rollout needs a schedule that collects nothing ahead: sync()")
  return schedule


def make_turn(parts: Parts, schedule: Schedule | None, state: RunState) -> Callable:
  """Builds turn(state) -> (state, batch, metrics, finite, seconds of collecting): one update.

  Args:
    schedule: of `schedule_of`.
    state: of the run, whose queue is taken over.
  """
  return _one_after_the_other(parts) if schedule is None else _overlapped(parts, schedule, state)


def _one_after_the_other(parts: Parts) -> Callable:
  def turn(state: RunState):
    sampler = sampler_of(parts, state.learner)
    state, batch, seconds = collect(parts, state, sampler, sampler.version)
    del sampler  # a quantised copy of the parameters need not live through the update
    state, metrics, finite = learn(parts, state, batch)
    return state, batch, metrics, finite, seconds

  return turn


def _overlapped(parts: Parts, schedule: Schedule, state: RunState) -> Callable:
  """The sampler has a copy of the parameters, made when an update has been dispatched: the learner donates
  its own. Of a batch that lay in a checkpoint the metrics of collecting are gone."""
  queue = [(Batch(q.rows, q.tally, {}, []), q.epoch) for q in state.queue]

  def pushed_by(learner: Learner) -> Sampler:
    return jax.tree.map(jnp.copy, sampler_of(parts, learner))

  pushed = pushed_by(state.learner)

  def turn(state: RunState):
    nonlocal pushed
    spent: dict[str, float] = {}
    now = state
    number = int(state.learner.step) + len(queue)

    def collect_one():
      nonlocal now, number
      now, batch, seconds = collect(parts, now, pushed, np.int32(number))
      number += 1
      for name, value in seconds.items():
        spent[name] = spent.get(name, 0.0) + value
      return batch, parts.hand(now.collector.epoch)

    def begin(one):
      nonlocal now
      batch, epoch = one
      key = jax.random.wrap_key_data(parts.hand(now.collector.key))
      rows = parts.annotate(now.learner.params, batch.rows)
      learner, pending = parts.begin(now.learner, rows, batch.tally, epoch, key)
      now = now.replace(learner=learner)
      return batch, pending

    def push():
      nonlocal pushed
      pushed = pushed_by(now.learner)

    batch, pending = schedule.turn(queue, collect_one, begin, push)
    metrics, booked = parts.finish(pending)
    waiting = tuple(Queued(one.rows, one.tally, epoch) for one, epoch in queue)
    now = now.replace(ledger=ledger.book(now.ledger, booked), queue=waiting)
    return now, batch, *_finite(metrics, batch), spent

  return turn
