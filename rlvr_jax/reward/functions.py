"""Ready-made reward functions, called on the host as a user's own are: see train.rewards.

Each takes lists by keyword, one entry a completion, and returns a list with one value a completion; None
where it does not apply. What stands after the star is set in the config.
"""

import functools
import unicodedata
from collections.abc import Sequence
from typing import Any

from rlvr_jax.core.table import unknown

SCRIPTS = (
  "arabic", "armenian", "bengali", "cjk", "cyrillic", "devanagari", "georgian", "greek", "gujarati",
  "hangul", "hebrew", "hiragana", "katakana", "latin", "tamil", "telugu", "thai",
)  # fmt: skip


def correct(verdicts: Sequence[Any], **columns) -> list[float]:
  """What the task's verifier says: the reward there is when no functions are configured."""
  del columns
  return [verdict.correct for verdict in verdicts]


def tags(
  completions: Sequence[str], *, tags: Sequence[str] = ("think", "answer"), **columns
) -> list[float]:
  """1 if the completion is <a>...</a><b>...</b> for the tags a, b, ..., else 0.

  Each tag opens once and closes once, in this order, none inside another, with nothing but white space
  around them.

  Source: the format reward of DeepSeek-R1, arXiv 2501.12948.
  """
  del columns
  return [float(_follows(text, tags)) for text in completions]


def _follows(text: str, tags: Sequence[str]) -> bool:
  rest = text.strip()
  for tag in tags:
    opening, closing = f"<{tag}>", f"</{tag}>"
    if text.count(opening) != 1 or text.count(closing) != 1 or not rest.startswith(opening):
      return False
    rest = rest.partition(closing)[2].lstrip()
  return not rest


def length(
  completion_ids: Sequence[Sequence[int]], *, longest: int, margin: int, **columns
) -> list[float]:
  """A penalty for long completions, in tokens: 0, then falling in a line to -1.

      0                              up to longest - margin tokens
      (longest - margin - n) / margin  for n tokens beyond it
      -1                             from `longest` on

  Args:
    longest: tokens, the end token included. Use max_new_tokens to penalise what is cut off.
    margin: tokens over which the penalty grows, in [1, longest].

  Source: soft overlong punishment of DAPO, arXiv 2503.14476.
  """
  del columns
  if not 1 <= margin <= longest:
    raise ValueError(f"want 1 <= margin <= longest, got margin {margin} and longest {longest}")
  over = [max(len(ids) - (longest - margin), 0) for ids in completion_ids]
  return [0.0 - min(n / margin, 1.0) for n in over]


def repetition(completion_ids: Sequence[Sequence[int]], *, size: int = 3, **columns) -> list[float]:
  """A penalty for repeating oneself: minus the share of n-grams of tokens that came before.

      distinct n-grams / all n-grams - 1, in (-1, 0]

  A completion without an n-gram gets 0.

  Args:
    size: tokens of an n-gram, at least 1.
  """
  del columns
  if size < 1:
    raise ValueError(f"size must be at least 1, got {size}")
  return [_distinct(ids, size) - 1.0 for ids in completion_ids]


def _distinct(ids: Sequence[int], size: int) -> float:
  grams = [tuple(ids[i : i + size]) for i in range(len(ids) - size + 1)]
  return len(set(grams)) / len(grams) if grams else 1.0


def language(
  completions: Sequence[str], *, scripts: Sequence[str] = ("latin",), **columns
) -> list[float | None]:
  """Share of the letters that are written in the wanted scripts, in [0, 1].

  Tells Chinese from English, not German from English. Does not apply to a text without letters, such as
  a number.

  Args:
    scripts: of SCRIPTS; for Japanese, "hiragana", "katakana" and "cjk".

  Raises:
    ValueError: for an unknown script.

  Source: after the language consistency reward of DeepSeek-R1, arXiv 2501.12948, which counts words.
  """
  del columns
  for script in scripts:
    if script not in SCRIPTS:
      raise unknown("script", script, SCRIPTS)
  wanted = set(scripts)
  out: list[float | None] = []
  for text in completions:
    letters = [bool(wanted & _scripts(c)) for c in text if c.isalpha()]
    out.append(sum(letters) / len(letters) if letters else None)
  return out


@functools.lru_cache(maxsize=4096)
def _scripts(letter: str) -> frozenset[str]:
  """The words of the letter's Unicode name, its script among them: {"latin", "small", "letter", "a"}."""
  return frozenset(unicodedata.name(letter, "").lower().replace("-", " ").split())
