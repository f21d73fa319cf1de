"""Verifiers: the judgement of one completion; `VerifierPool` runs them on many, safely.

A verifier is a function at the top of a module, verify(example, text) -> Verdict, so that it can be
sent to the processes of the pool. Ready-made:

  verify.verify    final answer against the reference, as number or text (`answers.equivalent`)
  verify.integer   the final answer is one whole number (AIME)
  verify.exact     the completion is the reference, character by character
  verify.json_value     the completion is, or ends in, the JSON value of the reference
  verify.pattern   the completion has the form example.metadata["pattern"]
  choice.verify    multiple choice among example.metadata["choices"]
  maths.verify     LaTeX: expressions, tuples, intervals, sets (extra: math)
  code.verify      Python against the unit tests of example.metadata["tests"], in a sandbox
  reasoning_gym_native.verify    the scorers of that package

Each verdict gives the answer that was read and the rules that read and judged it. Where a completion
holds several boxes, tags or phrases the last one is the answer, right or wrong (`answers.extract`).

A reference that a verifier could never confirm is an error of the data: `check_reference` here, in
`choice`, `maths` and `code` raise ValueError for it, and sources call them when they load.
"""

import json
import math
import re

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.answers import equivalent, extract, normalise, number
from rlvr_jax.tasks.pool import VerifierPool

__all__ = [
  "VerifierPool",
  "check_reference",
  "equivalent",
  "exact",
  "extract",
  "final_answer",
  "integer",
  "json_value",
  "number",
  "pattern",
  "verify",
]

_FENCED = re.compile(r"```[a-zA-Z]*[ \t]*\n(.*?)```", re.DOTALL)


def check_reference(answer: str) -> None:
  """Raises ValueError for a reference that `verify` never finds equal to any answer."""
  if not isinstance(answer, str):
    raise ValueError(f"the reference answer must be a string, not {answer!r}")
  same, rule = equivalent(answer, answer)
  if not same:
    raise ValueError(f"no answer can match the reference {answer[:80]!r} ({rule})")


def final_answer(example: Example, text: str) -> tuple[str | None, str]:
  """`extract`, where an answer without a mark is a number if the reference is one, unit aside."""
  reference = number(normalise(example.answer))
  return extract(text, bare="text" if reference is None else "number")


def verify(example: Example, text: str) -> Verdict:
  """Correct if the final answer of the completion is `equivalent` to the reference."""
  answer, rule = final_answer(example, text)
  if answer is None:
    return Verdict(0.0, None, rule)
  same, how = equivalent(answer, example.answer)
  return Verdict(float(same), answer, f"{rule}, {how}")


def integer(example: Example, text: str) -> Verdict:
  """Correct if the final answer is one whole number, the reference; `073` is 73, and so is `73.0`.

  Raises:
    ValueError: for a reference that is no whole number.
  """
  reference = number(normalise(example.answer))
  if reference is None or reference.denominator != 1:
    raise ValueError(f"the reference {example.answer[:80]!r} is no whole number")
  answer, rule = extract(text)
  if answer is None:
    return Verdict(0.0, None, rule)
  same, how = equivalent(answer, str(reference.numerator))
  return Verdict(float(same), answer, f"{rule}, {'integer' if how == 'numeric' else how}")


def exact(example: Example, text: str) -> Verdict:
  """Correct if the completion is the reference, but for white space around it."""
  answer = text.strip()
  return Verdict(float(answer == example.answer), answer, "exact")


def json_value(example: Example, text: str) -> Verdict:
  """Correct if the completion's JSON has the value of the reference, which is JSON too.

  The JSON is the last fenced block after the last `</think>`, or, without one, all the text there.
  Order of keys and white space do not count, 1 is 1.0 but not true; a key given twice, NaN and
  Infinity are not JSON.

  Raises:
    ValueError: if the reference is not JSON.
  """
  reference = _read_json(example.answer)
  answer, rule = _after_thoughts(text)
  if answer is None:
    return Verdict(0.0, None, rule)
  blocks = _FENCED.findall(answer)
  answer, rule = (blocks[-1].strip(), "fenced") if blocks else (answer, "text")
  try:
    value = _read_json(answer)
  except (ValueError, RecursionError):
    return Verdict(0.0, answer, f"{rule}, not JSON")
  return Verdict(float(_same_json(value, reference)), answer, f"{rule}, JSON")


def pattern(example: Example, text: str) -> Verdict:
  """Correct if the whole completion matches the regular expression example.metadata["pattern"].

  `.` matches line ends too. The pattern is the data's own: one that backtracks without end on some
  completion costs that completion its time limit in the pool.
  """
  matched = re.fullmatch(example.metadata["pattern"], text.strip(), re.DOTALL) is not None
  return Verdict(float(matched), text.strip(), "pattern")


def _after_thoughts(text: str) -> tuple[str | None, str]:
  text = text.rpartition("</think>")[2]
  if "<think>" in text:
    return None, "unclosed think"
  return (text.strip(), "") if text.strip() else (None, "empty")


def _read_json(text: str):
  def refuse(constant):
    raise ValueError(f"{constant} is not JSON")

  def once(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
      raise ValueError("a key is given twice")
    return dict(pairs)

  return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def _same_json(a, b) -> bool:
  if isinstance(a, dict) and isinstance(b, dict):
    return a.keys() == b.keys() and all(_same_json(a[key], b[key]) for key in a)
  if isinstance(a, list) and isinstance(b, list):
    return len(a) == len(b) and all(map(_same_json, a, b))
  if isinstance(a, bool) or isinstance(b, bool):
    return a is b
  if isinstance(a, float) and isinstance(b, float):
    return math.isclose(a, b, rel_tol=1e-9)
  return a == b
