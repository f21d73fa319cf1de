"""Ready-made reward functions against worked cases."""

import pytest

from rlvr_jax.core.records import Verdict
from rlvr_jax.core.table import resolve
from rlvr_jax.reward import REWARDS
from rlvr_jax.reward import functions as f


def test_every_name_leads_to_a_function():
  assert {resolve("reward", name, REWARDS).__module__ for name in REWARDS} == {f.__name__}


def test_correct_is_the_verdict():
  assert f.correct(verdicts=[Verdict(1.0), Verdict(0.25)], prompts=["", ""]) == [1.0, 0.25]


@pytest.mark.parametrize(
  ("text", "expected"),
  [
    ("<think>a</think><answer>b</answer>", 1.0),
    ("  <think>\na\n</think>\n\n<answer>b</answer>\n", 1.0),
    ("<think></think><answer></answer>", 1.0),
    ("<think>a</think>", 0.0),
    ("<answer>b</answer><think>a</think>", 0.0),
    ("<think>a</think> so <answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</answer> Hope this helps!", 0.0),
    ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
    ("<think>a</think></think><answer>b</answer>", 0.0),
    ("<think>a<answer>b</answer></think>", 0.0),
    ("<think>a</think><answer>b", 0.0),
    ("</think>a<think><answer>b</answer>", 0.0),
    ("<think>a</think><answer>b</think></answer>", 0.0),
    ("", 0.0),
  ],
)
def test_format(text, expected):
  assert f.tags(completions=[text]) == [expected]


def test_format_with_other_tags_and_hostile_text():
  assert f.tags(completions=["<a>1</a>", "1"], tags=["a"]) == [1.0, 0.0]
  assert f.tags(completions=["<think></think><answer>" * 20_000]) == [0.0]


def test_t52_length_counts_tokens_not_characters():
  """DAPO's formula for L_max = 10 and L_cache = 4: free up to 6, -1/4 a token, -1 from 10 on."""
  lengths = [0, 6, 7, 8, 9, 10, 11, 50]
  out = f.length(
    completion_ids=[[1] * n for n in lengths], completions=["x" * 99] * 8, longest=10, margin=4
  )
  assert out == [0, 0, -0.25, -0.5, -0.75, -1, -1, -1]


@pytest.mark.parametrize("margin", [0, 11])
def test_length_margins(margin):
  with pytest.raises(ValueError, match="1 <= margin <= longest"):
    f.length(completion_ids=[[1]], longest=10, margin=margin)


@pytest.mark.parametrize(
  ("ids", "size", "expected"),
  [
    ([1, 2, 3, 4], 2, 0.0),
    ([1, 1, 1, 1], 2, 1 / 3 - 1),  # three bigrams, one of them distinct
    ([1, 2, 1, 2, 1], 2, 2 / 4 - 1),
    ([1, 2, 3, 1, 2, 3], 3, 3 / 4 - 1),
    ([5, 5], 3, 0.0),  # no trigram
    ([], 1, 0.0),
    ([7, 7, 7, 7, 7], 1, 1 / 5 - 1),
  ],
)
def test_repetition(ids, size, expected):
  assert f.repetition(completion_ids=[ids], size=size) == pytest.approx([expected])


def test_repetition_of_nothing():
  with pytest.raises(ValueError, match="size must be at least 1"):
    f.repetition(completion_ids=[[1]], size=0)


@pytest.mark.parametrize(
  ("text", "scripts", "expected"),
  [
    ("The answer is 12.", ("latin",), 1.0),
    ("答案是 twelve", ("latin",), 6 / 9),
    ("答案是 twelve", ("cjk",), 3 / 9),
    ("答えはカツ", ("hiragana", "katakana", "cjk"), 1.0),
    ("Ответ", ("latin",), 0.0),
    ("Ａ é ß", ("latin",), 1.0),  # full width, accents
    ("12 + 30 = 42", ("latin",), None),
    ("", ("latin",), None),
  ],
)
def test_language(text, scripts, expected):
  assert f.language(completions=[text], scripts=scripts) == [
    expected if expected is None else pytest.approx(expected)
  ]


def test_an_unknown_script():
  with pytest.raises(ValueError, match="unknown script 'latn'; did you mean latin"):
    f.language(completions=["a"], scripts=["latn"])
