"""Reward functions: what they are given, what they may return, and what becomes of it."""

import asyncio
import sys
import types
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.core.types import Collector, PromptTable
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.reward import REWARDS
from rlvr_jax.reward.weighted import weighted
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.metrics import CompileCounter, find
from rlvr_jax.train.rewards import RewardError, RewardFunction, Scorer, reward_functions
from tests import toy

CHAT = ({"role": "user", "content": "2+2?"},)
EXAMPLES = [
  Example("1+1?", "2", "sums", {"level": 3}),
  Example(CHAT, "4", "sums", {"level": 4, "hint": "even"}),
]
TEXTS, IDS, VERDICTS = (
  ["2", "5", "4"],
  [[2], [5], [4, 1]],
  [Verdict(1.0, "2"), Verdict(0.0), Verdict(1.0)],
)


def _scorer(*calls, **args):
  return Scorer([RewardFunction(c.__name__, 1.0, c, args) for c in calls], EXAMPLES)


def _score(*calls, step=7, **args):
  with _scorer(*calls, **args) as scorer:
    return scorer([0, 0, 1], TEXTS, IDS, VERDICTS, step)


def _same(found, expected):
  assert found.dtype == np.float32
  np.testing.assert_array_equal(found, np.array([np.nan if v is None else v for v in expected]))


# --------------------------------------------------------------------------------------------------
# What a function is given


def test_a_function_gets_every_column_by_keyword():
  seen = {}

  def look(**columns):
    seen.update(columns)
    return [0] * 3

  _score(look)
  assert seen == {
    "prompts": ["1+1?", "1+1?", list(CHAT)],
    "completions": TEXTS,
    "completion_ids": IDS,
    "verdicts": VERDICTS,
    "answer": ["2", "2", "4"],
    "source": ["sums"] * 3,
    "difficulty": [0] * 3,
    "level": [3, 3, 4],
    "hint": [None, None, "even"],
  }


def test_a_function_takes_what_it_names_and_what_the_config_sets():
  def few(completions, level, scale=1, *, add):
    return [scale * len(c) + one + add for c, one in zip(completions, level)]

  _same(_score(few, scale=10, add=0.5)["few"], [13.5, 13.5, 14.5])


def test_a_function_cannot_change_what_the_next_one_sees():
  def greedy(completions, **columns):
    completions.clear()
    return [0.0] * 3

  def count(completions, **columns):
    return [float(len(completions))] * 3

  _same(_score(greedy, count)["count"], [3, 3, 3])


def test_a_column_of_the_data_goes_before_the_field_of_that_name():
  def look(answer):
    return [len(answer[0])]

  with Scorer(
    [RewardFunction("look", 1.0, look)], [Example("", "2", "s", {"answer": "long"})]
  ) as s:
    _same(s([0], [""], [[]], [Verdict(0.0)], 0)["look"], [4])


def test_columns_that_do_not_fit_are_refused_at_the_start():
  def needs(completions, hints):
    return completions

  with pytest.raises(ValueError, match=r"'needs' needs 'hints'.*there are answer, .*hint, level"):
    _scorer(needs)
  with pytest.raises(ValueError, match="get 'prompts' from us: rename"):
    Scorer([RewardFunction("f", 1.0, len)], [Example("", "", "", {"prompts": 1})])


# --------------------------------------------------------------------------------------------------
# What it may return


@pytest.mark.parametrize(
  ("returned", "expected"),
  [
    ([0.0, None, 1], [0, None, 1]),  # T17: 0.0 is a score, None is none
    ([True, False, None], [1, 0, None]),
    ((1, 2, 3), [1, 2, 3]),
    (np.array([1, 2, 3], np.int8), [1, 2, 3]),
    (jnp.array([0.5, 1.0, 2.0], jnp.float32), [0.5, 1, 2]),
    ([np.float64(0.25), np.bool_(True), jnp.float32(2.0)], [0.25, 1, 2]),
    ([Fraction(1, 4), 0, -0.5], [0.25, 0, -0.5]),
    ([None, None, None], [None, None, None]),
  ],
  ids=str,
)
def test_t17_values(returned, expected):
  def given(**columns):
    return returned

  _same(_score(given)["given"], expected)


