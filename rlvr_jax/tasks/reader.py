"""Rows of files and prepared TFDS data sets, with errors that name the row.

A row is a dict of Python values. `read` turns rows into examples by a source's own `parse`.
"""

import json
import math
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.answers import extract
from rlvr_jax.tasks.mixture import ROW, hold_out

Row = Mapping[str, Any]


def read(
  parse: Callable[[Row], Example],
  *,
  train: str | None,
  evals: str | Mapping[str, str] | None,
  data_dir: str | None = None,
  dataset: str = "",
  eval_fraction: float = 0.0,
) -> tuple[list[Example], dict[str, list[Example]]]:
  """The training examples and the held-out sets of a source.

  Args:
    parse: row -> example; its ValueError is raised again with the row's name.
    train: a file (`file_rows`), or with data_dir a split; None: nothing to train on.
    evals: the same for a held-out set, which is called like the file or split; or name -> file or
      split for several; None: none.
    data_dir: folder of prepared TFDS data; None: `train` and `evals` are files.
    dataset: name of the TFDS data set.
    eval_fraction: share of the training questions held out as the set "heldout" (`mixture.hold_out`).

  Returns:
    (training examples, held-out sets by name). metadata[ROW] of an example names its row.

  Raises:
    ValueError: if there is nothing to read, or a row cannot be used.
  """
  if train is None and not evals:
    raise ValueError("there is nothing to read: give train, evals, or both")

  def load(place: str) -> list[Example]:
    rows = file_rows(place) if data_dir is None else split_rows(data_dir, dataset, place)
    found = []
    for where, row in rows:
      try:
        example = parse(row)
      except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
      found.append(example._replace(metadata={**example.metadata, ROW: where}))
    if not found:
      raise ValueError(f"{place} has no rows")
    return found

  if isinstance(evals, str):
    evals = {pathlib.Path(evals).stem: evals}
  if evals is not None and not isinstance(evals, Mapping):
    raise ValueError(f"evals must be a file or split, or name -> file or split, not {evals!r}")
  made = {name: load(place) for name, place in (evals or {}).items()}
  examples, held = hold_out([] if train is None else load(train), eval_fraction)
  if held and "heldout" in made:
    raise ValueError(
      'the set held out by eval_fraction is "heldout"; call the one in evals otherwise'
    )
  return examples, made | ({"heldout": held} if held else {})


# --------------------------------------------------------------------------------------------------
# Where rows come from


