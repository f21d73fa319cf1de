import collections
import itertools
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.records import Example
from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.countdown import countdown_generated, evaluate, verify


def judged(text, *, numbers=(2, 3, 4), target=14, use="all"):
  metadata = {"numbers": list(numbers), "target": target, "use": use}
  return verify(Example("q", str(target), "countdown", metadata), text)


@pytest.mark.parametrize(
  ("text", "correct", "how"),
  [
    ("<answer>2 + 3*4</answer>", 1.0, "value"),
    ("<answer>(4 × 3) + 2 = 14</answer>", 1.0, "value"),
    (r"\boxed{2 + 3 \times 4}", 1.0, "value"),
    ("4*3+2", 1.0, "value"),
    ("<think>2+3*4</think><answer>4*2+3*2</answer>", 0.0, "numbers"),
    ("<answer>2+3*4</answer><answer>2*3*4</answer>", 0.0, "value"),
    ("<answer>14</answer>", 0.0, "numbers"),
    ("<answer>3*4+1+1</answer>", 0.0, "numbers"),
    ("<answer>2+3*4+0</answer>", 0.0, "numbers"),
    ("<answer>2+3*4 = 15</answer>", 0.0, "syntax"),
    ("<answer>2+3**4</answer>", 0.0, "syntax"),
    ("<answer>2+12</answer>", 0.0, "numbers"),
    ("<answer>2+3//4</answer>", 0.0, "syntax"),
    ("<answer>-2+3*4</answer>", 0.0, "syntax"),
    ("<answer>2(3+4)</answer>", 0.0, "syntax"),
    ("<answer>2 3 4</answer>", 0.0, "syntax"),
    ("<answer>2+3*4/(2-2)</answer>", 0.0, "division by zero"),
    ("<answer>__import__('os').getpid()</answer>", 0.0, "syntax"),
    ("<answer>" + "(" * 150 + "2" + ")" * 150 + "</answer>", 0.0, "syntax"),
    ("<answer>" + "(" * 99 + "2" + ")" * 99 + "</answer>", 0.0, "numbers"),
    ("<answer>9**9**9**9</answer>", 0.0, "syntax"),
    ("<answer>" + "9" * 10_000 + "</answer>", 0.0, "syntax"),
    ("<answer>2+3*4", 0.0, "unclosed tag"),
    ("", 0.0, "empty"),
  ],
)
def test_expressions_are_judged_exactly(text, correct, how):
  verdict = judged(text)
  assert (verdict.correct, verdict.rule.split(", ")[-1]) == (correct, how)


def test_numbers_may_be_left_out_where_that_is_the_rule():
  assert judged("3*4", target=12, use="some").correct == 1.0
  assert judged("3*4", target=12).correct == 0.0
  assert judged("3*4*1", target=12, use="some").correct == 0.0
  assert judged("3+3", target=6, use="some").correct == 0.0
  assert judged("3+3", numbers=(3, 3), target=6).correct == 1.0
  # Thirds are no rounding errors.
  assert judged("2/3*3", numbers=(2, 3, 3), target=2).correct == 1.0


_TREES = st.recursive(
  st.integers(0, 99).map(str),
  lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
    "({0[0]} {0[1]} {0[2]})".format
  ),
  max_leaves=8,
)


@given(_TREES)
def test_values_agree_with_python(expression):
  numbers = [
    int(token)
    for token in expression.replace("(", " ").replace(")", " ").split()
    if token.isdigit()
  ]
  in_fractions = " ".join(
    f"Fraction({token})" if token.isdigit() else token
    for token in expression.replace("(", "( ").replace(")", " )").split()
  )
  try:
    value = eval(in_fractions, {"Fraction": Fraction})
  except ZeroDivisionError:
    with pytest.raises(ZeroDivisionError):
      evaluate(expression)
  else:
    assert evaluate(expression) == (value, collections.Counter(numbers))


def solvable(numbers, target):
  """Whether some order of joining two of them at a time makes the target."""
  if len(numbers) == 1:
    return numbers[0] == target
  for i, j in itertools.permutations(range(len(numbers)), 2):
    a, b = numbers[i], numbers[j]
    rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
    for made in (a + b, a - b, a * b, *([a / b] if b else [])):
      if solvable([*rest, made], target):
        return True
  return False


def test_generated_questions_can_be_solved():
  task = countdown_generated(largest=20, largest_target=99, train_size=25, eval_size=5, few_shot=1)
  assert len(task.train) == 24 and len(task.evals["heldout"]) == 5
  for example in [*task.train, *task.evals["heldout"]]:
    numbers, target = example.metadata["numbers"], example.metadata["target"]
    assert example.difficulty == len(numbers) in (3, 4)
    assert all(1 <= n <= 20 for n in numbers) and 1 <= target <= 99
    assert solvable([Fraction(n) for n in numbers], target)
    assert task.verify(example, example.metadata["solution"]).correct == 1.0
    assert [turn["role"] for turn in example.prompt] == ["user", "assistant", "user"]
  assert {len(e.metadata["numbers"]) for e in task.train} == {3, 4}
  assert countdown_generated(train_size=5, eval_size=1, seed=1) != countdown_generated(
    train_size=5, eval_size=1
  )


def test_files_and_options(tmp_path):
  path = tmp_path / "countdown.jsonl"
  rows = [{"target": 98, "nums": [44, 19, 35]}, {"target": "6", "numbers": [1, 2, 3.0]}]
  path.write_text("\n".join(map(json.dumps, rows)))
  task = build("task", "countdown", TASKS, {"train": str(path), "use": "some"})
  assert [e.metadata["numbers"] for e in task.train] == [[44, 19, 35], [1, 2, 3]]
  assert "98 out of the numbers 44, 19, 35" in task.train[0].prompt[0]["content"]
  assert "at most once" in task.train[0].prompt[0]["content"]
  assert task.verify(task.train[1], "2*3").correct == 1.0
  path.write_text(json.dumps({"target": 98, "nums": [1.5]}))
  with pytest.raises(ValueError, match=r"countdown.jsonl:1: .*1.5, not a whole number"):
    build("task", "countdown", TASKS, {"train": str(path)})
  for args in (
    {"use": "any"},
    {"counts": [1]},
    {"largest": 0},
    {"largest": 9, "largest_target": 8},
  ):
    with pytest.raises(ValueError, match=r"use must be|want"):
      countdown_generated(**args)
  with pytest.raises(ValueError, match="has only"):
    countdown_generated(counts=(2,), largest=2, eval_size=50)
