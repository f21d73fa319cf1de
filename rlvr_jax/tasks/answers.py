"""Reading the answer out of a completion, and comparing it with the reference.

Everything here is linear in the length of the text, and nothing is ever evaluated: completions are
written by a policy that is paid for what passes.
"""

import re
from fractions import Fraction

# A number as it stands in prose: fraction in LaTeX, or sign, currency, digits with separators,
# decimals, exponent, denominator. A minus after a word, digit or bracket is an operator.
_FRAC = r"\\[dt]?frac *\{[^{}]*\} *\{[^{}]*\}"
_PLAIN = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:/[0-9]+(?:\.[0-9]+)?)?"
_IN_PROSE = re.compile(rf"((?<![\w)\]}}])[-−])?(\\?\$)?({_FRAC}|(?<![A-Za-z0-9_]){_PLAIN})")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")

_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_VALUE = re.compile(rf"([+-]?)({_DECIMAL})(?:[eE]([+-]?[0-9]+))?(?:/({_DECIMAL}))?")
_FRACTION = re.compile(r"([+-]?)\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
_MAX_CHARACTERS = 1000  # of a number; longer ones are compared as text
_MAX_EXPONENT = 400
_TOLERANCE = Fraction(1, 10**9)

_ANSWER_IS = re.compile(r"the\s+(?:final\s+)?answer\s+is", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity|\\infty|∞)", re.IGNORECASE)


def extract(text: str, *, bare: str = "number") -> tuple[str | None, str]:
  r"""The final answer of a completion, and the rule that found it.

  Only the text after the last `</think>` counts, and a `<think>` that is not closed leaves no
  answer. Then the first rule whose mark is there decides:

    "boxed"          the last `\boxed{...}`, braces may nest
    "####"           the line after the last `####`
    "tag"            the last `<answer>...</answer>`
    "the answer is"  the sentence after the last "the (final) answer is"
    "number"/"text"  without a mark: see `bare`

  Of several boxes, tags or phrases the last is the answer, whatever the others hold. A box or tag
  whose last opening is not closed was cut off: there is no answer, also not from a later rule.
  Boxes and tags are taken whole. With bare="number" a line or sentence gives its last number, and
  one without a number is passed over.

  Args:
    text: the completion, without its prompt.
    bare: what an answer without a mark is: "number", the last number of the text, or "text", all
      of it.

  Returns:
    (answer, rule): the answer stripped of outer white space, None where there is none; the rule
    then says why ("unclosed think", "unclosed box", "unclosed tag", "empty", "none").
  """
  if bare not in ("number", "text"):
    raise ValueError(f'bare must be "number" or "text", not {bare!r}')
  text = text.rpartition("</think>")[2]
  if "<think>" in text:
    return None, "unclosed think"

  start = text.rfind(r"\boxed{")
  if start >= 0:
    return _found(_braced(text, start + len(r"\boxed{")), "boxed", "unclosed box")

  found = _line(text.rpartition("####")[2], bare) if "####" in text else None
  if found is not None:
    return _found(found, "####")

  start = text.rfind("<answer>")
  if start >= 0:
    inside, closed, _ = text[start + len("<answer>") :].partition("</answer>")
    return _found(inside if closed else None, "tag", "unclosed tag")

  ends = [phrase.end() for phrase in _ANSWER_IS.finditer(text)]
  found = _line(text[ends[-1] :], bare) if ends else None
  if found is not None:
    return _found(found, "the answer is")

  if bare == "text":
    return _found(text, "text")
  found = _last_number(text)
  return (None, "none") if found is None else (found, "number")


def _found(answer: str | None, rule: str, missing: str = "none") -> tuple[str | None, str]:
  if answer is None:
    return None, missing
  answer = answer.strip()
  return (answer, rule) if answer else (None, "empty")


def _braced(text: str, start: int) -> str | None:
  """What lies between an opened brace and the one that closes it; None if nothing does."""
  depth, place = 1, start
  while place < len(text):
    char = text[place]
    if char == "\\":
      place += 1  # an escaped character, which may be a brace, is no bracket
    elif char in "{}":
      depth += 1 if char == "{" else -1
      if depth == 0:
        return text[start:place]
    place += 1
  return None


def _line(text: str, bare: str) -> str | None:
  """The answer in the first line or sentence of the text."""
  text = text.lstrip(" \t\r\n:*")
  end = _SENTENCE_END.search(text)
  text = text[: end.start()] if end else text
  return text if bare == "text" else _last_number(text)


def _last_number(text: str) -> str | None:
  matches = _IN_PROSE.findall(text)
  if not matches:
    return None
  sign, _, last = matches[-1]
  last = last.rstrip(",")
  if "," in last and not _THOUSANDS.match(last):
    sign, last = "", last.rpartition(",")[2]  # a list of numbers: its last member
  return ("-" if sign else "") + last


def number(text: str) -> Fraction | None:
  r"""The exact value of a text that is one number and nothing else, or None.

  Reads `-5`, `1,234.5`, `18.`, `.5`, `1e3`, `1/2`, `\frac{1}{2}`, with `$` or `%` dropped: 50% is
  50, not 0.5, since benchmarks ask for "how many per cent". Not a number: nan, inf, x/0, more than
  1,000 characters, exponents beyond 400, and commas that do not part groups of three.
  """
  if len(text) > _MAX_CHARACTERS:
    return None
  text = re.sub(r"\\?[$%]", "", text).replace("−", "-").strip().rstrip(".")
  fraction = _FRACTION.fullmatch(text)
  if fraction:
    sign, *parts = fraction.groups()
    top, bottom = (_value(part) for part in parts)
    if top is None or not bottom:
      return None
    return -top / bottom if sign == "-" else top / bottom
  return _value(text)


def _value(text: str) -> Fraction | None:
  thousands = _THOUSANDS.match(text.lstrip("+-"))
  if thousands:
    text = text.replace(thousands[0], thousands[0].replace(",", ""), 1)
  match = _VALUE.fullmatch(text)
  if match is None:
    return None
  sign, top, exponent, bottom = match.groups()
  # The length first: int() of a long string of digits raises.
  if exponent is not None and (len(exponent) > 5 or abs(int(exponent)) > _MAX_EXPONENT):
    return None
  value = Fraction(top) * Fraction(10) ** int(exponent or 0)
  if bottom is not None:
    if Fraction(bottom) == 0:
      return None
    value /= Fraction(bottom)
  return -value if sign == "-" else value


def normalise(text: str) -> str:
  r"""The form in which texts are compared.

  Case, outer quotes, markdown stars and back-ticks, `$`, `%`, LaTeX spacing, `\left`, `\right`, a
  final full stop and white space beside punctuation do not count; `\text{...}` is a unit after a
  number, and dropped; elsewhere its content stands.
  """
  text = " ".join(text.replace("−", "-").split())
  text = re.sub(r"\\(?:left|right|[!,;: ])|\\?[$%]", "", text)
  text = re.sub(r"(?<=[0-9}]) ?\\(?:text|mathrm|mbox) ?\{[^{}]*\}$", "", text)
  text = re.sub(r"\\(?:text|mathrm|mbox) ?\{([^{}]*)\}", r"\1", text)
  text = re.sub(r" ?([,()\[\]{}=+*/^:;<>|]) ?", r"\1", text)
  return text.strip(" *`\"'").rstrip(".").strip(" *`\"'").casefold()


def equivalent(answer: str, reference: str) -> tuple[bool, str]:
  """Whether an answer means the same as the reference, and the rule that decided.

  Equal after `normalise` ("exact"), or both one number each and equal ("numeric"): exactly, or, if
  one of them is not whole, within 1e-9 of the reference, relative. So 0.3333 is not 1/3. An answer
  that is empty, nan or infinite is wrong whatever the reference ("empty", "not finite"); anything
  else is "different": units in plain letters, or prose around the value, do not pass.
  """
  left, right = normalise(answer), normalise(reference)
  if not left:
    return False, "empty"
  if _NOT_FINITE.fullmatch(left):
    return False, "not finite"
  if left == right:
    return True, "exact"
  a, b = number(left), number(right)
  if a is None or b is None:
    return False, "different"
  if a.denominator == 1 and b.denominator == 1:
    return a == b, "numeric"
  return abs(a - b) <= _TOLERANCE * abs(b), "numeric"
