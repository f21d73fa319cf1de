"""What only a look at the text can tell, as reward functions (see train.rewards) of weight 0: their values
land in rows.extras["reward/<name>"], where recipes read them.

`judged` and `clustered` make such a function of a judge or a clusterer, which may call a model elsewhere:

    judge(texts)               -> for each text, index of its first wrong step, -1: none, None: no answer
    clusterer(texts, answers)  -> for each text of ONE prompt, the number of its cluster, -1: in none

`flawed` and `strategy` are those that need no model.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

NUMBER = r"-?\d+(?:\.\d+)?"
STEP = re.compile(rf"({NUMBER})\s*([-+*/x×])\s*({NUMBER})\s*=\s*({NUMBER})")
APPLY: dict[str, Callable[[float, float], float]] = {
  "+": lambda a, b: a + b,
  "-": lambda a, b: a - b,
  "*": lambda a, b: a * b,
  "/": lambda a, b: a / b if b else float("nan"),
}


def arithmetic_judge(texts: Sequence[str]) -> list[int]:
  """Recomputes each `a op b = c` of a text: the index of the first that does not hold, -1 if all do."""

  def first(text):
    for i, (a, op, b, c) in enumerate(STEP.findall(text)):
      value = APPLY[op if op in APPLY else "*"](float(a), float(b))
      if not abs(value - float(c)) <= 1e-6 * max(1.0, abs(value)):
        return i
    return -1

  return [first(text) for text in texts]


def judge_reward(predicted: int | None, true: int, num_steps: int) -> float:
  """The reward for training a judge: it is to find the first wrong step, or that there is none.

      true = -1: 1 if predicted is -1, else -1;   otherwise 1 - |predicted - true| / num_steps, -1 for -1

  None, or a step that does not exist, gets -1.

  Source: FAPO, arXiv 2510.22543.
  """
  if predicted is None or not -1 <= predicted < num_steps:
    return -1.0
  if true < 0 or predicted < 0:
    return 1.0 if predicted == true else -1.0
  return 1 - abs(predicted - true) / num_steps


def ngram_clusters(
  texts: Sequence[str], answers: Sequence[str | None], *, n: int = 3, overlap: float = 0.5
) -> list[int]:
  """Clusters of texts with the same answer and much the same wording.

  Two texts are alike if their answers are equal and their sets of word n-grams overlap by at least
  `overlap` (Jaccard). Clusters are what chains of alike texts connect, numbered by first appearance.
  Words are lower-cased, every number counts as the same word, and punctuation between words is dropped;
  a text of fewer than n words is one n-gram.

  Args:
    texts, answers: of one prompt, equally many; None is an answer like any other.
    n: words of an n-gram.
    overlap: in (0, 1].
  """
  if n < 1:
    raise ValueError(f"n must be at least 1, got {n}")
  if not 0 < overlap <= 1:
    raise ValueError(f"overlap must lie in (0, 1], got {overlap}")
  if len(texts) != len(answers):
    raise ValueError(f"{len(texts)} texts and {len(answers)} answers")
  grams = [_ngrams(text, n) for text in texts]
  cluster = list(range(len(texts)))
  for i in range(len(texts)):
    for j in range(i):
      if answers[i] == answers[j] and _jaccard(grams[i], grams[j]) >= overlap:
        old, new = cluster[i], cluster[j]
        cluster = [new if c == old else c for c in cluster]
  number: dict[int, int] = {}
  return [number.setdefault(c, len(number)) for c in cluster]


def _ngrams(text: str, n: int) -> set[tuple[str, ...]]:
  words = re.findall(r"[-+*/=<>^]|\w+", re.sub(NUMBER, "0", text.lower()))
  return {tuple(words[i : i + n]) for i in range(max(len(words) - n + 1, 1))}


def _jaccard(a: set, b: set) -> float:
  return len(a & b) / len(a | b)


def judged(judge: Callable):
  """A reward function: 1.0 for a right completion in which the judge finds a wrong step, else 0.0.

  The judge is shown the right completions only; one that it has no answer for (None) is not flawed.
  """

  def flawed(completions: Sequence[str], verdicts: Sequence[Any], **columns) -> list[float]:
    del columns
    asked = [i for i, verdict in enumerate(verdicts) if verdict.correct > 0.5]
    found = _call("judge", judge, [completions[i] for i in asked], num=len(asked))
    out = [0.0] * len(completions)
    for i, step in zip(asked, found):
      out[i] = float(step is not None and step >= 0)
    return out

  return flawed


def clustered(clusterer: Callable):
  """A reward function: the clusterer's number for each completion; it sees one prompt's at a time. None
  counts as -1.

  With an allocator of several waves a prompt's completions come in parts, whose numbers are unrelated.
  """

  def strategy(
    prompts: Sequence[Any], completions: Sequence[str], verdicts: Sequence[Any], **columns
  ) -> list[int]:
    del columns
    same: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
      same.setdefault(repr(prompt), []).append(i)
    out = [-1] * len(completions)
    for mine in same.values():
      args = [completions[i] for i in mine], [verdicts[i].parsed for i in mine]
      for i, number in zip(mine, _call("clusterer", clusterer, *args, num=len(mine))):
        out[i] = -1 if number is None else number
    return out

  return strategy


def flawed(completions: Sequence[str], verdicts: Sequence[Any], **columns) -> list[float]:
  """Whether a right completion holds a calculation that is wrong: `judged` with `arithmetic_judge`."""
  return judged(arithmetic_judge)(completions, verdicts, **columns)


def confidence(
  completions: Sequence[str], *, tag: str = "confidence", **columns
) -> list[float | None]:
  """The number in [0, 1] between <tag> and </tag> at the end of a completion; None if there is none."""
  del columns
  pattern = re.compile(rf"<{re.escape(tag)}>\s*({NUMBER})\s*</{re.escape(tag)}>\s*$")
  found = [pattern.search(text) for text in completions]
  numbers = [float(match[1]) if match else None for match in found]
  return [q if q is not None and 0 <= q <= 1 else None for q in numbers]


def strategy(
  prompts: Sequence[Any],
  completions: Sequence[str],
  verdicts: Sequence[Any],
  *,
  n: int = 3,
  overlap: float = 0.5,
  **columns,
) -> list[int]:
  """Which completions of a prompt go the same way: `clustered` with `ngram_clusters`."""
  clusterer = functools.partial(ngram_clusters, n=n, overlap=overlap)
  return clustered(clusterer)(prompts, completions, verdicts, **columns)


def _call(kind: str, plugin: Callable, *args, num: int) -> list[int | None]:
  """plugin(*args), checked: a whole number or None for each of `num` texts.

  Raises:
    ValueError: naming the plug-in, if it raises or returns anything else.
  """
  name = f"{kind} {getattr(plugin, '__name__', type(plugin).__name__)!r}"
  try:
    out = list(plugin(*args))
  except Exception as error:
    raise ValueError(f"{name} failed: {type(error).__name__}: {error}") from error
  if len(out) != num:
    raise ValueError(f"{name} returned {len(out)} values for {num} texts")
  for value in out:
    if value is not None and (isinstance(value, bool) or int(value) != value):
      raise ValueError(f"{name} returned {value!r}: expected a whole number or None")
  return [None if value is None else int(value) for value in out]
