"""Verifiers: the judgement of one completion; `VerifierPool` runs them on many, safely."""

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.answers import equivalent, extract, number
from rlvr_jax.tasks.pool import VerifierPool

__all__ = ["VerifierPool", "equivalent", "exact", "extract", "final_answer", "number", "verify"]


def final_answer(example: Example, text: str) -> tuple[str | None, str]:
  """`extract`, where an answer without a mark is a number if the reference is one."""
  return extract(text, bare="text" if number(example.answer) is None else "number")


def verify(example: Example, text: str) -> Verdict:
  """Correct if the final answer of the completion is `equivalent` to the reference."""
  answer, rule = final_answer(example, text)
  if answer is None:
    return Verdict(0.0, None, rule)
  same, how = equivalent(answer, example.answer)
  return Verdict(float(same), answer, f"{rule}, {how}")


def exact(example: Example, text: str) -> Verdict:
  """Correct if the completion is the reference, but for white space around it."""
  answer = text.strip()
  return Verdict(float(answer == example.answer), answer, "exact")