def file_rows(place: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """(name of the row, row) for each row of a .jsonl or .parquet file; empty lines are passed over.

  Raises:
    ValueError: if the file is missing or of another kind, or a line is not one JSON object in UTF-8.
  """
  path = pathlib.Path(place).expanduser()
  if not path.is_file():
    raise ValueError(f"there is no file {path}")
  if path.suffix == ".jsonl":
    return _jsonl_rows(path)
  if path.suffix == ".parquet":
    return _parquet_rows(path)
  raise ValueError(f"{path} is neither .jsonl nor .parquet")


def _jsonl_rows(path: pathlib.Path):
  with open(path, "rb") as file:
    for number, line in enumerate(file, 1):
      where = f"{path.name}:{number}"
      if not line.strip():
        continue
      try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        if rb"\u" in line:  # half of a surrogate pair is valid JSON, and no text
          json.dumps(row, ensure_ascii=False).encode()
      except UnicodeError as error:
        raise ValueError(f"{where}: not UTF-8: {error}") from error
      except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON: {error}; each line is one JSON object") from error
      if not isinstance(row, dict):
        raise ValueError(f"{where}: a {type(row).__name__}, not a JSON object")
      yield where, row


def _parquet_rows(path: pathlib.Path):
  import pyarrow
  import pyarrow.parquet

  try:
    with pyarrow.parquet.ParquetFile(path) as file:
      number = 0
      for batch in file.iter_batches():
        for row in batch.to_pylist():
          yield f"{path.name} row {number}", row
          number += 1
  except (pyarrow.ArrowException, OSError) as error:
    raise ValueError(f"cannot read {path}: {error}") from error


def split_rows(data_dir: str, dataset: str, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
  """(name of the row, row) for each row of a split of a prepared TFDS data set.

  It is read at random access, from ArrayRecord files, and without TensorFlow.

  Args:
    data_dir: the folder it was prepared in, or the folder that holds its dataset_info.json.
    dataset: its name, with config and version where there are several: "name/config/1.0.0".
    split: "train", or any other that there is.

  Raises:
    ValueError: if it is not there, has no such split, or is not in ArrayRecord files.
  """
  import tensorflow_datasets as tfds

  folder = _dataset_folder(pathlib.Path(data_dir).expanduser(), dataset)
  builder: Any = tfds.builder_from_directory(folder)
  if split not in builder.info.splits:
    raise ValueError(f"{folder} has no split {split!r}; it has: {', '.join(builder.info.splits)}")
  try:
    source = builder.as_data_source(split)
  except NotImplementedError as error:
    raise ValueError(
      f"{folder} cannot be read at random access; prepare it once more with "
      'tfds.builder(name, file_format="array_record").download_and_prepare()'
    ) from error
  for i in range(len(source)):
    yield f"{dataset} {split} row {i}", _python(source[i])


def _dataset_folder(root: pathlib.Path, dataset: str) -> pathlib.Path:
  if (root / "dataset_info.json").is_file():
    return root
  found = sorted(file.parent for file in (root / dataset).glob("**/dataset_info.json"))
  if not found:
    raise ValueError(
      f"there is no prepared TFDS data set {dataset!r} in {root}; prepare it there with "
      f'tfds.builder({dataset!r}, data_dir=..., file_format="array_record").download_and_prepare()'
    )
  if len(found) > 1:
    raise ValueError(
      f"{root} has several of {dataset!r}; give one of these as data_dir: "
      + ", ".join(map(str, found))
    )
  return found[0]


def _python(value: Any) -> Any:
  """numpy values and bytes as Python values and text."""
  if isinstance(value, bytes):
    return value.decode("utf-8")
  if isinstance(value, Mapping):
    return {key: _python(inner) for key, inner in value.items()}
  if hasattr(value, "tolist"):
    value = value.tolist()
  if isinstance(value, (list, tuple)):
    return [_python(inner) for inner in value]
  return value.decode("utf-8") if isinstance(value, bytes) else value


# --------------------------------------------------------------------------------------------------
# What is in a row


def has(row: Row, name: str) -> bool:
  """Whether there is a column; "a.b" is the entry b of the column a."""
  for part in name.split("."):
    if not isinstance(row, Mapping) or part not in row:
      return False
    row = row[part]
  return row is not None


def column(row: Row, *names: str) -> Any:
  """The first of the columns that is there and not null.

  Raises:
    ValueError: if none is, with the columns that are.
  """
  for name in names:
    if has(row, name):
      value: Any = row
      for part in name.split("."):
        value = value[part]
      return value
  wanted = " or ".join(map(repr, names))
  raise ValueError(f"no column {wanted}; there are: {', '.join(_names(row)) or 'none'}")


def _names(row: Row) -> list[str]:
  names = []
  for name, value in row.items():
    inner = [f"{name}.{key}" for key in value] if isinstance(value, Mapping) else []
    names += inner or [name if value is not None else f"{name} (null)"]
  return names


def text(row: Row, *names: str) -> str:
  """The first of the columns, which must be text and not blank."""
  value = column(row, *names)
  if not isinstance(value, str):
    raise ValueError(f"column {_first(row, names)!r} is {value!r}, not text")
  if not value.strip():
    raise ValueError(f"column {_first(row, names)!r} is empty")
  return value


def texts(row: Row, *names: str) -> list[str]:
  """The first of the columns, which must be a list of texts."""
  value = column(row, *names)
  if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
    raise ValueError(f"column {_first(row, names)!r} is {value!r}, not a list of texts")
  return value


def whole(row: Row, *names: str) -> int:
  """The first of the columns, which must be a whole number, or text that is one."""
  value = column(row, *names)
  if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value):
    return int(value)
  if isinstance(value, float) and value.is_integer():
    return int(value)
  if not isinstance(value, int) or isinstance(value, bool):
    raise ValueError(f"column {_first(row, names)!r} is {value!r}, not a whole number")
  return value


def _first(row: Row, names: tuple[str, ...]) -> str:
  return next(name for name in names if has(row, name))


def answer(row: Row, *names: str, worked: bool = True) -> str:
  """The reference answer in the first of the columns: text or a number.

  Args:
    worked: a text may be a worked solution: take its final answer (`final`).
  """
  value = column(row, *names)
  name = _first(row, names)
  if isinstance(value, float) and not math.isfinite(value):
    raise ValueError(f"column {name!r} is {value}: an answer must be finite")
  if isinstance(value, bool) or not isinstance(value, (str, int, float)):
    raise ValueError(f"column {name!r} is {value!r}: an answer must be text or a number")
  found = str(value).strip()
  if worked and isinstance(value, str):
    found = final(value)
  if not found:
    raise ValueError(f"column {name!r} holds no answer: {str(value)[:100]!r}")
  return found


def final(solution: str) -> str | None:
  """The final answer of a worked solution, or all of a text without a mark; None: cut off.

  It is what stands after the last `####`, else where `answers.extract` finds a completion's: a reference
  that kept its mark could match none. Dollar signs around a whole answer are dropped.
  """
  if "####" in solution:
    return solution.rpartition("####")[2].strip()
  found, _ = extract(solution, bare="text")
  inner = None if found is None else re.fullmatch(r"\$([^$]+)\$", found)
  return inner[1].strip() if inner else found
