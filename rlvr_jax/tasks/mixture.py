"""Weighted mixtures of sources, split so that no held-out question is trained on."""

import hashlib
import math
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from rlvr_jax.core.records import Example

ROW = "file_row"  # of the metadata: where an example was read from, for a person
Stream = Callable[[str], Iterable[Example]]  # ("train" or "eval") -> examples, maybe without end


def shares(total: int, weights: Sequence[float]) -> list[int]:
  """Whole numbers in proportion to the weights that sum to `total`: largest remainders.

  Ties go to the earlier one. Weights must be positive and finite; only their ratios matter.
  """
  if not weights or not all(math.isfinite(w) and w > 0 for w in weights):
    raise ValueError(f"weights must be positive and finite, got {list(weights)}")
  exact = [total * w / math.fsum(weights) for w in weights]
  counts = [math.floor(x) for x in exact]
  order = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
  for i in order[: total - sum(counts)]:
    counts[i] += 1
  return counts


def split(
  streams: Mapping[str, Stream],
  weights: Sequence[float],
  *,
  train_size: int,
  eval_size: int,
  seed: int,
) -> tuple[list[Example], list[Example]]:
  """Draws a training and a held-out set from the sources, in proportion to their weights.

  The held-out set is drawn first and never repeats a question. The training set leaves all
  questions of the held-out set out, whichever source they came from, and repeats its own only when
  a source has too few: then each equally often, but for one. "The same" is by `identity`. A source
  is taken to have no more questions when (500 + 4 x found) draws in a row bring nothing new. Both
  sets are shuffled; the same arguments give the same sets.

  Args:
    streams: of each source, by name: "train" or "eval" -> iterable of examples, from its own seed.
    weights: of each source, in the same order.
    train_size, eval_size: examples in all.
    seed: of the order.

  Raises:
    ValueError: if a source gets no training example, has too few questions for its held-out share,
      or none beside them.
  """
  if train_size < 1 or eval_size < 0:
    raise ValueError(f"want train_size >= 1 and eval_size >= 0, got {train_size} and {eval_size}")
  train_shares, eval_shares = shares(train_size, weights), shares(eval_size, weights)
  rng = random.Random(f"mixture {seed}")
  held: dict[str, Example] = {}
  for (name, stream), need in zip(streams.items(), eval_shares, strict=True):
    found = _distinct(stream("eval"), need, held)
    if len(found) < need:
      raise ValueError(
        f"source {name!r} has only {len(found)} distinct questions for the {need} held-out "
        "examples asked of it; lower eval_size, or give it arguments with more questions"
      )
    held.update(found)
  train: list[Example] = []
  for (name, stream), need in zip(streams.items(), train_shares, strict=True):
    if need == 0:
      raise ValueError(f"train_size={train_size} leaves no training example for source {name!r}")
    found = list(_distinct(stream("train"), need, held).values())
    if not found:
      raise ValueError(
        f"the held-out set takes every question of source {name!r}, none is left to train on; "
        "lower eval_size, or give it arguments with more questions"
      )
    train += found * (need // len(found)) + rng.sample(found, need % len(found))
  heldout = list(held.values())
  rng.shuffle(train)
  rng.shuffle(heldout)
  return train, heldout


def identity(example: Example) -> str:
  """Equal for prompts that ask the same: their text but for case, white space and system lines."""
  if isinstance(example.prompt, str):
    text = example.prompt
  else:
    text = "\n".join(turn["content"] for turn in example.prompt if turn["role"] != "system")
  return " ".join(text.split()).casefold()


def hold_out(examples: Iterable[Example], fraction: float) -> tuple[list[Example], list[Example]]:
  """Parts off about `fraction` of the questions, by the SHA-256 of what they ask.

  Whether an example is held out depends on its question alone: equal questions go the same way, and
  a file that grows keeps its held-out set.

  Returns:
    (training examples, held-out ones), each in the order given.
  """
  if not 0 <= fraction < 1:
    raise ValueError(f"eval_fraction must be in [0, 1), got {fraction}")
  parts: tuple[list[Example], list[Example]] = [], []
  for example in examples:
    digest = hashlib.sha256(identity(example).encode("utf-8", "surrogatepass")).digest()
    parts[int.from_bytes(digest[:8], "big") < fraction * 2**64].append(example)
  return parts


def check_disjoint(train: Iterable[Example], evals: Mapping[str, Sequence[Example]]) -> None:
  """Refuses a question (`identity`) that is both trained on and held out.

  Raises:
    ValueError: naming the first five pairs of rows.
  """
  held = {
    identity(example): _row(example, name, i)
    for name, examples in evals.items()
    for i, example in enumerate(examples)
  }
  both = []
  for i, example in enumerate(train):
    if identity(example) in held:
      both.append(f"{_row(example, 'train', i)} = {held[identity(example)]}")
  if both:
    raise ValueError(
      f"{len(both)} training questions are also held out: {', '.join(both[:5])}"
      f"{', ...' if len(both) > 5 else ''}; remove them from one of the two"
    )


def _row(example: Example, name: str, i: int) -> str:
  return example.metadata.get(ROW, f"{name}[{i}]")


def _distinct(stream: Iterable[Example], need: int, excluded: Container[str]) -> dict[str, Example]:
  found: dict[str, Example] = {}
  in_vain = 0
  if need == 0:
    return found
  for example in stream:
    text = identity(example)
    if text in found or text in excluded:
      in_vain += 1
      if in_vain == 500 + 4 * len(found):
        break
      continue
    found[text] = example
    in_vain = 0
    if len(found) == need:
      break
  return found
