"""Multiple choice: the letter of an option, or the option itself.

example.metadata["choices"] holds the options in order, as texts for the letters A, B, C, ..., or as a
mapping letter -> text. example.answer is the letter of the right one, or its text.
"""

import re
import string
from collections.abc import Mapping, Sequence

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.answers import equivalent, extract

_LETTER = re.compile(
  r"(?:(?:option|choice|answer)\s+)?(?:[(\[]\s*([A-Za-z])\s*[)\]]|([A-Za-z])(?![A-Za-z0-9']))[.:)]?",
  re.IGNORECASE,
)
_REASON = re.compile(r"\s*(?:$|[,;]|(?:because|since|as)\b)", re.IGNORECASE)
_NAMED = re.compile(r"\b[B-HJ-Z]\b|\b[AI]\b(?! [a-z])")  # A and I are words, too
_BRACKETED = re.compile(r"[(\[]([A-Z])[)\]]")


def verify(example: Example, text: str) -> Verdict:
  """Correct if the completion chooses the reference's option.

  The answer is found by `answers.extract`: the last box, tag or phrase after the last `</think>`. It
  must be one option, by the first of these rules:

    "letter"  `B`, `(B)`, `[B]`, `B.`, `Option B`, perhaps with the text of that option, or a reason
              after a comma or "because" that names no other option
    "option"  the text of exactly one option (`answers.equivalent`)

  Without a mark the last line that is not empty is tried; then a letter in round or square brackets
  counts, if no other letter is in brackets anywhere. An answer that names several options, or a
  letter with the text of another option, is wrong ("several", "no option").

  Raises:
    ValueError: for metadata without choices, or a reference that is none of them.
  """
  choices = _choices(example)
  right = _reference(example.answer, choices)
  answer, rule = extract(text, bare="text")
  if answer is None:
    return Verdict(0.0, None, rule)
  letter, how = _read(answer, choices)
  if rule == "text" and letter is None:
    letter, how = _read(answer.splitlines()[-1], choices)
    if letter is None:
      named = {name for name in _BRACKETED.findall(answer) if name in choices}
      letter = named.pop() if len(named) == 1 else None
      how = "letter" if letter else "several" if named else how
  return Verdict(float(letter == right), letter or answer, f"{rule}, {how}")


def check_reference(example: Example) -> None:
  """Raises ValueError if the choices are unfit or the reference is none of them."""
  _reference(example.answer, _choices(example))


def _choices(example: Example) -> dict[str, str]:
  choices = example.metadata.get("choices")
  if isinstance(choices, Mapping):
    named = {str(letter).upper(): str(text) for letter, text in choices.items()}
  elif isinstance(choices, Sequence) and not isinstance(choices, str):
    named = dict(zip(string.ascii_uppercase, map(str, choices)))
    if len(choices) > len(named):
      raise ValueError(f"at most {len(named)} choices have a letter, got {len(choices)}")
  else:
    raise ValueError(f'metadata["choices"] must be a list or letter -> text, got {choices!r}')
  if not named or any(letter not in string.ascii_uppercase or not letter for letter in named):
    raise ValueError(f"choices must be named by one letter each, got {sorted(named)}")
  return named


def _reference(answer: str, choices: Mapping[str, str]) -> str:
  letter = answer.strip().strip("()[].").upper()
  if letter in choices:
    return letter
  same = _options(answer, choices)
  if len(same) != 1:
    raise ValueError(f"the reference {answer[:80]!r} is none of the choices {dict(choices)}")
  return same[0]


def _options(text: str, choices: Mapping[str, str]) -> list[str]:
  return [letter for letter, option in choices.items() if equivalent(text, option)[0]]


def _read(answer: str, choices: Mapping[str, str]) -> tuple[str | None, str]:
  """The letter that an answer chooses and the rule, or None and why not."""
  answer = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox) ?\{([^{}]*)\}", r"\1", answer)
  answer = answer.strip().strip("*`$\"' ")
  match = _LETTER.match(answer)
  letter = (match[1] or match[2]).upper() if match else None
  if match and letter in choices:
    rest = answer[match.end() :].strip(" *`.")
    if not rest or letter in _options(rest, choices):
      return letter, "letter"
    if _REASON.match(rest):
      others = {*_BRACKETED.findall(rest), *_NAMED.findall(rest)} & choices.keys() - {letter}
      return (None, "several") if others else (letter, "letter")
  same = _options(answer, choices)
  if len(same) == 1:
    return same[0], "option"
  return None, "several" if same else "no option"