@pytest.mark.parametrize(
  ("returned", "match"),
  [
    ([1.0, 2.0], "3 values, one a completion, but returned 2"),
    ([1.0] * 4, "but returned 4"),
    (1.0, "not a float: 1.0"),
    (None, "not a NoneType"),
    ("111", "not a str"),
    ({"a": 1, "b": 2, "c": 3}, "not a dict"),
    ((x for x in (1, 2, 3)), "not a generator"),
    ({1, 2, 3}, "not a set"),
    (np.ones((3, 1)), r"not an array of shape \(3, 1\)"),
    (np.float32(1), r"not a float32|not an array of shape \(\)"),
    ([[1.0], [2.0], [3.0]], "value 0 is a list"),
    ([1.0, "1", 0.0], "value 1 is a str: '1'"),
    ([1.0, 1j, 0.0], "value 1 is a complex"),
    ([1.0, float("nan"), 0.0], "each finite; value 1 is nan. None says"),
    ([1.0, float("inf"), 0.0], "each finite"),
    ([1.0, 1e39, 0.0], "each finite"),  # beyond float32
  ],
  ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_is_no_reward_names_the_function_and_the_step(returned, match):
  def odd(**columns):
    return returned

  with pytest.raises(RewardError, match=match) as error:
    _score(odd, step=12)
  assert "reward 'odd' at step 12" in str(error.value)


def test_t53_two_functions_of_three_samples_are_three_values_each():
  def one(**columns):
    return [1, 2, 3]

  def two(**columns):
    return [None, 5, 6]

  out = _score(one, two)
  assert {k: v.shape for k, v in out.items()} == {"one": (3,), "two": (3,)}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_exception_names_the_function_the_step_and_the_line(kind):
  def broken(completions, **columns):
    raise KeyError("gone")

  async def broken_later(completions, **columns):
    raise KeyError("gone")

  call = broken if kind == "sync" else broken_later
  with pytest.raises(RewardError) as error:
    _score(call, step=3)
  text = str(error.value)
  assert f"reward {call.__name__!r} failed at step 3: KeyError: 'gone'" in text
  assert "test_rewards.py, line" in text
  assert isinstance(error.value.__cause__, KeyError)


def test_coroutines_run_side_by_side_on_one_loop():
  """Each waits for the other; the loop is there again at the next step, as open connections need."""
  events, loops = {}, []

  def waits(me, other):
    async def call(**columns):
      loops.append(asyncio.get_running_loop())
      events.setdefault(me, asyncio.Event()).set()
      await asyncio.wait_for(events.setdefault(other, asyncio.Event()).wait(), 30)
      return [1, None, 0]

    call.__name__ = me
    return call

  with _scorer(waits("a", "b"), waits("b", "a")) as scorer:
    for step in range(2):
      out = scorer([0, 0, 1], TEXTS, IDS, VERDICTS, step)
      _same(out["a"], [1, None, 0])
      _same(out["b"], [1, None, 0])
  assert len(set(map(id, loops))) == 1 and len(loops) == 4


def test_coroutines_run_under_a_loop_too():
  """As in a notebook, where one is running already."""

  async def later(**columns):
    await asyncio.sleep(0)
    return [1, 2, 3]

  async def notebook():
    return _score(later)

  _same(asyncio.run(notebook())["later"], [1, 2, 3])


def test_without_functions_nothing_is_called():
  assert Scorer((), EXAMPLES)([0], ["x"], [[1]], [Verdict(1.0)], 0) == {}


# --------------------------------------------------------------------------------------------------
# Names in a config


@pytest.fixture
def mine(monkeypatch):
  module = types.ModuleType("my_rewards")
  module.brief = lambda completions, most=3: [float(len(c) <= most) for c in completions]
  module.format = lambda **columns: []
  module.number = 3
  monkeypatch.setitem(sys.modules, "my_rewards", module)
  return module


def test_names_weights_and_arguments(mine):
  out = reward_functions({"correct": 1, "my_rewards:brief": {"weight": -0.5, "most": 4}}, REWARDS)
  assert [(f.name, f.weight, dict(f.args)) for f in out] == [
    ("correct", 1.0, {}), ("brief", -0.5, {"most": 4})
  ]  # fmt: skip
  assert out[1].call is mine.brief


@pytest.mark.parametrize(
  ("rewards", "match"),
  [
    ({"fromat": 1.0}, "unknown reward 'fromat'; did you mean format"),
    ({"my_rewards:breif": 1.0}, "cannot load 'my_rewards:breif'"),
    ({"my_rewards:number": 1.0}, "is a int, not a function"),
    ({"format": 1.0, "my_rewards:format": 1.0}, "two reward functions are called 'format'"),
    ({"repetition": {"weight": 1.0, "sise": 2}}, "unknown argument of .*'sise'; did you mean size"),
    ({"my_rewards:brief": {"weight": 1.0, "mots": 2}}, "'mots'; did you mean most"),
  ],
)
def test_names_that_lead_nowhere(mine, rewards, match):
  with pytest.raises(ValueError, match=match):
    reward_functions(rewards, REWARDS)


# --------------------------------------------------------------------------------------------------
# In a step: nine prompts of a Markov chain, three a round, groups of 3, 3 and 2

VOCAB, END, NEW, PLACES, NUM = 5, 4, 4, 2, 9
POLICY = toy.table_policy(VOCAB, PLACES + NEW)
PARAMS = {"table": jax.random.normal(jax.random.key(0), (PLACES + NEW, VOCAB, VOCAB))}
PROMPTS = [Example(str(i), "", ("even", "odd")[i % 2], {"number": i}) for i in range(NUM)]


def _verify(ids, texts):
  return [Verdict(float(text.startswith("0"))) for text in texts]


def _step(recipe, *functions):
  """(batch on the host, books) of one step, and a second one that compiles nothing."""
  table = PromptTable(
    tokens=jnp.asarray([[i % 4, i // 4] for i in range(NUM)], jnp.int32),
    length=jnp.asarray([1 + i % 2 for i in range(NUM)], jnp.int32),
    source=jnp.asarray([i % 2 for i in range(NUM)], jnp.int32),
  )
  with Scorer(functions, PROMPTS) as scorer:
    collect = make_collect(
      POLICY, recipe, table, _verify, lambda ids: " ".join(map(str, ids)), prompts=3, budget=8,
      max_new_tokens=NEW, eos_ids=[END], sources=("even", "odd"), scorer=scorer,
    )  # fmt: skip
    collector = Collector(
      posterior=recipe.posterior.init(table),
      replay=(),
      visited=jnp.zeros(NUM, bool),
      epoch=jnp.zeros((), jnp.int32),
      key=jax.random.key_data(jax.random.key(1)),
    )
    args = PARAMS, jnp.int32(0), recipe.control.init(table)
    collector, batch, books, _ = collect(*args, collector, ledger.new(NUM))
    collect(*args, collector, books)
    with CompileCounter() as compiled:
      collect(*args, collector, books)
    assert compiled.count == 0
  return jax.device_get(batch), books


def _last(completions, **columns):
  """The last token; does not apply to a completion that ends by itself."""
  return [None if c.endswith(str(END)) else int(c[-1]) for c in completions]


def _number(number, **columns):
  """The prompt's number; applies to prompts that are no multiples of 3."""
  return [n if n % 3 else None for n in number]


@pytest.fixture(scope="module")
def plain():
  return _step(grpo())


@pytest.fixture(scope="module")
def scored():
  recipe = grpo()._replace(reward=weighted(last=2.0, number=0.5))
  last, number = RewardFunction("last", 2.0, _last), RewardFunction("number", 0.5, _number)
  return _step(recipe, last, number, RewardFunction("watch", 0.0, lambda number: number))


def _by_uid(batch):
  rows = batch.rows
  return {tuple(rows.uid[i].tolist()): i for i in np.flatnonzero(rows.valid)}


def test_values_reach_their_rows_and_rows_without_any_stay_out(plain, scored):
  """Worked out from the rows of a run without rewards, which samples the same tokens."""
  (before, _), (after, books) = plain, scored
  left, rewards, values = _by_uid(after), [], {"last": [], "number": []}
  for uid, i in _by_uid(before).items():
    rows = before.rows
    response = rows.tokens[i, rows.response_start[i] : rows.length[i]].tolist()
    last = None if response[-1] == END else response[-1]
    number = int(rows.prompt_id[i]) if rows.prompt_id[i] % 3 else None
    if last is None and number is None:
      assert uid not in left
      continue
    j = left.pop(uid)
    for name, value in (("last", last), ("number", number)):
      stored = after.rows.extras[f"reward/{name}"][j]
      assert np.isnan(stored) if value is None else stored == value
      values[name] += [] if value is None else [value]
    expected = 2.0 * (last or 0) + 0.5 * (number or 0)
    assert after.rows.reward[j] == expected
    assert after.rows.correct[j] == rows.correct[i] == (response[0] == 0)
    rewards.append(expected)
  assert not left and 0 < len(rewards) < 8  # some were left out
  metrics = after.metrics
  assert metrics["reward/mean"] == pytest.approx(np.mean(rewards))
  assert metrics["reward/std"] == pytest.approx(np.std(rewards), rel=1e-5)
  for name, some in values.items():
    assert metrics[f"reward/{name}/mean"] == pytest.approx(np.mean(some))
    find(f"reward/{name}/mean")
  # Of weight 0: it applies to every row, and keeps none in the batch.
  assert metrics["reward/watch/mean"] == pytest.approx(np.mean(before.rows.prompt_id))
  assert not ledger.balance(books).any()
  made = before.rows.response_mask.sum()
  total = ledger.totals(books)
  assert total["generated"] == made
  assert total["rejected"] == made - after.rows.response_mask[after.rows.valid].sum() > 0


def test_t56_beliefs_and_filters_see_the_verdict_alone(plain, scored):
  for name in ("trials", "successes", "drawn", "tokens"):
    np.testing.assert_array_equal(getattr(plain[0].tally, name), getattr(scored[0].tally, name))
  for name in ("group/frac_all_0", "group/frac_all_1", "completion/length_mean"):
    assert plain[0].metrics[name] == scored[0].metrics[name]


def test_the_verdict_as_the_only_function_is_the_plain_reward(plain):
  """Bit for bit, but for what the function adds."""
  correct = RewardFunction("correct", 1.0, lambda verdicts: [v.correct for v in verdicts])
  batch, books = _step(grpo()._replace(reward=weighted(correct=1.0)), correct)
  np.testing.assert_array_equal(batch.rows.extras["reward/correct"], batch.rows.correct)
  jax.tree.map(np.testing.assert_array_equal, batch.rows.replace(extras={}), plain[0].rows)
  jax.tree.map(np.testing.assert_array_equal, books, plain[1])
  assert plain[0].rows.extras == {}
  mean = batch.metrics.pop("reward/correct/mean")
  assert batch.metrics == plain[0].metrics and mean == batch.metrics["reward/mean"]


def test_a_function_called_like_a_source_is_refused():
  with pytest.raises(ValueError, match="a data source are both called 'odd'"):
    _step(grpo(), RewardFunction("odd", 1.0, _last))
