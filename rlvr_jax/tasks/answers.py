"""Reading the answer out of a completion, and comparing it with the reference.

Everything here is linear in the length of the text, and nothing is ever evaluated: completions are
written by a policy that is paid for what passes.
"""

import re
from fractions import Fraction

# A number as it stands in prose: fraction in LaTeX, or sign, currency, digits with separators,
# decimals, exponent, denominator; a fraction may follow a whole number. A minus after a word, digit
# or bracket is an operator.
_PART = r" *(?:\{[^{}]*\}|[0-9])"
_FRAC = rf"(?:(?<![A-Za-z0-9_.,])[0-9]+ ?)?\\[dt]?frac{_PART}{_PART}"
_PLAIN = r"(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:/[0-9]+(?:\.[0-9]+)?)?"
_MIXED = r"[0-9]{1,3} [0-9]+/[0-9]+(?![0-9.])"
_CURRENCY = "$€£¥₹"
_IN_PROSE = re.compile(
  rf"((?<![\w)\]}}])[-−])?(\\?[{_CURRENCY}])?({_FRAC}|(?<![A-Za-z0-9_])(?:{_MIXED}|{_PLAIN}))"
)
_OR = re.compile(r",? *or *", re.IGNORECASE)
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")

_DECIMAL = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
_VALUE = re.compile(rf"([+-]?)({_DECIMAL})(?:[eE]([+-]?[0-9]+))?(?:/({_DECIMAL}))?")
_FRACTION = re.compile(r"([+-]?)([0-9]*)\\frac\{([^{}]*)\}\{([^{}]*)\}")
_MIXED_NUMBER = re.compile(r"([+-]?)([0-9]+) ([0-9]+)/([0-9]+)")
_FRAC_ARGUMENTS = re.compile(r"\\[dt]?frac *(\{[^{}]*\}|[0-9a-z]) *(\{[^{}]*\}|[0-9a-z])")
_MAX_CHARACTERS = 1000  # of a number; longer ones are compared as text
_MAX_EXPONENT = 400
_TOLERANCE = Fraction(1, 10**9)

_BOX = re.compile(r"\\(?:boxed|fbox) ?(?:\{|(?= ?[^\s{}]))")
_ANSWER_IS = re.compile(
  r"the\s+(?:final\s+|correct\s+)?answer\s+is\b(?!\s+not\b)|\banswer\**:", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"\n|\.(?=\s|$)")
_ASSIGNED = re.compile(r"^[a-z](?:_?[0-9a-z])?=(?!=)")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf|infinity|\\infty|∞)", re.IGNORECASE)

_POWER = r"( ?\^ ?\{?[23]\}?)?"
_LATEX_UNIT = re.compile(
  r"(?<=[0-9}]) ?(?:\\(?:text|mathrm|mbox) ?\{([^{}]*)\}|\^ ?\{? ?\\circ ?\}?|°)" + _POWER + "$"
)
_PLAIN_UNIT = re.compile(r"(?<=[0-9}]) ?([A-Za-z][A-Za-z/ ]*)" + _POWER + "$")
_MAX_UNIT = 40  # characters of one in plain letters
_UNIT_NAMES = {  # one line a unit: its sign, then its names in the singular
  "mm": "millimeter millimetre",
  "cm": "centimeter centimetre",
  "m": "meter metre",
  "km": "kilometer kilometre",
  "in": "inch inches",
  "ft": "foot feet",
  "yd": "yard",
  "mi": "mile",
  "mg": "milligram",
  "g": "gram",
  "kg": "kilogram",
  "lb": "pound",
  "oz": "ounce",
  "ml": "milliliter millilitre",
  "l": "liter litre",
  "ms": "millisecond",
  "s": "second sec",
  "min": "minute",
  "h": "hour hr",
  "day": "day",
  "week": "week",
  "month": "month",
  "year": "year",
  "degree": "degree deg",
  "radian": "radian rad",
  "percent": "percent",
  "dollar": "dollar usd",
  "cent": "cent",
  "euro": "euro eur",
  "unit": "unit",
  "mi/h": "mph",
  "km/h": "kph",
}
_UNITS = {name: sign for sign, names in _UNIT_NAMES.items() for name in (sign, *names.split())}


