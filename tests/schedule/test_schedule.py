"""When batches are collected and learned from: the order of things, and whole runs under it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.types import PromptTable
from rlvr_jax.recipes.areal import areal
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.schedule.bounded_staleness import bounded_staleness
from rlvr_jax.schedule.one_step_off import one_step_off
from rlvr_jax.schedule.sync import sync
from rlvr_jax.train.checkpoint import Checkpointer
from rlvr_jax.train.optimizers import adam, scaled, with_rate
from tests import toy, toy_run
from tests.schedule import driver

pytestmark = pytest.mark.usefixtures("compiled_once")


# --------------------------------------------------------------------------------------------------
# The order


def _calls(schedule, turns):
  """What is done in each turn: c collects, l0 learns from the batch collected first, p pushes."""
  queue, calls, number = [], [], iter(range(100))
  now = []
  collect = lambda: (now.append("c"), next(number))[1]
  learn = lambda batch: now.append(f"l{batch}")
  for _ in range(turns):
    schedule.turn(queue, collect, learn, lambda: now.append("p"))
    calls.append(" ".join(now))
    now.clear()
    assert len(queue) == schedule.ahead
  return calls


def test_the_order_of_a_turn():
  assert _calls(sync(), 2) == ["c l0 p", "c l1 p"]
  assert _calls(one_step_off(), 3) == ["c l0 c p", "l1 c p", "l2 c p"]
  assert _calls(bounded_staleness(bound=4), 2) == ["c l0 c p", "l1 c p"]
  assert _calls(bounded_staleness(bound=2, ahead=2), 2) == ["c c l0 c p", "l1 c p"]


def test_bounds():
  assert (sync().ahead, sync().bound) == (0, 0)
  assert (one_step_off().ahead, one_step_off().bound) == (1, 1)
  for args in ({"bound": -1}, {"bound": 1, "ahead": 2}, {"bound": 1, "ahead": -1}):
    with pytest.raises(ValueError, match="0 <= ahead <= bound"):
      bounded_staleness(**args)


# --------------------------------------------------------------------------------------------------
# Runs


@functools.cache
def _grpo():
  """As toy_run has it."""
  return driver.make(
    grpo(), toy.table_policy(toy_run.VOCAB, 2 + toy_run.NEW),
    PromptTable(
      tokens=jnp.array([[a, b] for a in range(3) for b in range(2)], jnp.int32),
      length=jnp.array([2, 2, 1, 2, 2, 1], jnp.int32),
      source=jnp.zeros(toy_run.NUM_PROMPTS, jnp.int32),
    ),
    lambda ids, texts: toy_run.starts_with_zero(ids, texts),
    with_rate(scaled(adam(b2=0.999), None), 0.05),
    prompts=toy_run.PROMPTS, budget=toy_run.BUDGET, new=toy_run.NEW, end=toy_run.END,
  )  # fmt: skip


def _under(schedule):
  """Collecting and learning know nothing of the schedule."""
  parts = _grpo()
  return parts._replace(recipe=parts.recipe._replace(schedule=schedule))


def _same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_bound_0_is_the_loop_without_a_schedule():
  plain = toy_run.run(grpo(), 3)
  # Handed over as it is: with nothing ahead, no update runs while a batch is collected.
  handed = lambda learner: (learner.params, learner.step, learner.control)
  for push in (handed, driver.copied):
    steps = driver.run(_under(sync()), 3, push=push)
    for a, b in zip(steps, plain.steps):
      _same(a.rows, b.rows)
      _same(a.tally, b.tally)
      _same(a.state.ledger, b.ledger)
      assert {k: b.metrics[k] for k in a.metrics if k != "finite"} == {
        k: v for k, v in a.metrics.items() if k != "finite"
      }
    _same(steps[-1].state.learner, plain.end.learner)
    _same(steps[-1].state.collector, plain.end.collector)
    assert steps[-1].state.queue == ()


@pytest.mark.parametrize("ahead", [1, 2])
def test_batches_are_as_old_as_they_lay_ahead(ahead):
  steps = driver.run(_under(bounded_staleness(bound=ahead, ahead=ahead)), 4)
  seen = set()
  for number, step in enumerate(steps):
    made = step.rows.response_mask
    version = max(number - ahead, 0)
    assert (step.rows.version[made] == version).all()
    assert step.metrics["rollout/staleness_max"] == number - version <= ahead
    assert not ledger.balance(step.state.ledger).any()
    uids = {tuple(u) for u in step.rows.uid[step.rows.valid].tolist()}
    assert len(uids) == toy_run.BUDGET and not uids & seen
    seen |= uids
  # The first batch is on-policy; those after it are not, though at version 0 their tokens agree with it.
  assert steps[0].metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
  assert steps[-1].metrics["policy/ratio_max"] > 1.001


# --------------------------------------------------------------------------------------------------
# Rows that are carried over, beside a queue


BOUND = 3


@functools.cache
def _areal():
  """Responses of up to 40 tokens, a few of them a batch."""
  return driver.only_collecting(driver.geometric(areal(staleness=BOUND, groups=4, most=14)))


@functools.cache
def _areal_steps():
  return driver.run(_areal(), 16)


def test_no_token_is_older_than_the_bound():
  oldest, trained = [], 0
  for number, step in enumerate(_areal_steps()):
    rows = step.rows
    made = rows.response_mask & rows.valid[:, None]
    oldest.append(number - rows.version[made].min(initial=number))
    assert rows.version[made].max(initial=0) <= max(number - 1, 0)
    assert not ledger.balance(step.state.ledger).any()
    trained += rows.valid.sum()
  assert max(oldest) == BOUND
  # What would have been too old was rolled out to its end: nothing that was banked was thrown away.
  last = _areal_steps()[-1].state
  total, bank = ledger.totals(last.ledger), last.collector.replay.rows
  assert total["reused"] == total["banked"] - bank.response_mask[bank.valid].sum() > 0
  assert trained >= 16 * 4 * driver.SIZE


def test_bank_and_queue_survive_a_checkpoint(tmp_path):
  parts, whole = _areal(), _areal_steps()
  middle = whole[2].state
  assert middle.collector.replay.rows.valid.any() and middle.queue[0].rows.valid.any()
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(middle)
    checkpoints.finish()
    state = checkpoints.restore(parts.start().replace(queue=(parts.collect.empty(),)))
  _same(jax.device_get(state.collector), middle.collector)
  _same(jax.device_get(state.queue), middle.queue)
  for a, b in zip(driver.run(parts, 3, state), whole[3:]):
    _same(a.rows, b.rows)
    _same(a.state, b.state)
