"""april, copris and areal on a policy whose law of lengths is known, and their losses on numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.types import OPEN, TokenStats
from rlvr_jax.objective import anchors
from rlvr_jax.recipes.april import april
from rlvr_jax.recipes.areal import areal
from rlvr_jax.recipes.copris import copris
from rlvr_jax.rollout.partial import partial
from tests import toy
from tests.schedule import driver
from tests.schedule.driver import BUDGET, CHANCE, END, NEW, PROMPT, PROMPTS, SIZE

pytestmark = pytest.mark.usefixtures("compiled_once")

STEPS = 60
MEAN = (1 - (1 - CHANCE) ** NEW) / CHANCE  # of a geometric length that is cut off at NEW


@functools.cache
def _april():
  """Batches of 4 groups, 8 in hand."""
  return driver.geometric(april(groups=4, most=BUDGET - 8))


@functools.cache
def _collected(steps, drop=False):
  """[(rows, tally, bank, books, metrics)] of steps without updates; `drop` throws away what waits."""
  parts, out = _april(), []
  state = parts.start()
  params, collector, books = state.learner.params, state.collector, state.ledger
  for step in range(steps):
    collector, batch, books, _ = parts.collect(
      params, np.int32(step), state.learner.control, collector, books
    )
    kept = jax.device_get((batch.rows, batch.tally, collector.replay))
    out.append((*kept, books, batch.metrics))
    if drop:
      collector = collector.replace(replay=state.collector.replay)
  return out


def _uids(rows, where):
  return [tuple(u) for u in rows.uid[where].tolist()]


# --------------------------------------------------------------------------------------------------
# What is trained


def test_lengths_are_unbiased_and_dropping_would_bias_them():
  lengths = lambda run: np.concatenate([r.response_length[r.valid] for r, *_ in run])
  kept, dropped = lengths(_collected(STEPS)), lengths(_collected(20, drop=True))
  error = lambda x: 3 * x.std() / np.sqrt(len(x))
  assert len(kept) == 8 * STEPS and kept.max() == NEW
  assert abs(kept.mean() - MEAN) < error(kept)
  assert dropped.mean() < MEAN - 2 * error(dropped)


def test_an_interrupted_row_has_the_tokens_of_one_that_was_not():
  whole = partial(groups=PROMPTS)
  resumed = 0
  for rows, *_ in _collected(STEPS)[:12]:
    fresh = rows.replace(
      length=rows.response_start,
      status=jnp.where(rows.valid, OPEN, rows.status),
      version=jnp.full_like(rows.version, -1),
    )
    again, _ = whole(
      driver.GEOMETRIC, _april().start().learner.params, jax.tree.map(jnp.asarray, fresh), jnp.int32(0),
      jnp.array([END]), num_contexts=PROMPTS, prompt_places=PROMPT,
    )  # fmt: skip
    mine = rows.valid
    inside = np.arange(PROMPT + NEW) < rows.length[:, None]
    np.testing.assert_array_equal(again.length[mine], rows.length[mine])
    np.testing.assert_array_equal(
      np.where(inside, again.tokens, 0)[mine], np.where(inside, rows.tokens, 0)[mine]
    )
    versions = [set(v[v >= 0].tolist()) for v in rows.version[mine]]
    resumed += sum(len(v) > 1 for v in versions)
  assert resumed > 10


def test_the_books_balance_and_what_was_banked_comes_back():
  banked, before = 0, dict.fromkeys(ledger.ENTRIES, 0)
  for rows, tally, bank, books, metrics in _collected(STEPS):
    assert not ledger.balance(books).any()
    total = ledger.totals(books)
    step = {k: total[k] - before[k] for k in total}
    before = total
    assert step["reused"] == banked
    banked = step["banked"]
    assert banked == bank.rows.response_mask[bank.rows.valid].sum()
    assert step["generated"] == tally.tokens.sum()
    assert step["batched"] == rows.response_mask[rows.valid].sum()
    assert step["rejected"] == step["surplus"] == 0
    assert metrics["group/trained"] == 4 and rows.valid.sum() == 4 * SIZE
    assert bank.rows.valid.sum() == (PROMPTS - 4) * SIZE
    assert (rows.trials[rows.valid] == SIZE).all()
  assert banked


def test_every_verdict_is_told_to_the_beliefs_once():
  trained, told, successes, rights = [], 0, 0, 0
  for rows, tally, bank, *_ in _collected(STEPS):
    trained += _uids(rows, rows.valid)
    told += tally.trials.sum()
    successes += tally.successes.sum()
    rights += rows.correct[rows.valid].sum()
    ended = bank.rows.valid & (bank.rows.status != OPEN)
    assert told == len(trained) + ended.sum()
    assert successes == rights + bank.rows.correct[ended].sum()
  assert len(set(trained)) == len(trained)


def test_nobody_starves():
  """Groups that wait longest are drawn first, and every step adds a token to every open row."""
  oldest = 0
  for step, (rows, *_) in enumerate(_collected(STEPS)):
    for group in set(rows.group[rows.valid].tolist()):
      mine = rows.valid & (rows.group == group)
      age = step - rows.version[mine][rows.version[mine] >= 0].min()
      assert age <= rows.response_length[mine].max()
      oldest = max(oldest, age)
  assert oldest > 3
  last = _collected(STEPS)[-1][2].rows
  assert last.version[last.version >= 0].min() > STEPS - 15
  for (_, _, bank, *_), (_, _, after, *_) in zip(_collected(STEPS), _collected(STEPS)[1:]):
    ids = bank.rows.prompt_id[bank.rows.valid].tolist()
    now = after.rows.prompt_id[after.rows.valid].tolist()
    assert now[: len([p for p in now if p in ids])] == [p for p in ids if p in now]


# --------------------------------------------------------------------------------------------------
# Losses


def _loss(recipe, sampled, advantage, masks, old=None):
  """theta -> the token mean, compiled; log-probs are lists of one number a token."""
  wide = lambda x: np.pad(np.asarray(x, np.float32), ((0, 0), (1, 0)))
  extras = {} if old is None else {"old_logprobs": wide(old)}
  rows = toy.rows(masks=masks, full_logprobs=wide(sampled), extras=extras)
  a = wide(np.array(masks) * np.array(advantage)[:, None])

  def loss(theta):
    per_token, _ = recipe.objective.loss(TokenStats(jnp.pad(theta, ((0, 0), (1, 0)))), rows, a, {})
    numerator, denominator = recipe.aggregate(per_token, jnp.ones_like(per_token), rows)
    return numerator / denominator

  return loss


def _value(loss, theta):
  return float(jax.jit(loss)(jnp.asarray(theta, jnp.float32)))


def test_copris_by_hand():
  """Six tokens of three stages: each against the log-prob of its own stage."""
  theta = [[-0.45, -0.75, -0.35, -0.45, -1.1, -0.6]]
  stages = [-0.5, -0.7, -0.2, -0.4, -1.0, -0.6]
  newest = [-0.4, -0.8, -0.3, -0.5, -1.2, -0.6]  # all under the policy of the last stage
  for sampled, sign, expected in (
    (stages, 1, -0.953213), (stages, -1, 0.953213), (newest, 1, -1.018362)
  ):  # fmt: skip
    loss = _loss(copris(), [sampled], [sign], [[True] * 6])
    assert _value(loss, theta) == pytest.approx(expected, abs=1e-6)


THETA = np.array([[-1, -0.5, -2, -0.1], [-0.7, -1.2, -0.3, 0]])
OLD = np.array([[-1.1, -0.9, -1.9, -0.2], [-0.9, -1, -0.3, 0]])
SAMPLED = np.array([[-1.2, -0.9, -3.4, -0.25], [-0.8, -1.1, -0.5, 0]])
MASKS = [[True] * 4, [True, True, True, False]]


@pytest.mark.parametrize(
  "options, expected",
  [
    ({}, -0.629575),
    ({"cap": 2.0}, -0.050261),
    ({"cap": 2.0, "limit": anchors.truncate}, -0.308786),
  ],
)
def test_areal_by_hand(options, expected):
  loss = _loss(areal(**options), SAMPLED, [1, -1], MASKS, OLD)
  assert _value(loss, THETA) == pytest.approx(expected, abs=1e-6)


def test_areal_without_distance_is_ppo():
  ppo = _loss(copris(clip_high=0.2, dual=0.0), OLD, [1, -1], MASKS)
  decoupled = _loss(areal(), OLD, [1, -1], MASKS, OLD)
  assert _value(decoupled, THETA) == pytest.approx(_value(ppo, THETA), abs=1e-7)
  # At the policy before the update the gradient of each token is -A w / 7: the weight has none of its own.
  loss = _loss(areal(), SAMPLED, [1, -1], MASKS, OLD)
  weight = np.exp(OLD - SAMPLED) * np.array(MASKS) * [[1], [-1]]
  gradient = jax.jit(jax.grad(loss))(jnp.asarray(OLD, jnp.float32))
  np.testing.assert_allclose(gradient, -weight / 7, atol=1e-6)


# --------------------------------------------------------------------------------------------------
# Bad input


def test_sizes_that_do_not_fit_are_refused():
  plan = april(groups=4).allocate.plan
  with pytest.raises(ValueError, match="budget 17 is no multiple of prompts 8"):
    plan(8, 17)
  with pytest.raises(ValueError, match="groups = 4 needs as many prompts, got 3"):
    plan(3, 12)
  with pytest.raises(ValueError, match="groups must be at least 0, got -1"):
    april(groups=-1)
  with pytest.raises(ValueError, match="0 <= ahead <= bound"):
    areal(staleness=-1)