def extract(text: str, *, bare: str = "number") -> tuple[str | None, str]:
  r"""The final answer of a completion, and the rule that found it.

  Only the text after the last `</think>` counts, and a `<think>` that is not closed leaves no
  answer. Then the first rule whose mark is there decides:

    "boxed"          the last `\boxed{...}` or `\fbox{...}`, braces may nest; `\boxed 5` likewise
    "####"           the line after the last `####`
    "tag"            the last `<answer>...</answer>`
    "the answer is"  the sentence after the last "the (final) answer is", or "answer:"
    "number"/"text"  without a mark: see `bare`

  Of several boxes, tags or phrases the last is the answer, whatever the others hold. A box or tag
  whose last opening is not closed was cut off: there is no answer, also not from a later rule.
  Boxes and tags are taken whole. With bare="number" a line or sentence gives its last number, and
  one without a number is passed over; numbers joined by "or" are no answer ("2 or 3").

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

  start = max(text.rfind(r"\boxed"), text.rfind(r"\fbox"))
  if start >= 0:
    return _found(_boxed(text, start), "boxed", "unclosed box")

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


def _boxed(text: str, start: int) -> str | None:
  """The content of the box that starts here; without braces it is what stands before a space."""
  opened = _BOX.match(text, start)
  if opened is None:
    return None
  if opened[0].endswith("{"):
    return _braced(text, opened.end())
  return text[opened.end() :].split(maxsplit=1)[0].partition("$")[0].rstrip(".")


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
  text = text.replace("{,}", ",")
  last = before = None
  for match in _IN_PROSE.finditer(text):
    before, last = last, match
  if last is None or (before and _OR.fullmatch(text, before.end(), last.start())):
    return None
  sign, digits = last[1], last[3].rstrip(",")
  if _MIXED_NUMBER.fullmatch(digits) and number(digits) is None:
    sign, digits = None, digits.rpartition(" ")[2]  # two numbers side by side
  elif "," in digits and not _THOUSANDS.match(digits):
    sign, digits = None, digits.rpartition(",")[2]  # a list of numbers: its last member
  return ("-" if sign else "") + digits


def number(text: str) -> Fraction | None:
  r"""The exact value of a text that is one number and nothing else, or None.

  Reads `-5`, `1,234.5`, `1{,}234`, `18.`, `.5`, `1e3`, `1/2`, `\frac{1}{2}`, `\frac12`, and the mixed
  numbers `1 1/2` and `1\frac{1}{2}`, with currency signs and `%` dropped: 50% is 50, not 0.5, since
  benchmarks ask for "how many per cent". Not a number: nan, inf, x/0, more than 1,000 characters,
  exponents beyond 400, and commas that do not part groups of three.
  """
  if len(text) > _MAX_CHARACTERS:
    return None
  text = re.sub(rf"\\?[{_CURRENCY}%]", "", text).replace("−", "-").strip().rstrip(".")
  text = _latex_numbers(text)
  fraction = _FRACTION.fullmatch(re.sub(r" (?=\\frac)", "", text)) or _MIXED_NUMBER.fullmatch(text)
  if fraction:
    sign, whole, *parts = fraction.groups()
    top, bottom = (_value(part) for part in parts)
    if top is None or not bottom or (whole and not 0 <= top < bottom):
      return None
    value = int(whole or 0) + top / bottom
    return -value if sign == "-" else value
  return _value(text)


def _latex_numbers(text: str) -> str:
  r"""`\dfrac12` as `\frac{1}{2}`, and `1{,}234` as `1,234`."""
  text = _FRAC_ARGUMENTS.sub(
    lambda match: rf"\frac{{{match[1].strip('{}')}}}{{{match[2].strip('{}')}}}", text
  )
  return text.replace("{,}", ",")


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

  Case, outer quotes, markdown stars and back-ticks, currency signs, `%`, LaTeX spacing, `\left`,
  `\right`, the size of a `\frac`, a final full stop and white space beside punctuation do not count;
  nor does a unit after a number (`equivalent` says what is one). Elsewhere the content of `\text{...}`
  stands.
  """
  return _parts(text)[0]


