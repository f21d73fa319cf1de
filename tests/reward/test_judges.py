"""Judges, clusterers and the rewards that read them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.reward import judges
from rlvr_jax.reward.flawed import flawed_positive
from rlvr_jax.train.rewards import RewardError, RewardFunction, Scorer
from tests import toy


def fapo_rows(clean, flawed, wrong):
  correct = [1.0] * (clean + flawed) + [0.0] * wrong
  found = [0.0] * clean + [1.0] * flawed + [1.0] * wrong  # of wrong ones nobody asks
  return toy.rows([0] * len(correct), correct, extras={"flaw": jnp.array(found, jnp.float32)})


@pytest.mark.parametrize(
  ("counts", "reward", "expect"),
  [
    ((1, 2, 5), [1, 0, 0, -1, -1, -1, -1, -1], [1.98431, 0.66144, 0.66144] + [-0.66144] * 5),
    (
      (4, 2, 2), [1, 1, 1, 1, 0, 0, -1, -1],
      [0.84611] * 4 + [-0.28204] * 2 + [-1.41019] * 2,
    ),
  ],
)  # fmt: skip
def test_worked_fapo(counts, reward, expect):
  rows = fapo_rows(*counts)
  out = flawed_positive(flaw="flaw")(rows, {})
  np.testing.assert_array_equal(out, reward)
  shaped = rows.replace(reward=out)
  np.testing.assert_allclose(group_mean(ddof=1)(shaped)[:, 1], expect, atol=1e-5)


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.5])
def test_when_flawed_responses_are_reinforced(penalty):
  for clean, wrong in [(1, 6), (2, 4), (3, 3), (5, 1), (6, 1)]:
    rows = fapo_rows(clean, 1, wrong)
    reward = np.asarray(flawed_positive(penalty=penalty, flaw="flaw")(rows, {}))
    sign = np.sign((2 - penalty) * wrong - penalty * clean)
    assert np.sign(np.round(reward[clean] - reward.mean(), 6)) == sign


def test_fapo_at_its_ends():
  rows = fapo_rows(2, 2, 4)
  plain = flawed_positive()(rows, {})
  np.testing.assert_array_equal(plain, [1] * 4 + [-1] * 4)
  np.testing.assert_array_equal(flawed_positive(penalty=0, flaw="flaw")(rows, {}), plain)
  as_wrong = flawed_positive(penalty=2, flaw="flaw")(rows, {})
  np.testing.assert_array_equal(as_wrong, [1, 1] + [-1] * 6)
  silent = rows.replace(extras={"flaw": jnp.full(8, jnp.nan)})
  np.testing.assert_array_equal(flawed_positive(flaw="flaw")(silent, {}), plain)
  with pytest.raises(ValueError, match=r"needs rows.extras\['judge'\]; the rows carry: flaw"):
    flawed_positive(flaw="judge")(rows, {})
  with pytest.raises(ValueError, match="penalty must lie"):
    flawed_positive(penalty=3)


def test_worked_judge_reward():
  cases = [(-1, -1), (3, -1), (-1, 5), (5, 5), (3, 5), (None, 5), (8, 5), (-2, -1)]
  out = [judges.judge_reward(p, t, 8) for p, t in cases]
  assert out == [1, -1, -1, 1, 0.75, -1, -1, -1]


@pytest.mark.parametrize(
  ("text", "first"),
  [
    ("2 + 3 = 5, then 5 * 4 = 20", -1),
    ("2+3=6, so 6 x 2 = 12", 0),
    ("7 - 9 = -2; -2 / 4 = -0.5; 0.5 × 3 = 1.6", 2),
    ("1 / 0 = 3", 0),
    ("no steps here", -1),
    ("", -1),
  ],
)
def test_arithmetic_judge(text, first):
  assert judges.arithmetic_judge([text]) == [first]


def test_clusters_of_answers_and_wording():
  texts = [
    "First add 3 and 4, then double the sum.",
    "first ADD 5 and 6; then double the sum",  # numbers, case and punctuation aside the same
    "First add 3 and 4, then double the sum.",  # another answer
    "Use the formula for a trapezoid instead.",
    "",
    "",
  ]
  answers = ["14", "14", "15", "14", None, None]
  assert judges.ngram_clusters(texts, answers) == [0, 0, 1, 2, 3, 3]
  assert judges.ngram_clusters(texts, ["1"] * 6) == [0, 0, 0, 1, 2, 2]
  # A chain joins its ends: a-b and b-c are alike, a-c is not.
  chain = ["a b c d e f", "c d e f g h", "e f g h i j"]
  assert judges.ngram_clusters(chain, ["x"] * 3, n=1, overlap=0.5) == [0, 0, 0]
  assert judges.ngram_clusters([chain[0], chain[2]], ["x"] * 2, n=1, overlap=0.5) == [0, 1]
  for args in ({"n": 0}, {"overlap": 0}):
    with pytest.raises(ValueError, match=next(iter(args))):
      judges.ngram_clusters(texts, answers, **args)


def score(function, texts, correct, prompts=(0,), parsed=None):
  """What the rows get, through the machinery that calls a user's reward functions."""
  ids = list(prompts) * (len(texts) // len(prompts))
  examples = [Example(f"prompt {i}", "", "toy") for i in range(2)]
  said = parsed or ["7"] * len(texts)
  verdicts = [Verdict(float(c), p) for c, p in zip(correct, said)]
  with Scorer([RewardFunction("plug", 0.0, function)], examples) as scorer:
    return scorer(ids, texts, [[1]] * len(texts), verdicts, 3)["plug"]


def test_a_judge_sees_right_completions_only():
  asked = []

  def judge(texts):
    asked.extend(texts)
    return [0 if "flaw" in t else None if "silent" in t else -1 for t in texts]

  texts = ["flaw", "fine", "flaw but wrong", "silent"]
  out = score(judges.judged(judge), texts, [1, 1, 0, 1])
  np.testing.assert_array_equal(out, [1, 0, 0, 0])
  assert asked == ["flaw", "fine", "silent"]
  np.testing.assert_array_equal(score(judges.flawed, ["1+1=3", "1+1=2"], [1, 1]), [1, 0])


def test_a_clusterer_sees_one_prompt_at_a_time():
  seen = []

  def clusterer(texts, answers):
    seen.append((texts, answers))
    return [None, *range(len(texts) - 1)]

  out = score(judges.clustered(clusterer), ["a", "b", "c", "d"], [1] * 4, (1, 0), list("wxyz"))
  assert seen == [(["a", "c"], ["w", "y"]), (["b", "d"], ["x", "z"])]
  np.testing.assert_array_equal(out, [-1, -1, 0, 0])
  np.testing.assert_array_equal(score(judges.strategy, ["a b", "A b"], [1, 1]), [0, 0])


@pytest.mark.parametrize(
  ("answer", "message"),
  [
    (lambda texts: [0], "judge '<lambda>' returned 1 values for 2 texts"),
    (lambda texts: [0, 0.5], "returned 0.5: expected a whole number or None"),
    (lambda texts: [1 / 0], "judge '<lambda>' failed: ZeroDivisionError"),
    (lambda texts: None, "judge '<lambda>' failed: TypeError"),
  ],
)
def test_a_bad_plug_in_names_itself(answer, message):
  with pytest.raises(RewardError, match=f"'plug' failed at step 3.*{message}"):
    score(judges.judged(answer), ["a", "b"], [1, 1])


def test_confidence():
  texts = ["<confidence>0.25</confidence>", "x <confidence> 1 </confidence>\n"]
  assert judges.confidence(texts) == [0.25, 1.0]
  for bad in ("", "0.5", "<confidence>1.5</confidence>", "<confidence>0.5</confidence> so",
              "<confidence>-0.5</confidence>", "<confidence>half</confidence>"):  # fmt: skip
    assert judges.confidence([bad]) == [None]
