r"""Answers in LaTeX: expressions, tuples, intervals, sets, matrices, equations.

`verify` reads the final answer as `verify.verify` does and compares it by the rules of
`answers.equivalent` first. Only what those call "different" is handed to the math-verify package
(sympy); the extra `math` installs it. Rules, in this order:

  "exact", "numeric", ...  `answers.equivalent` decided; two numbers are never handed on
  "symbolic"               math-verify parsed both sides and compared them
  "brackets"               wrong: one is a set in braces, the other stands in brackets
  "not maths"              wrong: words, unbalanced braces, or longer than 500 characters
  "too large"              wrong: a tower of powers, a power or factorial beyond 10,000, or more than
                           20 brackets in each other
  "unparsable"             wrong: math-verify cannot read the answer

A list without brackets is a set, whatever its order: `1, 2` is `\{2, 1\}`. `(1, 2)` is a pair and an
open interval alike. Decimals that stand for an irrational number must agree to nine places. The form
of an answer is not looked at: `x^2-4` is right where `(x-2)(x+2)` was asked for. Without a mark all of
the completion is the answer, unless the reference is a number.

sympy can be made to work for ever by short texts. What is known to is refused above; the rest is
for the time and memory limits of `VerifierPool`, which does not take this verifier without workers.
"""

import functools
import logging
import re

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.answers import equivalent, normalise, number
from rlvr_jax.tasks.pool import needs_processes
from rlvr_jax.tasks.verify import final_answer

_MAX_CHARACTERS = 500
_MAX_DEPTH = 20
_PLACES = 9
_FUNCTIONS = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|exp|sqrt|and|or"
_COMMANDS = re.compile(r"\\(?:text|mathrm|mbox|begin|end) ?\{[^{}]*\}|\\[A-Za-z]+")
_WORD = re.compile(rf"(?!(?:{_FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{3,}}")
_POWER_OF_POWER = re.compile(r"[0-9)}] *\^ *[{(]? *[0-9]+ *[)}]? *\^|\^ *[{(] *[{(]? *[0-9]+ *\^")
_LARGE = re.compile(r"\^ *[{(]? *-? *[0-9]{5,}|[0-9]{5,} *[)}]* *!|[0-9.)}] *!(?= *!)|[0-9]{101,}")


@needs_processes
def verify(example: Example, text: str) -> Verdict:
  """Correct if the final answer is mathematically the reference; the module says by which rules.

  Raises:
    ImportError: without the math-verify package, when a comparison needs it.
    ValueError: for a reference that `check_reference` refuses.
  """
  answer, rule = final_answer(example, text)
  if answer is None:
    return Verdict(0.0, None, rule)
  same, how = equivalent(answer, example.answer)
  if how == "different":
    same, how = _symbolic(answer, example.answer)
  return Verdict(float(same), answer, f"{rule}, {how}")


def check_reference(answer: str) -> None:
  """Raises ValueError for a reference answer that cannot be read.

  Numbers, words and what else has no LaTeX mark ("Tuesday", "10:30") need no parser: if nothing else,
  the same text matches. The rest must be what math-verify reads; some hundredths of a second each.
  """
  if not isinstance(answer, str):
    raise ValueError(f"the reference answer must be a string, not {answer!r}")
  same, rule = equivalent(answer, answer)
  if not same:
    raise ValueError(f"no answer can match the reference {answer[:80]!r} ({rule})")
  if _is_latex(answer):
    why = _refusal(answer) or (None if _parse(answer) else "unparsable")
    if why is not None:
      raise ValueError(f"the reference answer {answer[:80]!r} cannot be read as LaTeX ({why})")


def _is_latex(text: str) -> bool:
  return number(normalise(text)) is None and re.search(r"[\\^{}]", normalise(text)) is not None


def _symbolic(answer: str, reference: str) -> tuple[bool, str]:
  why = _refusal(answer)
  if why is not None:
    return False, why
  gold = None if _refusal(reference) else _parse(reference)
  if gold is None:
    if _is_latex(reference):
      raise ValueError(f"the reference answer {reference[:80]!r} cannot be read as LaTeX")
    return False, "different"  # words: only the same words match
  if {_bracket(answer), _bracket(reference)} == {"set", "pair"}:
    return False, "brackets"
  value = _parse(answer)
  if value is None:
    return False, "unparsable"
  _, compare, _ = _package()
  same = compare(gold, value, float_rounding=_PLACES, timeout_seconds=None, raise_on_error=False)
  return bool(same), "symbolic"


def _refusal(text: str) -> str | None:
  """Why a text is not handed to sympy, or None."""
  if len(text) > _MAX_CHARACTERS:
    return "not maths"
  text = text.replace("**", "^")
  if _POWER_OF_POWER.search(text) or _LARGE.search(text):
    return "too large"
  if _WORD.search(_COMMANDS.sub(" ", text)):
    return "not maths"
  braces = brackets = 0
  for char in re.findall(r"\\.|[{}()\[\]]", text, re.DOTALL):
    braces += (char == "{") - (char == "}")
    brackets += (char in "([") - (char in ")]")
    if braces < 0:
      return "not maths"
    if braces + brackets > _MAX_DEPTH:
      return "too large"
  return "not maths" if braces else None


def _bracket(text: str) -> str:
  text = re.sub(r"\\(?:left|right|[!,;: ])|[\s$]", "", text).rstrip(".")
  if re.fullmatch(r"(?:[a-z]=)?\\?\{.*\\?\}", text, re.DOTALL):
    return "set"
  return "pair" if re.fullmatch(r"[(\[].*[)\]]", text, re.DOTALL) else "bare"


def _parse(text: str) -> list | None:
  """What math-verify makes of a whole text, as one expression in LaTeX; None if it cannot."""
  parse, _, config = _package()
  text = re.sub(r"\\?[$%]", "", text).replace("−", "-").replace("**", "^").strip().rstrip(".")
  text = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi ", text)
  try:
    parsed = parse(
      rf"\boxed{{{text}}}",
      extraction_config=[config],
      fallback_mode="no_fallback",
      parsing_timeout=0,  # none: its alarm works in the main thread alone; the pool keeps the time
      raise_on_error=True,
    )
  except (MemoryError, ImportError):
    raise
  except Exception:
    return None
  return parsed or None


@functools.cache
def _package():
  try:
    import math_verify
    from math_verify.parser import LatexExtractionConfig
  except ImportError as error:
    raise ImportError(
      'LaTeX answers need the math-verify package: pip install -e ".[math]"'
    ) from error
  for name in ("math_verify.parser", "math_verify.grader"):
    logging.getLogger(name).setLevel(logging.ERROR)  # it warns that nobody keeps the time
  return math_verify.parse, math_verify.verify, LatexExtractionConfig(boxed_match_priority=0)
