"""Countdown: make a target out of given numbers with + - * /."""

import ast
import operator
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rlvr_jax.core.records import Example, Task, Verdict
from rlvr_jax.tasks import reader
from rlvr_jax.tasks.answers import extract
from rlvr_jax.tasks.mixture import split
from rlvr_jax.tasks.prompts import make_task, style_of

TEMPLATE = "{question}\n\nThink it through, then give the expression in <answer> </answer>."
_RULES = {"all": "each number exactly once", "some": "each number at most once"}
_OPERATORS = {
  ast.Add: operator.add,
  ast.Sub: operator.sub,
  ast.Mult: operator.mul,
  ast.Div: operator.truediv,
}
_SIGNS = {"×": "*", "·": "*", "÷": "/", "−": "-", r"\times": "*", r"\cdot": "*", r"\div": "/"}
_MAX_CHARACTERS = 200  # of an expression


def countdown(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  eval_fraction: float = 0.0,
  use: str = "all",
  seed: int = 0,
  **style: Any,
) -> Task:
  """Countdown from .jsonl or .parquet files whose rows have `nums` (or `numbers`) and `target`.

  The difficulty is how many numbers there are. Whether a row can be solved is not checked.

  Args:
    train, evals, eval_fraction: where the rows are; see `tasks.reader.read`.
    use: "all": each number exactly once, as in the public sets; "some": each at most once.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: naming the row, for one that cannot be used.
  """
  _check_use(use)

  def parse(row: reader.Row) -> Example:
    numbers = reader.column(row, "nums", "numbers")
    if not isinstance(numbers, list) or not numbers:
      raise ValueError(f"the numbers are {numbers!r}, not a list of whole numbers")
    numbers = [reader.whole({"numbers": number}, "numbers") for number in numbers]
    return _example(numbers, reader.whole(row, "target"), use)

  made = style_of(countdown, style, template=TEMPLATE)
  sets = reader.read(parse, train=train, evals=evals, eval_fraction=eval_fraction)
  return make_task(*sets, verify=verify, style=made, seed=seed)


def countdown_generated(
  *,
  counts: Sequence[int] = (3, 4),
  largest: int = 100,
  largest_target: int = 1000,
  train_size: int = 4096,
  eval_size: int = 256,
  use: str = "all",
  seed: int = 0,
  **style: Any,
) -> Task:
  """Countdown drawn at random; every question can be solved, with whole numbers on the way.

  Args:
    counts: how many numbers a question may have, 2 to 8 each; drawn evenly.
    largest: of the numbers, which are 1 or more.
    largest_target: the target is between 1 and this.
    train_size, eval_size: examples; the held-out set is "heldout".
    use: see `countdown`.
    seed: of everything drawn.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: for an argument out of range, or sizes that the questions do not suffice for.
  """
  _check_use(use)
  if not counts or not all(2 <= count <= 8 for count in counts):
    raise ValueError(f"want counts of 2 to 8, got {list(counts)}")
  if not 1 <= largest <= largest_target:
    raise ValueError(f"want 1 <= largest <= largest_target, got {largest} and {largest_target}")

  def stream(part: str) -> Iterator[Example]:
    rng = random.Random(f"countdown {seed} {part}")
    while True:
      numbers = sorted(rng.randint(1, largest) for _ in range(rng.choice(counts)))
      target, expression = _combine(numbers, rng)
      if target <= largest_target:
        yield _example(numbers, target, use, expression)

  made = style_of(countdown_generated, style, template=TEMPLATE)
  train, heldout = split(
    {"countdown": stream}, [1.0], train_size=train_size, eval_size=eval_size, seed=seed
  )
  return make_task(train, {"heldout": heldout}, verify=verify, style=made, seed=seed)


def verify(example: Example, text: str) -> Verdict:
  """Correct if the final answer is an expression of the numbers that is exactly the target.

  Only whole numbers, + - * / and brackets; "= target" may follow. Values are fractions, so 1/3*3 is 1.
  The rule says what was wrong: "numbers" (others than given, or used too often or not at all),
  "value", "syntax", "division by zero", or that there is no answer.
  """
  answer, rule = extract(text, bare="text")
  if answer is None:
    return Verdict(0.0, None, rule)
  try:
    value, used = evaluate(answer)
  except (ValueError, ZeroDivisionError) as error:
    return Verdict(0.0, answer, f"{rule}, {error}")
  given = Counter(example.metadata["numbers"])
  if used - given or (example.metadata["use"] == "all" and used != given):
    return Verdict(0.0, answer, f"{rule}, numbers")
  return Verdict(float(value == example.metadata["target"]), answer, f"{rule}, value")


def evaluate(expression: str) -> tuple[Fraction, Counter[int]]:
  """The exact value of an expression, and how often each number is in it.

  Raises:
    ValueError: "syntax", for anything but numbers, + - * / and brackets in 200 characters, or an
      equals sign with another value behind it.
    ZeroDivisionError: "division by zero".
  """
  for sign, plain in _SIGNS.items():
    expression = expression.replace(sign, plain)
  expression = expression.strip().strip("$").strip()
  left, equals, right = expression.partition("=")
  # Characters first: the parser proper then never sees a name, a string or a power tower of digits.
  if len(expression) > _MAX_CHARACTERS or not re.fullmatch(r"[0-9+\-*/() ]+", left):
    raise ValueError("syntax")
  used: Counter[int] = Counter()
  try:
    value = _value(ast.parse(left.strip(), mode="eval").body, used)
  except (SyntaxError, MemoryError, RecursionError) as error:
    raise ValueError("syntax") from error
  except ZeroDivisionError as error:
    raise ZeroDivisionError("division by zero") from error
  if equals and (not re.fullmatch(r" *[0-9]{1,18} *", right) or value != int(right)):
    raise ValueError("syntax")
  return value, used


def _value(node: ast.expr, used: Counter[int]) -> Fraction:
  if isinstance(node, ast.Constant) and isinstance(node.value, int):
    used[node.value] += 1
    return Fraction(node.value)
  if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
    return _OPERATORS[type(node.op)](_value(node.left, used), _value(node.right, used))
  raise ValueError("syntax")


def _combine(numbers: Sequence[int], rng: random.Random) -> tuple[int, str]:
  """(value, expression) of all numbers, joined two at a time in a random way."""
  parts = [(number, str(number)) for number in numbers]
  while len(parts) > 1:
    rng.shuffle(parts)
    (a, left), (b, right) = parts.pop(), parts.pop()
    if a < b:
      a, b, left, right = b, a, right, left
    choices = [(a + b, "+"), (a * b, "*")]
    choices += [(a - b, "-")] if a > b else []
    choices += [(a // b, "/")] if a % b == 0 else []
    value, sign = rng.choice(choices)
    parts.append((value, f"({left} {sign} {right})"))
  value, expression = parts[0]
  return value, expression[1:-1]


def _example(numbers: Sequence[int], target: int, use: str, expression: str = "") -> Example:
  question = (
    f"Make {target} out of the numbers {', '.join(map(str, numbers))} with +, -, *, / and brackets. "
    f"Use {_RULES[use]}."
  )
  solution = {"solution": f"<answer>{expression}</answer>"} if expression else {}
  return Example(
    prompt=question,
    answer=str(target),
    source="countdown",
    metadata={"numbers": list(numbers), "target": target, "use": use} | solution,
    difficulty=len(numbers),
  )


def _check_use(use: str) -> None:
  if use not in _RULES:
    raise ValueError(f"use must be {' or '.join(map(repr, _RULES))}, not {use!r}")
