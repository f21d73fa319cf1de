"""Rounds and waves on a Markov chain, with verdicts that the test decides."""

import collections
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.core.types import Allocator, Collector, PromptTable, plain_table
from rlvr_jax.recipes.april import april
from rlvr_jax.recipes.dapo import dapo
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.linear import linear
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.metrics import CompileCounter
from rlvr_jax.train.rewards import RewardFunction, Scorer
from tests import toy

VOCAB, END, NEW, PLACES = 5, 4, 4, 2
PROMPTS, BUDGET = 3, 8  # of a round: groups of 3, 3 and 2
SOURCES = ("even", "odd", "unused")
POLICY = toy.table_policy(VOCAB, PLACES + NEW)
PARAMS = {"table": jax.random.normal(jax.random.key(0), (PLACES + NEW, VOCAB, VOCAB))}


class Judge:
  """A verifier whose rule can be changed between steps: rule(call, i, prompt id, text) -> correct."""

  def __init__(self):
    self.rule = lambda call, i, prompt, text: float(i % 2)
    self.calls = []

  def __call__(self, ids, texts):
    self.calls.append((list(ids), list(texts)))
    call = len(self.calls) - 1
    return [
      Verdict(self.rule(call, i, prompt, text), rule=f"{call} {i}")
      for i, (prompt, text) in enumerate(zip(ids, texts, strict=True))
    ]


