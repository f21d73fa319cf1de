"""What was rolled out: numbers of every rollout, and some completions in full, as JSONL in the workdir.

    rollouts.jsonl      one line a step: columns with one entry for each rollout of the step, dropped ones
                        included: prompt, reward, correct, length, status
    completions.jsonl   one line a completion: a few of each step, evenly spread over its rows

Either file opens with {"every": n}: it has the steps that n divides. A file that outgrows its limit loses
every other step it has, and n doubles, so that a run of any length is covered evenly and a run that was
interrupted ends with the files of one that was not.
"""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROLLOUTS_FILE = "rollouts.jsonl"
COMPLETIONS_FILE = "completions.jsonl"
COLUMNS = ("prompt", "reward", "correct", "length", "status")


class Rollout(NamedTuple):
  """One rollout, judged."""

  prompt_id: int
  prompt: str
  completion: str
  reward: float  # shaped; NaN where it has none
  correct: float
  length: int  # tokens of the response
  status: str  # core.types.STATUS_NAMES
  source: str = ""
  answer: str = ""  # the reference
  rule: str = ""  # why the verifier decided so
  parsed: str | None = None  # the answer it read
  rewards: Mapping[str, float] = {}  # of the reward functions that apply


class Records:
  """Writes the two files. Opening a workdir that has them goes on with them; see `rewind`.

  Args:
    workdir: folder of the run.
    completions: kept of each step; 0 for none.
    limit_mib: size of either file; a single step may exceed it.
    chars: of a prompt or completion; longer ones lose their middle.

  Raises:
    ValueError: for an argument out of range, or a file that is damaged before its last line.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    completions: int = 8,
    limit_mib: float = 64.0,
    chars: int = 16_000,
  ):
    if completions < 0 or limit_mib <= 0 or chars < 100:
      raise ValueError(
        "want completions >= 0, limit_mib > 0 and chars >= 100, got "
        f"{completions}, {limit_mib} and {chars}"
      )
    self._completions, self._chars = completions, chars
    limit = int(limit_mib * 2**20)
    Path(workdir).mkdir(parents=True, exist_ok=True)
    self._rollouts = _Log(Path(workdir) / ROLLOUTS_FILE, limit)
    self._texts = _Log(Path(workdir) / COMPLETIONS_FILE, limit)

  def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
    """Everything rolled out in a step, once; on disk when it returns, but for the system's buffers."""
    columns = {
      "prompt": [int(one.prompt_id) for one in rollouts],
      "reward": [_number(one.reward) for one in rollouts],
      "correct": [_number(one.correct) for one in rollouts],
      "length": [int(one.length) for one in rollouts],
      "status": [one.status for one in rollouts],
    }
    self._rollouts.write(step, [columns])
    num = min(self._completions, len(rollouts))
    some = [rollouts[i * len(rollouts) // num] for i in range(num)]
    self._texts.write(step, [self._text(one) for one in some])

  def _text(self, one: Rollout) -> dict[str, Any]:
    return one._asdict() | {
      "prompt": clip(one.prompt, self._chars),
      "completion": clip(one.completion, self._chars),
      "reward": _number(one.reward),
      "correct": _number(one.correct),
      "rewards": {name: _number(value) for name, value in one.rewards.items()},
    }

  def rewind(self, step: int) -> None:
    """Forgets what was written for `step` and later, since these steps will be run again."""
    self._rollouts.keep(lambda row: row["step"] < step)
    self._texts.keep(lambda row: row["step"] < step)

  def close(self) -> None:
    self._rollouts.close()
    self._texts.close()

  def __enter__(self) -> "Records":
    return self

  def __exit__(self, *_) -> None:
    self.close()


def clip(text: str, chars: int) -> str:
  """`text` without its middle if it is longer than `chars`; says how much is missing."""
  if len(text) <= chars:
    return text
  tail = chars // 4
  missing = len(text) - chars
  return f"{text[: chars - tail]}\n[... {missing} characters left out ...]\n{text[-tail:]}"


def _number(value: float) -> float | None:
  return round(float(value), 6) if math.isfinite(value) else None


class _Log:
  """Lines of steps in a file of bounded size."""

  def __init__(self, path: Path, limit: int):
    self._path, self._limit, self._every = path, limit, 1
    if path.exists():
      self._every = next((row["every"] for row in _lines(path) if "every" in row), 1)
      self.keep(lambda row: True)
    else:
      self._file = path.open("w")
      self._begin(self._file)

  def _begin(self, file) -> None:
    file.write(json.dumps({"every": self._every}) + "\n")
    file.flush()

  def write(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
    if step % self._every:
      return
    self._file.writelines(json.dumps({"step": int(step), **row}) + "\n" for row in rows)
    self._file.flush()
    steps = 2
    while self._file.tell() > self._limit and steps > 1:
      self._every *= 2
      steps = self.keep(lambda row: row["step"] % self._every == 0)

  def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> int:
    """Rewrites the file with the wanted rows, without a last line cut short. The steps that are left."""
    self.close()
    temporary, steps = self._path.with_suffix(".tmp"), set()
    with temporary.open("w") as file:
      self._begin(file)
      for row in _lines(self._path):
        if "step" in row and wanted(row):
          steps.add(row["step"])
          file.write(json.dumps(row) + "\n")
    temporary.replace(self._path)
    self._file = self._path.open("a")
    return len(steps)

  def close(self) -> None:
    if hasattr(self, "_file"):
      self._file.close()


def _lines(path: Path) -> Iterator[dict[str, Any]]:
  with path.open() as file:
    for number, line in enumerate(file, 1):
      if not line.endswith("\n"):
        return  # the last line, cut short by a kill or still being written
      try:
        row = json.loads(line)
        if not isinstance(row, dict) or not {"step", "every"} & row.keys():
          raise ValueError("not an object with a step")
      except ValueError as error:
        raise ValueError(
          f"{path}, line {number}: {error}; delete the line, or move the file away"
        ) from error
      yield row


def read_rollouts(workdir: str | os.PathLike) -> dict[str, np.ndarray]:
  """Columns of all rollouts on record, each [n]: step and those of COLUMNS; null is NaN.

  Raises:
    ValueError: if the file is damaged before its last line.
  """
  path = Path(workdir) / ROLLOUTS_FILE
  lines = [row for row in _lines(path) if "step" in row] if path.exists() else []
  try:
    steps = [np.full(len(row["prompt"]), row["step"]) for row in lines]
    columns = {name: [v for row in lines for v in row[name]] for name in COLUMNS}
  except (KeyError, TypeError) as error:
    raise ValueError(f"{path} does not hold rollouts: {error!r}") from error
  kinds = {"prompt": int, "reward": float, "correct": float, "length": int, "status": str}
  out = {name: np.asarray(columns[name], kinds[name]) for name in COLUMNS}
  out["step"] = np.concatenate([np.zeros(0, int), *steps]).astype(int)
  if len({len(column) for column in out.values()}) != 1:
    raise ValueError(f"{path}: a step has columns of different lengths")
  return out


def read_completions(workdir: str | os.PathLike) -> list[dict[str, Any]]:
  """The completions on record, in order: the fields of Rollout, and step.

  Raises:
    ValueError: if the file is damaged before its last line.
  """
  path = Path(workdir) / COMPLETIONS_FILE
  rows = [row for row in _lines(path) if "step" in row] if path.exists() else []
  for row in rows:
    if absent := [name for name in Rollout._fields if name not in row]:
      raise ValueError(f"{path}: a completion of step {row['step']} lacks {', '.join(absent)}")
  return rows
