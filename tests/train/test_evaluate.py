"""pass@k by counting subsets, majorities by hand, and evaluation on a Markov chain."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import PromptTable
from rlvr_jax.train.evaluate import make_evaluate, pass_at_k, summarise
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
    _verdicts("1", "7", "2"),  # a tie goes to the first
  ]
  out = summarise("set", rows, ["a", "a", "b", "b", "b"])
  assert out == pytest.approx(
    {
      "eval/set/pass@1": (2 + 1 + 1 + 0 + 1) / 15,
      "eval/set/pass@3": 4 / 5,
      "eval/set/maj@3": 2 / 5,
      "eval/set/a/pass@1": 3 / 6,
      "eval/set/b/pass@1": 2 / 9,
    }
  )
  for name in out:
    find(name)  # declared


def test_one_sample_has_no_majority():
  assert set(summarise("set", [_verdicts("7")], ["a"])) == {"eval/set/pass@1", "eval/set/a/pass@1"}


def test_partial_credit_is_in_the_mean_but_solves_nothing():
  out = summarise("set", [[Verdict(0.5, "x"), Verdict(0.5, "x")]], ["a"])
  assert out["eval/set/pass@1"] == out["eval/set/maj@2"] == 0.5
  assert out["eval/set/pass@2"] == 0.0


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