def _table(num):
  return PromptTable(
    tokens=jnp.asarray([[i % 4, i // 4 % 4] for i in range(num)], jnp.int32),
    length=jnp.asarray([1 + i % 2 for i in range(num)], jnp.int32),
    source=jnp.asarray([i % 2 for i in range(num)], jnp.int32),
  )


def _waves(*sizes):
  """An allocator of several waves, each shared evenly among the prompts."""

  def next_(state, round, width, knobs):
    counts = jnp.full(PROMPTS, width // PROMPTS, jnp.int32)
    return counts, state + 1

  return Allocator(lambda b, n: sizes, lambda prompts, knobs: jnp.zeros((), jnp.int32), next_)


CUT = {"off": False}


def _cut_off(*args, **sizes):
  """Plain rollouts, of which the first and the last row are cut off if CUT says so."""
  rows, counts = linear()(*args, **sizes)
  if CUT["off"]:
    cut = jnp.isin(jnp.arange(len(rows.valid)), jnp.asarray([0, len(rows.valid) - 1]))
    rows = rows.replace(valid=rows.valid & ~cut)
    counts = counts.replace(pruned=jnp.where(cut, counts.generated, 0))
  return rows, counts


RECIPES = {
  "grpo": grpo(),
  "dapo": dapo(rounds=3),
  "one-wave": grpo()._replace(allocate=_waves(6)),
  "two-waves": grpo()._replace(allocate=_waves(3, 3), rollout=_cut_off),
}


class Run(NamedTuple):
  """One compiled collector; `step` does a step from any state."""

  recipe: object
  judge: Judge
  collect: object
  num: int

  def start(self):
    return Collector(
      posterior=self.recipe.posterior.init(plain_table(self.num)),
      replay=self.recipe.replay.init(plain_table(self.num), self.collect.num_places),
      visited=jnp.zeros(self.num, bool),
      epoch=jnp.zeros((), jnp.int32),
      key=jax.random.key_data(jax.random.key(1)),
    ), ledger.new(self.num)

  def step(self, number, state):
    collector, books = state
    control = self.recipe.control.init(plain_table(self.num))
    collector, batch, books, _ = self.collect(PARAMS, jnp.int32(number), control, collector, books)
    return jax.device_get(batch), (collector, books)

  def steps(self, number, rule=None):
    """[(batch, collector, books)] of that many steps from the start."""
    self.judge.calls.clear()
    self.judge.rule = rule or (lambda call, i, prompt, text: float(i % 2))
    state, out = self.start(), []
    for step in range(number):
      batch, state = self.step(step, state)
      out.append((batch, *state))
    return out


@functools.lru_cache
def _run(name, num=9):
  judge = Judge()
  collect = make_collect(
    POLICY, RECIPES[name], _table(num), judge, lambda ids: " ".join(map(str, ids)),
    prompts=PROMPTS, budget=BUDGET, max_new_tokens=NEW, eos_ids=[END], sources=SOURCES,
  )  # fmt: skip
  return Run(RECIPES[name], judge, collect, num)


def _zero(call, i, prompt, text):
  return 0.0


def _even_mixed(call, i, prompt, text):
  """Groups of even prompts are mixed, those of odd ones all wrong."""
  return float(i % 2) if prompt % 2 == 0 else 0.0


def _valid(batch):
  return np.flatnonzero(batch.rows.valid)


# --------------------------------------------------------------------------------------------------
# The ledger


@pytest.mark.parametrize("name", ["grpo", "dapo", "two-waves"])
@pytest.mark.parametrize("rule", [None, _zero, _even_mixed], ids=["mixed", "zero", "some"])
def test_the_books_balance_at_every_step(name, rule):
  before = collections.Counter()
  for batch, _, books in _run(name).steps(4, rule):
    assert not ledger.balance(books).any()
    total = ledger.totals(books)
    step = collections.Counter({k: total[k] - before[k] for k in total})
    before = collections.Counter(total)
    assert step["generated"] == step["verified"] == batch.tally.tokens.sum() > 0
    assert step["batched"] == batch.rows.response_mask[batch.rows.valid].sum()
    assert step["reused"] == step["banked"] == step["trained"] == step["evaluated"] == 0
    # Once a prompt in each wave that has rows of it.
    waves = 2 if name == "two-waves" else 1
    drawn = np.asarray(batch.tally.drawn) > 0
    assert step["prefilled"] == waves * np.asarray(_table(9).length)[drawn].sum()


def test_t57_all_wrong_stops_at_the_cap():
  """Dynamic sampling that never fills: three rounds, nothing to train on, all of it waste."""
  run = _run("dapo")
  (batch, _, books), *_ = run.steps(1, _zero)
  assert batch.metrics["rollout/rounds"] == 3 == len(run.judge.calls)
  assert batch.metrics["group/trained"] == 0
  assert not batch.rows.valid.any()
  total = ledger.totals(books)
  assert total["rejected"] == total["generated"] > 0
  assert total["batched"] == total["surplus"] == 0
  assert batch.tally.trials.sum() == 3 * BUDGET


def test_refill_stops_when_the_batch_is_full_and_books_the_surplus():
  """One or two groups of a round are mixed; those that find no room are surplus, whole groups only."""
  surplus = 0
  for batch, _, books in _run("dapo").steps(6, _even_mixed):
    kept = _valid(batch)
    assert batch.metrics["group/trained"] == len(set(batch.rows.group[kept].tolist())) <= PROMPTS
    assert (batch.rows.prompt_id[kept] % 2 == 0).all()
    for group in set(batch.rows.group[kept].tolist()):
      mine = kept[batch.rows.group[kept] == group]
      assert len(mine) == batch.rows.trials[mine[0]]  # no group is cut
    full = batch.metrics["group/trained"] == PROMPTS
    assert full or batch.metrics["rollout/rounds"] == 3
    surplus = ledger.totals(books)["surplus"]
  assert surplus > 0


def test_the_last_of_the_batch_is_whole():
  """Every group mixed: one round fills the batch, no matter the recipe."""
  (batch, _, books), *_ = _run("dapo").steps(1)
  assert batch.metrics["rollout/rounds"] == 1
  assert batch.rows.valid.all()
  assert ledger.totals(books)["rejected"] == 0


# --------------------------------------------------------------------------------------------------
# Prompts and randomness


def _drawn(steps):
  """Prompt ids of each step, in no order."""
  return [sorted(np.flatnonzero(batch.tally.drawn).tolist()) for batch, _, _ in steps]


def test_t40_every_prompt_once_an_epoch():
  steps = _run("grpo").steps(9)
  drawn = _drawn(steps)
  for epoch in range(3):
    assert sorted(m for now in drawn[3 * epoch : 3 * epoch + 3] for m in now) == list(range(9))
  assert [int(c.epoch) for _, c, _ in steps] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
  assert drawn[:3] != drawn[3:6]  # shuffled anew


@pytest.mark.parametrize("num", [7, 8])
def test_an_epoch_that_ends_inside_a_round(num):
  """Its last prompts come first, the next epoch fills the round: none is skipped, none comes twice."""
  steps = _run("grpo", num).steps(14)
  drawn = _drawn(steps)
  count = collections.Counter()
  for now in drawn:
    assert len(now) == PROMPTS
    count.update(now)
    times = [count[m] for m in range(num)]
    assert (
      max(times) - min(times) <= 2
    )  # a prompt of the next epoch, while the last one is finished
  assert max(times) - min(times) <= 1
  assert int(steps[-1][1].epoch) == (14 * PROMPTS - 1) // num


def test_a_step_that_uses_up_the_table():
  """Three rounds of three on seven prompts: no prompt twice in a step, and one epoch goes by."""
  (batch, collector, books), (after, _, _) = _run("dapo", 7).steps(2, _zero)
  assert batch.tally.drawn.sum() == 3 * BUDGET
  assert (batch.tally.drawn > 0).all()
  assert not ledger.balance(books).any()
  assert int(collector.epoch) <= 1
  assert (after.tally.drawn > 0).sum() == 7


@pytest.mark.parametrize("name", ["grpo", "dapo", "two-waves"])
def test_no_two_rows_have_equal_seeds(name):
  seen = set()
  for batch, _, _ in _run(name).steps(6):
    uids = [tuple(u) for u in batch.rows.uid[_valid(batch)].tolist()]
    assert not seen & set(uids) and len(set(uids)) == len(uids)
    seen |= set(uids)


def test_rows_that_were_cut_off_keep_their_seeds(monkeypatch):
  run = _run("two-waves")
  seeds = lambda batch: {
    (tuple(batch.rows.uid[i].tolist()), int(batch.rows.wave[i])) for i in _valid(batch)
  }
  ((whole, *_),) = run.steps(1)
  monkeypatch.setitem(CUT, "off", True)
  ((batch, _, books),) = run.steps(1)
  assert batch.tally.drawn.sum() == 6 and len(_valid(batch)) == 2
  assert seeds(batch) < seeds(whole)  # those of the second wave are no seeds of the first
  assert not ledger.balance(books).any() and ledger.totals(books)["pruned"] > 0


def test_a_group_without_a_score_does_not_wait_for_ever():
  some = lambda prompts, completions, i: [None if n % 2 else 1.0 for n in i]
  tasks = [Example("", "", "", {"i": i}) for i in range(9)]
  recipe = april(groups=0)
  with Scorer([RewardFunction("some", 1.0, some)], tasks) as scorer:
    run = Run(recipe, Judge(), _make(recipe=recipe, budget=6, scorer=scorer), 9)
    steps = run.steps(3)
  for batch, collector, books in steps:
    assert set(batch.rows.prompt_id[_valid(batch)] % 2) == {0}
    assert not collector.replay.rows.valid.any() and not ledger.balance(books).any()
  assert all(sum(batch.tally.drawn for batch, _, _ in steps) == 2)  # of every prompt, once


def test_two_waves_equal_one():
  """Four rows and then four are the same rows as eight at once."""
  (one, _, _), (two, _, _) = (_run(name).steps(1, _zero)[0] for name in ("one-wave", "two-waves"))
  by_uid = lambda rows: {
    tuple(rows.uid[i].tolist()): rows.tokens[i, : rows.length[i]].tolist()
    for i in np.flatnonzero(rows.valid)
  }
  assert by_uid(one.rows) == by_uid(two.rows)
  assert len(by_uid(one.rows)) == 6
  assert sorted(two.rows.wave[_valid(two)].tolist()) == [0, 0, 0, 1, 1, 1]
  assert sorted(one.rows.wave[_valid(one)].tolist()) == [0] * 6


def test_a_step_is_a_function_of_its_state():
  run = _run("grpo")
  first, second = run.steps(2), run.steps(2)
  for (a, _, _), (b, _, _) in zip(first, second):
    jax.tree.map(np.testing.assert_array_equal, a.rows, b.rows)
  uids = [set(map(tuple, batch.rows.uid.tolist())) for batch, _, _ in first]
  assert not uids[0] & uids[1]


def test_rows_carry_what_they_were_made_from():
  for step, (batch, _, _) in enumerate(_run("grpo").steps(3)):
    rows, table = batch.rows, _table(9)
    for i in _valid(batch):
      m = rows.prompt_id[i]
      length = int(table.length[m])
      assert rows.response_start[i] == length
      assert rows.tokens[i, :length].tolist() == table.tokens[m, :length].tolist()
      assert rows.source[i] == m % 2
      assert rows.limit[i] == length + NEW
      assert rows.temperature[i] == 1.0
    assert (rows.version[rows.response_mask] == step).all()
    sizes = collections.Counter(rows.prompt_id[_valid(batch)].tolist())
    assert sorted(sizes.values()) == [2, 3, 3]


# --------------------------------------------------------------------------------------------------
# Verdicts


def test_verdicts_reach_their_rows():
  """Each verdict is of the text of its own row, whatever the order of rows."""
  run = _run("grpo")
  (batch, _, _), *_ = run.steps(1, lambda call, i, prompt, text: float(text.count("1")))
  rows = batch.rows
  for i in _valid(batch):
    response = rows.tokens[i, rows.response_start[i] : rows.length[i]].tolist()
    assert rows.correct[i] == rows.reward[i] == response.count(1)
  ((ids, texts),) = run.judge.calls
  assert len(ids) == BUDGET
  assert len(set(rows.correct.tolist())) > 1
  for sample, prompt, text in zip(batch.samples, ids, texts):
    assert (sample.prompt_id, sample.text) == (prompt, text)
    assert sample.num_tokens == len(text.split())
    assert sample.verdict.correct == sample.reward == text.count("1")
    assert sample.status in ("eos", "length")
  assert len(batch.samples) == BUDGET


def test_group_statistics_are_stamped_before_anything_is_dropped():
  """trials and successes of the whole group; prior from the steps before."""
  successes, trials = np.zeros(9), np.zeros(9)
  rule = lambda call, i, prompt, text: float((i + call) % 3 == 0)
  for batch, _, _ in _run("dapo").steps(6, rule):
    rows = batch.rows
    for i in _valid(batch):
      m = rows.prompt_id[i]
      mates = _valid(batch)[rows.group[_valid(batch)] == rows.group[i]]
      assert rows.trials[i] == batch.tally.trials[m] == len(mates)
      assert rows.successes[i] == batch.tally.successes[m] == rows.correct[mates].sum()
      np.testing.assert_allclose(rows.prior[i], (1 + successes[m]) / (2 + trials[m]), rtol=1e-6)
    successes += batch.tally.successes
    trials += batch.tally.trials
  assert trials.sum() >= 6 * BUDGET


def test_beliefs_learn_from_what_was_dropped():
  (_, collector, _), *_ = _run("dapo").steps(1, _zero)
  belief = _run("dapo").recipe.posterior.belief(collector.posterior, jnp.arange(9))
  drawn = 3 * BUDGET / 9
  assert (np.asarray(belief.mean) < 0.5).all()
  np.testing.assert_allclose(np.mean(belief.evidence), 2 + drawn, rtol=1e-5)


def test_metrics_by_hand():
  """Three groups: one all right, one all wrong, one mixed with partial credit."""
  run = _run("grpo")
  size = {}

  def rule(call, i, prompt, text):
    first = size.setdefault(prompt, len(size))  # the order in which prompts appear
    return [1.0, 0.0, [1.0, 0.25][i % 2]][first]

  (batch, _, _), *_ = run.steps(1, rule)
  rows, metrics = batch.rows, batch.metrics
  reward = rows.reward[_valid(batch)]
  assert sorted(reward.tolist()) == [0, 0, 0, 0.25, 1, 1, 1, 1]
  np.testing.assert_allclose(metrics["reward/mean"], 4.25 / 8)
  np.testing.assert_allclose(metrics["reward/std"], np.std([0, 0, 0, 0.25, 1, 1, 1, 1]), rtol=1e-5)
  assert metrics["group/frac_zero_std"] == pytest.approx(2 / 3)
  assert metrics["group/frac_all_0"] == metrics["group/frac_all_1"] == pytest.approx(1 / 3)
  length = (rows.length - rows.response_start)[_valid(batch)]
  np.testing.assert_allclose(metrics["completion/length_mean"], length.mean())
  assert metrics["completion/length_max"] == length.max()
  cut = [END not in rows.tokens[i, rows.response_start[i] :].tolist() for i in _valid(batch)]
  np.testing.assert_allclose(metrics["completion/truncated_frac"], np.mean(cut))
  assert metrics["completion/error_frac"] == 0.0
  assert metrics["rollout/rounds"] == 1 and metrics["group/trained"] == 3
  assert metrics["rollout/ticks"] == length.max()  # a slot for every row
  for name, source in (("even", 0), ("odd", 1)):
    mine = reward[rows.source[_valid(batch)] == source]
    np.testing.assert_allclose(metrics[f"reward/{name}/mean"], mine.mean(), rtol=1e-6)
  assert "reward/unused/mean" not in metrics


def test_metrics_of_several_rounds_are_of_all_rows():
  (batch, _, _), *_ = _run("dapo").steps(1, lambda call, i, prompt, text: float(call))
  assert batch.metrics["reward/mean"] == pytest.approx(1.0)  # of 0, 1 and 2
  assert batch.metrics["reward/std"] == pytest.approx(np.std([0, 1, 2]), rel=1e-5)
  assert batch.metrics["group/frac_zero_std"] == 1.0


def test_t17_a_reward_of_zero_is_a_reward():
  """0.0, an int and True are numbers, and a group that is half 0.0 has a mean."""
  (batch, _, _), *_ = _run("grpo").steps(1, lambda call, i, prompt, text: [0.0, 1, True, 0][i % 4])
  assert sorted(batch.rows.reward.tolist()) == [0, 0, 0, 0, 1, 1, 1, 1]
  assert batch.tally.trials.sum() == BUDGET and batch.tally.successes.sum() == 4


# --------------------------------------------------------------------------------------------------
# Sizes


def test_nothing_recompiles():
  run = _run("dapo")
  run.steps(2, _zero)
  with CompileCounter() as compiled:
    for rule in (None, _zero, _even_mixed):
      run.steps(3, rule)
    assert compiled.count == 0


def _make(num=9, **changes):
  options = dict(prompts=PROMPTS, budget=BUDGET, max_new_tokens=NEW, eos_ids=[END], sources=SOURCES)
  recipe = changes.pop("recipe", RECIPES["grpo"])
  return make_collect(POLICY, recipe, _table(num), Judge(), str, **{**options, **changes})


def test_sizes_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="a round needs 3 prompts, the table has 2"):
    _make(2)
  with pytest.raises(ValueError, match=r"plans waves \(6, 3\) for a budget of 8"):
    _make(recipe=RECIPES["grpo"]._replace(allocate=_waves(6, 3)))


def test_an_allocator_that_overspends_is_an_error():
  greedy = Allocator(
    lambda b, n: (6,),
    lambda prompts, knobs: (),
    lambda state, round, width, knobs: (jnp.full(PROMPTS, 3, jnp.int32), state),
  )
  recipe = RECIPES["grpo"]._replace(allocate=greedy)
  run = _run("grpo")
  with pytest.raises(ValueError, match="gave 9 rows to a wave of 6"):
    run._replace(collect=_make(recipe=recipe)).step(0, run.start())
