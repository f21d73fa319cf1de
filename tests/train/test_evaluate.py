"""pass@k and maj@k by counting subsets, intervals, reports by hand, and evaluation on a Markov chain."""

import collections
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.core.types import PromptTable
from rlvr_jax.train.evaluate import (
  Response,
  interval,
  majority_at_k,
  make_evaluate,
  make_respond,
  pass_at_k,
  per_prompt,
  powers,
  records,
  report,
  summarise,
  text_tables,
)
from rlvr_jax.train.metrics import find
from tests import toy


@pytest.mark.parametrize("n", range(1, 7))
def test_t54_pass_at_k_counts_subsets(n):
  for c in range(n + 1):
    for k in range(1, n + 1):
      samples = [True] * c + [False] * (n - c)
      subsets = list(itertools.combinations(samples, k))
      expected = sum(map(any, subsets)) / len(subsets)
      assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
  ("n", "c", "k", "expected"),
  [(4, 1, 4, 1.0), (4, 0, 4, 0.0), (4, 1, 1, 0.25), (10, 3, 5, 1 - 21 / 252), (200, 0, 100, 0.0)],
)
def test_t54_pass_at_k_table(n, c, k, expected):
  assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0), (0, 0, 1)])
def test_t54_impossible_numbers_are_refused(n, c, k):
  with pytest.raises(ValueError):
    pass_at_k(n, c, k)


def _verdicts(*answers, right="7"):
  return [Verdict(float(a == right), parsed=a) for a in answers]


def test_summary_by_hand():
  rows = [
    _verdicts("7", "7", "1"),  # 2/3, majority right
    _verdicts("7", "1", "1"),  # 1/3, majority wrong
    _verdicts(None, None, "7"),  # what could not be parsed does not vote
    _verdicts(None, None, None),  # nobody votes
    _verdicts("1", "7", "2"),  # a tie: one of three is right
  ]
  out = summarise("set", rows, ["a", "a", "b", "b", "b"])
  assert out == pytest.approx(
    {
      "eval/set/avg@3": (2 + 1 + 1 + 0 + 1) / 15,
      "eval/set/pass@1": (2 + 1 + 1 + 0 + 1) / 15,
      "eval/set/pass@3": 4 / 5,
      "eval/set/maj@3": (1 + 0 + 1 + 0 + 1 / 3) / 5,
      "eval/set/a/pass@1": 3 / 6,
      "eval/set/b/pass@1": 2 / 9,
    }
  )
  for name in out:
    find(name)  # declared


def test_one_sample_has_no_majority():
  names = {"eval/set/avg@1", "eval/set/pass@1", "eval/set/a/pass@1"}
  assert set(summarise("set", [_verdicts("7")], ["a"])) == names


def test_partial_credit_is_in_the_mean_but_solves_nothing():
  out = summarise("set", [[Verdict(0.5, "x"), Verdict(0.5, "x")]], ["a"])
  assert out["eval/set/avg@2"] == out["eval/set/maj@2"] == 0.5
  assert out["eval/set/pass@1"] == out["eval/set/pass@2"] == 0.0


def _votes(row, k):
  """Mean over all subsets of k of the winner's verdict, winners of a tie counted evenly."""
  outcomes = []
  for some in itertools.combinations(row, k):
    count = collections.Counter(v.parsed for v in some if v.parsed is not None)
    best = [a for a in count if count[a] == max(count.values())]
    right = [next(v.correct for v in some if v.parsed == a) for a in best]
    outcomes.append(np.mean(right) if right else 0.0)
  return np.mean(outcomes)


@pytest.mark.parametrize("seed", range(8))
def test_majorities_count_subsets(seed):
  rng = np.random.default_rng(seed)
  right = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 0.0, None: 0.0}
  row = [Verdict(right[a], a) for a in rng.choice([*right], size=7, p=[0.3, 0.3, 0.1, 0.1, 0.2])]
  for k in range(1, 8):
    assert majority_at_k(row, k) == pytest.approx(_votes(row, k), abs=1e-12)


def test_majorities_that_need_no_counting():
  assert majority_at_k(_verdicts(*"7777"), 3) == 1.0
  assert majority_at_k(_verdicts(None, None), 2) == 0.0
  assert majority_at_k(_verdicts(*"7" * 60, *"1" * 40), 100) == pytest.approx(1.0)
  assert majority_at_k(_verdicts(*"7" * 50, *"1" * 50), 99) == pytest.approx(0.5)
  with pytest.raises(ValueError, match="at most 1000"):
    majority_at_k(_verdicts(*"7" * 1001), 1)
  for k in (0, 3):
    with pytest.raises(ValueError, match="needs at least"):
      majority_at_k(_verdicts("7", "7"), k)


@pytest.mark.parametrize(
  ("n", "ks"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (16, [1, 2, 4, 8, 16])]
)
def test_which_k_are_reported(n, ks):
  assert powers(n) == ks


