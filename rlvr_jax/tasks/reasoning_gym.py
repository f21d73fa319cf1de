"""Prompts from the generators of the reasoning_gym package."""

import ast
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.core.table import unknown
from rlvr_jax.tasks import reader
from rlvr_jax.tasks.mixture import split
from rlvr_jax.tasks.prompts import make_task, style_of
from rlvr_jax.tasks.verify import verify

_FIELDS = ("name", "weight", "args", "label", "difficulty")
_DATASET_SIZE = 1000  # entries from one seed; some generators prepare all of them at once


def reasoning_gym(
  *,
  mixture: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]],
  train_size: int = 4096,
  eval_size: int = 256,
  seed: int = 0,
  score: str = "extract",
  **style: Any,
) -> Task:
  """A weighted mixture of reasoning_gym generators.

  Training and held-out examples come from different seeds, and no held-out question is trained on;
  a generator with few questions repeats those it trains on (`tasks.mixture.split`).

  Args:
    mixture: entries {name: generator, weight: number (1), args: the generator's own arguments ({}),
      label: source name (the generator's name), difficulty: a level of yours, 1 or more (0: none)};
      or a mapping label -> entry, where the name may be left out if it is the label.
    train_size: training examples, shared out by weight to whole numbers.
    eval_size: held-out examples, shared likewise; they are the evaluation set "heldout", and each
      keeps its source. 0: no such set.
    seed: of everything drawn.
    score: "extract" compares the final answer with the generator's (`tasks.verify.verify`);
      "native" gives the final answer to the generator's own scorer, for those that accept several
      answers or none in particular. Native scores may lie between 0 and 1, and most generators
      give some credit to a wrong answer.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ImportError: if reasoning_gym is not installed.
    ValueError: for an unknown generator, argument or entry field (with the close ones), arguments
      that the generator refuses, or sizes that its questions do not suffice for.
  """
  made = style_of(reasoning_gym, style)
  judge = scorer(score)
  train, heldout = draw(
    mixture, train_size=train_size, eval_size=eval_size, seed=seed, native=score == "native"
  )
  return make_task(
    train,
    {"heldout": heldout},
    verify=judge,
    style=made,
    seed=seed,
    sources=tuple(_entries(mixture)),
  )


def reasoning_gym_tfds(
  *, data_dir: str, score: str = "extract", seed: int = 0, **style: Any
) -> Task:
  """A mixture that `tasks.tfds_reasoning_gym.prepare` has written; TFDS reads it.

  Args:
    data_dir: the folder it was written below, or where there are several its own.
    score: see `reasoning_gym`; "native" wants a mixture prepared with native=True.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: if it is not there, or was prepared for the other score.
  """
  made = style_of(reasoning_gym_tfds, style)
  judge = scorer(score)

  def parse(row: reader.Row) -> Example:
    metadata = ast.literal_eval(row["metadata"])
    if score == "native" and not metadata:
      raise ValueError('this mixture was prepared without native=True; use score="extract"')
    if score == "extract" and not row["answer"]:
      raise ValueError('there is no one right answer; use score="native"')
    return Example(
      prompt=row["question"],
      answer=row["answer"],
      source=row["source"],
      metadata=metadata,
      difficulty=row["difficulty"],
    )

  sets = reader.read(
    parse, train="train", evals="heldout", data_dir=data_dir, dataset="reasoning_gym"
  )
  return make_task(*sets, verify=judge, style=made, seed=seed)


def scorer(score: str) -> Callable:
  """The verifier that a value of `score` names."""
  if score not in ("extract", "native"):
    raise ValueError(f'score must be "extract" or "native", not {score!r}')
  if score == "extract":
    return verify
  # Its module imports the package, which costs every verifier process.
  from rlvr_jax.tasks.reasoning_gym_native import verify as native

  return native


