"""Steps whose batches are collected while the learner is at an earlier one; see core.types.Schedule."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import ledger
from rlvr_jax.core.types import Queued, Recipe, RunState, Schedule
from rlvr_jax.train.collect import Batch
from rlvr_jax.train.parts import Parts


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


def make_turn(parts: Parts, schedule: Schedule, state: RunState) -> Callable:
  """Builds turn(state) -> (state, batch, learned, finite, seconds of collecting): one update.

  The sampler has a copy of the parameters, made when an update has been dispatched: the learner donates its
  own. Of a batch that lay in a checkpoint the metrics of collecting are gone.

  Args:
    state: of the run, whose queue is taken over.
  """
  queue = [(Batch(q.rows, q.tally, {}, []), q.epoch) for q in state.queue]

  def pushed_by(learner):
    return jax.tree.map(
      jnp.copy, (parts.forms.rollout(learner.params), learner.step, learner.control)
    )

  pushed = pushed_by(state.learner)

  def turn(state: RunState):
    nonlocal pushed
    spent: dict[str, float] = {}
    now = state
    number = int(state.learner.step) + len(queue)

    def collect():
      nonlocal now, number
      params, version, control = pushed
      collector, batch, books, seconds = parts.collect(
        params, np.int32(number), control, now.collector, now.ledger, version
      )
      now = now.replace(collector=collector, ledger=books, offered=parts.offered())
      number += 1
      for name, value in seconds.items():
        spent[name] = spent.get(name, 0.0) + value
      return batch, collector.epoch

    def learn(one):
      nonlocal now
      batch, epoch = one
      key = jax.random.wrap_key_data(now.collector.key)
      rows = parts.annotate(now.learner.params, batch.rows)
      learner, pending = parts.begin(now.learner, rows, batch.tally, epoch, key)
      now = now.replace(learner=learner)
      return batch, pending

    def push():
      nonlocal pushed
      pushed = pushed_by(now.learner)

    batch, pending = schedule.turn(queue, collect, learn, push)
    learned, booked = parts.finish(pending)
    finite = learned.pop("finite") and batch.metrics.get("completion/error_frac", 0) < 1
    waiting = tuple(Queued(one.rows, one.tally, epoch) for one, epoch in queue)
    now = now.replace(ledger=ledger.book(now.ledger, booked), queue=waiting)
    return now, batch, learned, finite, spent

  return turn