def test_t54_each_prompt_by_counting():
  rows = [_verdicts(*a) for a in ("77111", "11111", "77777", "17171")]
  values = per_prompt(rows, [1, 2, 5])
  assert list(values) == ["avg@5", "pass@1", "pass@2", "pass@5", "maj@2", "maj@5"]
  for i, row in enumerate(rows):
    for k in (1, 2, 5):
      subsets = list(itertools.combinations([v.correct for v in row], k))
      assert values[f"pass@{k}"][i] == pytest.approx(np.mean([max(s) for s in subsets]))
    assert values["avg@5"][i] == pytest.approx(np.mean([v.correct for v in row]))
    assert values["maj@5"][i] == _votes(row, 5)
  with pytest.raises(ValueError, match="the same number of samples"):
    per_prompt([_verdicts("7"), _verdicts("7", "7")], [1])


def test_intervals_are_quantiles_of_all_resamples():
  """Four prompts: all 256 draws, whose quantiles the random ones approach."""
  values = np.array([0.0, 0.1, 0.4, 1.0])
  means = [np.mean(draw) for draw in itertools.product(values, repeat=4)]
  (low, high) = interval({"m": values}, seed=0, resamples=20_000, level=0.8)["m"]
  assert (low, high) == pytest.approx(np.quantile(means, [0.1, 0.9]), abs=0.015)


def test_intervals_cover_the_truth_as_often_as_they_say():
  rng, hits = np.random.default_rng(0), 0
  for seed in range(300):
    low, high = interval({"m": rng.random(60) < 0.3}, seed=seed, resamples=300)["m"]
    hits += low <= 0.3 <= high
  assert 0.90 < hits / 300 < 0.98


def test_intervals_depend_on_the_seed_alone():
  values = {"m": np.random.default_rng(0).random(50), "n": np.ones(50)}
  first = interval(values, seed=1, resamples=50)
  assert first == interval(values, seed=1, resamples=50) != interval(values, seed=2, resamples=50)
  assert first["n"] == (1.0, 1.0)


def test_report_by_hand():
  """Two sources, levels 1, 2 and unknown; tokens and endings counted."""
  answers = ["77", "71", "11"]
  endings = [("eos", 3), ("length", 8), ("eos", 1), ("eos", 2), ("length", 8), ("error", 0)]
  it = iter(endings)
  responses = []
  for i, one in enumerate(answers):
    row = [(verdict, *next(it)) for verdict in _verdicts(*one)]
    responses.append([Response(i, "text", tokens, ending, v) for v, ending, tokens in row])
  examples = [
    Example("p", "7", "a", difficulty=2),
    Example(({"role": "user", "content": "q"},), "7", "b", difficulty=1),
    Example("r", "7", "a"),
  ]
  out = report(responses, examples, seed=0)
  value = lambda part, metric: part["metrics"][metric]["value"]
  whole = out["all"]
  assert (whole["prompts"], whole["length_max"]) == (3, 8)
  assert whole["length_mean"] == pytest.approx(22 / 6)
  assert whole["truncated_frac"] == pytest.approx(2 / 6)
  assert whole["error_frac"] == pytest.approx(1 / 6)
  assert [value(whole, m) for m in ("avg@2", "pass@1", "pass@2", "maj@2")] == pytest.approx(
    [0.5, 0.5, 2 / 3, 0.5]
  )
  for one in whole["metrics"].values():
    assert 0 <= one["low"] <= one["value"] <= one["high"] <= 1
  assert {k: (v["prompts"], value(v, "pass@2")) for k, v in out["source"].items()} == {
    "a": (2, 0.5), "b": (1, 1.0)
  }  # fmt: skip
  assert {k: value(v, "pass@1") for k, v in out["difficulty"].items()} == {
    "1": 0.5, "2": 1.0, "unknown": 0.0
  }  # fmt: skip
  assert report(responses, [e._replace(difficulty=0) for e in examples], seed=0)["difficulty"] == {}
  assert json.loads(json.dumps(out)) == out

  tables = text_tables("set", out).splitlines()
  assert tables[0].split() == ["set", "mean", "95%", "interval"]
  assert tables[3].split()[:2] == ["pass@2", "0.667"]
  assert any(line.split()[:4] == ["difficulty", "1", "1", "0.500"] for line in tables)
  assert any(line.split()[:4] == ["b", "1", "0.500", "1.000"] for line in tables)
  assert max(map(len, tables)) < 100

  first, second = records("set", responses[1], examples[1])
  assert first["prompt"] == [{"role": "user", "content": "q"}]
  assert (first["correct"], first["parsed"], second["correct"], second["parsed"]) == (
    1,
    "7",
    0,
    "1",
  )
  assert (second["sample"], second["prompt_id"], second["ending"]) == (1, 1, "eos")