def draw(
  mixture: Sequence[Mapping[str, Any]] | Mapping[str, Mapping[str, Any]],
  *,
  train_size: int,
  eval_size: int,
  seed: int,
  native: bool,
) -> tuple[list[Example], list[Example]]:
  """(training examples, held-out ones) of a mixture, their prompts bare questions.

  Args:
    mixture, train_size, eval_size, seed: see `reasoning_gym`.
    native: keep what the generator's own scorer needs in the metadata; an answer may be missing then.

  Raises:
    ImportError, ValueError: see `reasoning_gym`.
  """
  try:
    import reasoning_gym.factory as factory
  except ImportError as error:
    raise ImportError(
      "this task needs the reasoning_gym package: pip install reasoning-gym"
    ) from error
  entries = _entries(mixture)
  streams = {}
  for label, entry in entries.items():
    _check(label, entry, factory.DATASETS)
    streams[label] = _stream(factory, label, entry, seed, native)
  weights = [entry["weight"] for entry in entries.values()]
  return split(streams, weights, train_size=train_size, eval_size=eval_size, seed=seed)


def _entries(mixture) -> dict[str, dict[str, Any]]:
  """label -> {name, weight, args, difficulty}, in order."""
  if isinstance(mixture, Mapping):
    listed = [{"name": label, **entry, "label": label} for label, entry in mixture.items()]
  elif isinstance(mixture, Sequence) and all(isinstance(entry, Mapping) for entry in mixture):
    listed = [dict(entry) for entry in mixture]
  else:
    raise ValueError(f"mixture must be a list of {{name: ...}}, or label -> entry, not {mixture!r}")
  if not listed:
    raise ValueError("mixture is empty")
  entries: dict[str, dict[str, Any]] = {}
  for entry in listed:
    for field in entry:
      if field not in _FIELDS:
        raise unknown("field of a mixture entry", field, _FIELDS)
    if "name" not in entry:
      raise ValueError(f"mixture entry {entry} has no name")
    label = entry.get("label", entry["name"])
    if label in entries:
      raise ValueError(f"two mixture entries are called {label!r}; give them labels")
    entries[label] = {
      "name": entry["name"],
      "weight": entry.get("weight", 1.0),
      "args": dict(entry.get("args", {})),
      "difficulty": entry.get("difficulty", 0),
    }
  return entries


def _check(label: str, entry: Mapping[str, Any], generators: Mapping[str, tuple]) -> None:
  name = entry["name"]
  if name not in generators:
    raise unknown("reasoning_gym generator", name, generators)
  accepted = {field.name for field in dataclasses.fields(generators[name][1])}
  for arg in entry["args"]:
    if arg in ("seed", "size"):
      raise ValueError(f"source {label!r}: {arg!r} is set by the task, not in args")
    if arg not in accepted:
      raise unknown(
        f"argument of reasoning_gym generator {name!r}", arg, accepted - {"seed", "size"}
      )


def _stream(factory, label: str, entry: Mapping[str, Any], seed: int, native: bool):
  name, args = entry["name"], entry["args"]

  def stream(part: str) -> Iterator[Example]:
    for block in itertools.count():
      # Most generators seed entry i with seed + i, so the seeds must lie far apart.
      block_seed = random.Random(f"{seed} {label} {part} {block}").getrandbits(31)
      try:
        dataset = factory.create_dataset(name, seed=block_seed, size=_DATASET_SIZE, **args)
      except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"reasoning_gym generator {name!r} refuses {args}: {error}") from error
      for i in range(_DATASET_SIZE):
        yield example(dataset[i])

  def example(item: Mapping[str, Any]) -> Example:
    if item["answer"] is None and not native:
      raise ValueError(
        f'reasoning_gym generator {name!r} has no one right answer; use score="native"'
      )
    return Example(
      prompt=item["question"],
      answer="" if item["answer"] is None else str(item["answer"]),
      source=label,
      metadata={"generator": name, "args": args, "entry": item} if native else {},
      difficulty=entry["difficulty"],
    )

  return stream