def equivalent(answer: str, reference: str) -> tuple[bool, str]:
  r"""Whether an answer means the same as the reference, and the rule that decided, tried in order:

    "empty", "not finite"  an answer that is empty, nan or infinite is wrong whatever the reference
    "unit"                 wrong, if both have a unit, and not the same
    "exact"                equal after `normalise`
    "numeric"              both are one number each (`number`). Right if they are equal, or, if one
                           of them is not whole, within 1e-9 of the reference, relative: so 0.3333
                           is not 1/3
    "different"            wrong, for anything else, such as prose around the value

  Policy for units: a unit is what follows a number in `\text{...}`, `\mathrm{...}` or `\mbox{...}`, a
  degree sign, or the name of a common unit in plain letters ("18 dollars", "5 cm^2", "60 miles per
  hour"; not one letter alone, which may be a variable, and not "4 apples"). It may be left out on
  either side; nothing is converted. Currency signs and `%` are dropped like white space: `$18` is
  18, and 50% is 50. `x = 5` is 5 where the reference has no `=`.
  """
  left, left_unit = _parts(answer)
  right, right_unit = _parts(reference)
  if "=" not in right:
    left = _ASSIGNED.sub("", left)
  if not left:
    return False, "empty"
  if _NOT_FINITE.fullmatch(left):
    return False, "not finite"
  if left_unit and right_unit and left_unit != right_unit:
    return False, "unit"
  if left == right:
    return True, "exact"
  a, b = number(left), number(right)
  if a is None or b is None:
    return False, "different"
  if a.denominator == 1 and b.denominator == 1:
    return a == b, "numeric"
  return abs(a - b) <= _TOLERANCE * abs(b), "numeric"


def _parts(text: str) -> tuple[str, str | None]:
  """The normal form of a text without its unit, and the unit."""
  text = " ".join(text.replace("−", "-").split())
  text = re.sub(rf"\\(?:left|right|[!,;: ])|\\?[{_CURRENCY}%]", "", text)
  text = _latex_numbers(text).strip(" *`\"'").rstrip(".").strip(" *`\"'")
  text, unit = _without_unit(text)
  text = re.sub(r"\\(?:text|mathrm|mbox) ?\{([^{}]*)\}", r"\1", text)
  text = re.sub(r" ?([,()\[\]{}=+*/^:;<>|]) ?", r"\1", text)
  return text.strip(" *`\"'").rstrip(".").strip(" *`\"'").casefold(), unit


def _without_unit(text: str) -> tuple[str, str | None]:
  match = _LATEX_UNIT.search(text)
  if match:
    return text[: match.start()], _unit(match[1] or "degree", match[2]) or match[1]
  match = _PLAIN_UNIT.search(text, max(0, len(text) - _MAX_UNIT))
  if match and len(match[1]) > 1:
    unit = _unit(match[1], match[2])
    if unit and number(text[: match.start()]) is not None:
      return text[: match.start()], unit
  return text, None


def _unit(name: str, power: str | None) -> str | None:
  """One spelling for each common unit; None for what is none."""
  name = name.strip().casefold()
  for word, exponent in (("square ", "2"), ("sq ", "2"), ("cubic ", "3")):
    if name.startswith(word):
      name, power = name.removeprefix(word), exponent
  parts = re.split(r" per |/", name)
  parts = [_UNITS.get(part) or _UNITS.get(part.removesuffix("s")) for part in parts]
  if None in parts:
    return None
  return "/".join(str(part) for part in parts) + (power or "").strip("^{}")
