"""Whole runs on the toy policy under a schedule: what the training loop does, without its files."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import ledger
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import PromptTable, Queued, Recipe, RunState
from rlvr_jax.schedule.sync import sync
from rlvr_jax.train import pack
from rlvr_jax.train.annotate import make_annotate
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.learn import make_learn
from rlvr_jax.train.state import init_state
from tests import toy


class Parts(NamedTuple):
  """One compiled run; any number of steps from any state."""

  recipe: Recipe
  start: Callable  # () -> RunState
  collect: Callable
  # (learner, Queued, key) -> (learner, pending): an update on its way; no result of it is read here.
  dispatch: Callable
  read: Callable  # (pending) -> (metrics, what is booked), on the host


class Step(NamedTuple):
  rows: Any  # what was learned from, on the host
  tally: Any  # of the batch that was learned from
  metrics: dict
  state: RunState  # after the step, on the host


# Every token ends the response with CHANCE, whatever came before: a law of lengths that is known.
VOCAB, END, PROMPT, NEW, CHANCE = 3, 2, 2, 40, 0.1
NUM, PROMPTS, SIZE = 24, 8, 2  # prompts of the table and of a round, rows of a group
BUDGET = PROMPTS * SIZE
GEOMETRIC = toy.table_policy(VOCAB, PROMPT + NEW)._replace(
  init=lambda key: {
    "table": jnp.broadcast_to(
      jnp.log(jnp.array([(1 - CHANCE) / 2, (1 - CHANCE) / 2, CHANCE], jnp.float32)),
      (PROMPT + NEW, VOCAB, VOCAB),
    )
    + 0.0
  }
)
TABLE = PromptTable(
  tokens=jnp.asarray([[i % 2, i // 2 % 2] for i in range(NUM)], jnp.int32),
  length=jnp.full(NUM, PROMPT, jnp.int32),
  source=jnp.zeros(NUM, jnp.int32),
)


def geometric(recipe: Recipe) -> Parts:
  """Groups of two; right is an even number of tokens 0."""
  even = lambda ids, texts: [Verdict(float(text.split().count("0") % 2 == 0)) for text in texts]
  return make(
    recipe, GEOMETRIC, TABLE, even, optax.sgd(0.1), prompts=PROMPTS, budget=BUDGET, new=NEW, end=END
  )


def make(
  recipe: Recipe, policy, table: PromptTable, verify, optimizer, *, prompts, budget, new, end,
  rollout_rows=lambda rows: rows, learn_rows=lambda rows: rows, lanes=1, seed=0,
) -> Parts:  # fmt: skip
  """`rollout_rows` and `learn_rows` lay rows over the devices of either side."""
  num_places, num_prompts = table.tokens.shape[1] + new, len(table.length)
  sizes = {"num_rows": budget, "num_places": num_places}
  collect = make_collect(
    policy, recipe, table, verify, lambda ids: " ".join(map(str, ids)), sources=("toy",),
    prompts=prompts, budget=budget, max_new_tokens=new, eos_ids=[end], constrain=rollout_rows,
  )  # fmt: skip
  learn = make_learn(
    policy, recipe, optimizer, num_prompts=num_prompts, constrain=learn_rows, lanes=lanes, **sizes
  )
  annotate = make_annotate(policy, recipe, {}, constrain=learn_rows, lanes=lanes, **sizes)

  def dispatch(learner, batch, key):
    rows, last = annotate(learner.params, batch.rows), jnp.asarray(True)
    prepared = learn.parts["prepare"](learner, rows, key)
    packed, info = pack.pack_rows(rows, prepared.wanted, learn.sizes, lanes=lanes)
    learner, metrics, trained = learn.parts["update"](
      learner, {}, rows, packed, prepared, batch.tally, batch.epoch, last
    )
    return learner, (metrics, trained, info)

  def read(pending):
    metrics, trained, info = pending
    metrics = {k: v.item() for k, v in jax.device_get(metrics).items()}
    return metrics, {"trained": np.asarray(trained, np.int64), "computed": info.unique}

  def start():
    params = policy.init(jax.random.key(seed))
    return init_state(recipe, optimizer, params, table=table, num_places=num_places, seed=seed)

  return Parts(recipe, start, collect, dispatch, read)


def only_collecting(parts: Parts) -> Parts:
  """Updates that change nothing but the version."""
  count = lambda learner, batch, key: (learner.replace(step=learner.step + 1), None)
  return parts._replace(dispatch=count, read=lambda pending: ({}, {}))


def copied(learner):
  """The parameters, their version and the controllers, in arrays that no update donates."""
  return jax.tree.map(jnp.copy, (learner.params, learner.step, learner.control))


def run(parts: Parts, steps: int, state: RunState | None = None, *, push=copied, place=lambda x: x):
  """[Step]; from a state or from the start."""
  state = parts.start() if state is None else state
  schedule = parts.recipe.schedule or sync()
  learner, collector, books = state.learner, state.collector, state.ledger
  queue, pushed, out = list(state.queue), push(learner), []
  number = int(learner.step) + len(queue)

  def collect():
    nonlocal collector, books, number
    params, version, control = pushed
    collector, batch, books, _ = parts.collect(
      params, np.int32(number), control, collector, books, version
    )
    number += 1
    return Queued(batch.rows, batch.tally, collector.epoch)

  def learn(batch):
    nonlocal learner
    there, key = place((batch, collector.key))
    learner, pending = parts.dispatch(learner, there, jax.random.wrap_key_data(key))
    return batch, pending

  def send():
    nonlocal pushed
    pushed = push(learner)

  for _ in range(steps):
    batch, pending = schedule.turn(queue, collect, learn, send)
    metrics, booked = parts.read(pending)
    books = ledger.book(books, booked)
    now = state.replace(learner=learner, collector=collector, ledger=books, queue=tuple(queue))
    rows, tally, now = jax.device_get((batch.rows, batch.tally, now))
    out.append(Step(rows, tally, metrics, now))
  return out