# --------------------------------------------------------------------------------------------------
# On a Markov chain: seven prompts, four samples each

NUM, VOCAB, NEW, END = 7, 5, 4, 4
POLICY = toy.table_policy(VOCAB, 2 + NEW)
PARAMS = {"table": jax.random.normal(jax.random.key(0), (2 + NEW, VOCAB, VOCAB))}
TABLE = PromptTable(
  tokens=jnp.asarray([[i % 4, i // 4] for i in range(NUM)], jnp.int32),
  length=jnp.asarray([1 + i % 2 for i in range(NUM)], jnp.int32),
  source=jnp.asarray([i % 2 for i in range(NUM)], jnp.int32),
)


def _evaluate(rows, samples=4, temperature=1.0, seed=0):
  """(evaluate, what the verifier is shown)."""
  seen = {}

  def verify(ids, texts):
    for prompt, text in zip(ids, texts, strict=True):
      seen.setdefault(prompt, []).append(text)
    return [Verdict(float(text.startswith("0")), parsed=text) for text in texts]

  run = make_evaluate(
    POLICY, "toy", TABLE, ["even" if i % 2 == 0 else "odd" for i in range(NUM)], verify,
    lambda ids: " ".join(map(str, ids)), samples=samples, rows=rows, max_new_tokens=NEW,
    temperature=temperature, eos_ids=[END], seed=seed,
  )  # fmt: skip
  return run, seen


@pytest.fixture(scope="module")
def whole():
  run, seen = _evaluate(100)
  return *run(PARAMS), dict(seen), run


@pytest.mark.parametrize("rows", [4, 8, 15])
def test_the_number_of_rows_does_not_matter(whole, rows):
  """Chunks of 1, 2 and 3 prompts of 7: the last one is padded, and its padding is not counted."""
  metrics, tokens, texts, _ = whole
  run, seen = _evaluate(rows)
  more, some = run(PARAMS)
  assert seen == texts
  assert (more, some) == (metrics, tokens)


def test_every_prompt_has_its_samples(whole):
  metrics, tokens, texts, _ = whole
  assert sorted(texts) == list(range(NUM))
  assert {len(t) for t in texts.values()} == {4}
  assert tokens == sum(len(t.split()) for ts in texts.values() for t in ts)
  rate = [np.mean([t.startswith("0") for t in texts[i]]) for i in range(NUM)]
  assert metrics["eval/toy/pass@1"] == pytest.approx(np.mean(rate))
  assert metrics["eval/toy/pass@4"] == pytest.approx(np.mean(np.array(rate) > 0))
  assert metrics["eval/toy/even/pass@1"] == pytest.approx(np.mean(rate[::2]))
  assert metrics["eval/toy/odd/pass@1"] == pytest.approx(np.mean(rate[1::2]))
  assert len({t for ts in texts.values() for t in ts}) > NUM  # samples differ


def test_responses_come_with_length_ending_and_verdict(whole):
  """Chunks of two prompts, whatever they are verified with: one row a prompt, in order."""
  _, _, texts, _ = whole
  respond = make_respond(
    POLICY, TABLE, lambda ids, some: [Verdict(1.0, t, str(i)) for i, t in zip(ids, some)],
    lambda ids: " ".join(map(str, ids)), samples=4, rows=8, max_new_tokens=NEW, temperature=1.0,
    eos_ids=[END], seed=0,
  )  # fmt: skip
  rows = list(respond(PARAMS))
  assert [{r.prompt_id for r in row} for row in rows] == [{i} for i in range(NUM)]
  for i, row in enumerate(rows):
    assert [r.text for r in row] == texts[i]
    for r in row:
      tokens = r.text.split()
      assert (r.num_tokens, r.verdict.parsed, r.verdict.rule) == (len(tokens), r.text, str(i))
      assert r.ending == ("eos" if tokens[-1] == str(END) else "length")
  assert {r.ending for row in rows for r in row} == {"eos", "length"}


def test_the_same_random_numbers_at_every_call(whole):
  metrics, tokens, _, run = whole
  assert run(PARAMS) == (metrics, tokens)
  other = {"table": PARAMS["table"].at[:, :, 0].add(9.0)}
  better, _ = run(other)
  assert better["eval/toy/pass@1"] == 1.0 > metrics["eval/toy/pass@1"]


def test_greedy():
  run, seen = _evaluate(100, samples=2, temperature=0.0)
  run(PARAMS)
  table = np.asarray(PARAMS["table"])
  for i, texts in seen.items():
    place, token, expected = int(TABLE.length[i]) - 1, None, []
    token = int(TABLE.tokens[i, place])
    while len(expected) < NEW and token != END:
      token = int(table[place, token].argmax())
      expected.append(str(token))
      place += 1
    assert texts == [" ".join(expected)] * 2


def test_samples_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="4 samples of a prompt do not fit 3 rows"):
    _evaluate(3)
