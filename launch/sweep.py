"""Runs a list of configs, goes on where it was stopped, and tabulates what came of them.

python -m launch.sweep --sweep=my_sweep.py --workdir=runs/sweep --compile_cache=runs/compiled
python -m launch.sweep --config=experiments/smoke/config.py --set=steps=50 --workdir=runs/sweep \\
  --grid=recipe=grpo,dapo --grid=seed=0,1,2 --at=tokens

A sweep file has get_sweep() -> {name: Config}; a grid is every combination of its values, applied to the
config. Each run has the workdir WORKDIR/<name>, where launch.train could go on with it. The same command
again leaves finished runs alone and resumes the others; one that fails is reported and the rest go on.
Ctrl-C and SIGTERM save the runs that are going on, and end the sweep.
Several processes (--processes, or the same command started on several machines) share the runs out.

The table, on the screen and in WORKDIR/table.md and table.json, has one line for the runs that differ in
their seed alone: mean and standard deviation over seeds of each metric, all runs read at equal steps or at
equal generated tokens (--at).
"""

import contextlib
import dataclasses
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags, logging

from launch import train

_METRICS = ("eval/heldout/pass@1", "reward/mean", "tokens/generated")
FINISHED_FILE = "finished.json"


def define_flags():
  """Called when this is the command."""
  flags.DEFINE_string("sweep", None, "Python file with get_sweep() -> dict of name to Config.")
  flags.DEFINE_multi_string("grid", [], "key=value,value,...: one run for each combination.")
  flags.DEFINE_integer("processes", 1, "Runs at a time, each in a process.", lower_bound=1)
  flags.DEFINE_list("metrics", list(_METRICS), "Columns of the table.")
  flags.DEFINE_string(
    "at", "steps", "Where runs are read: steps, tokens (as far as all went), steps:N or tokens:N."
  )
  flags.DEFINE_integer(
    "window", 10, "Steps a metric of single steps is averaged over.", lower_bound=1
  )
  flags.DEFINE_bool("table_only", False, "Tabulate what there is; run nothing.")


# --------------------------------------------------------------------------------------------------
# What there is to run


def grid(config, axes: Sequence[str]) -> dict[str, Any]:
  """name -> Config, for every combination of the values of "key=value,value" axes.

  A comma inside brackets or quotes separates nothing.

  Raises:
    ValueError: for an axis of another form, and as apply_overrides does.
  """
  from rlvr_jax.train.config import apply_overrides

  choices = []
  for axis in axes:
    key, equals, values = axis.partition("=")
    if not equals or not values:
      raise ValueError(f"--grid={axis} is not of the form key=value,value")
    choices.append([f"{key.strip()}={value}" for value in _split(values)])
  combinations = list(itertools.product(*choices))
  names = [",".join(one).replace("/", "_") for one in combinations]
  if twice := [name for name in names if names.count(name) > 1]:
    raise ValueError(f"--grid has two runs of the name {twice[0]!r}")
  return {name: apply_overrides(config, one) for name, one in zip(names, combinations)}


def _split(text: str) -> list[str]:
  parts, depth, quote = [""], 0, ""
  for c in text:
    if quote:
      quote = "" if c == quote else quote
    elif c in "'\"":
      quote = c
    depth += (c in "([{") - (c in ")]}") if not quote else 0
    if c == "," and not depth and not quote:
      parts.append("")
    else:
      parts[-1] += c
  return [part.strip() for part in parts]


def read_sweep(path: str | os.PathLike, overrides: Sequence[str] = ()) -> dict[str, Any]:
  """What get_sweep() of a Python file gives, with overrides applied to each config.

  Raises:
    ValueError: if it is not a dict of names, fit for folders, to Configs.
  """
  from rlvr_jax.train.config import Config, apply_overrides, call_file

  runs = call_file(path, "get_sweep")
  if not isinstance(runs, dict) or not runs:
    raise ValueError(f"get_sweep() of {path} must return a dict of names to Configs, with some")
  for name, config in runs.items():
    if not isinstance(name, str) or not re.fullmatch(r"[^/\0]+", name) or name in (".", ".."):
      raise ValueError(f"get_sweep() of {path}: {name!r} is no name for a folder")
    if not isinstance(config, Config):
      raise ValueError(f"get_sweep() of {path}: {name!r} is a {type(config).__name__}, no Config")
  return {name: apply_overrides(config, overrides) for name, config in runs.items()}


def lines(runs: Mapping[str, Any]) -> dict[str, list[str]]:
  """label -> names of the runs that differ in their seed alone, in order.

  The label is the name of the first of them, without its seed.
  """
  from rlvr_jax.train.config import to_json

  groups: dict[str, list[str]] = {}
  for name, config in runs.items():
    groups.setdefault(to_json(dataclasses.replace(config, seed=0)), []).append(name)
  labelled = {}
  for names in groups.values():
    label = _without_seed(names[0], runs[names[0]].seed) if len(names) > 1 else names[0]
    labelled[label if label and label not in labelled else names[0]] = names
  return labelled


def _without_seed(name: str, seed: int) -> str:
  shorter = re.sub(rf"(?i)[ ,_.-]?seed[=_ -]?{seed}(?!\d)", "", name, count=1)
  if shorter == name:
    shorter = re.sub(rf"[ ,_.-]s?{seed}$", "", name)
  return shorter.strip(" ,_.-")


# --------------------------------------------------------------------------------------------------
# Running


def run_all(runs: Mapping[str, Any], workdir: Path, run: Callable[[Any, Path], Any]) -> list[str]:
  """Runs what is not finished, one after another; returns a line for each run that failed.

  Args:
    run: (config, workdir of the run); launch.train.run.
  """
  import jax

  from rlvr_jax.train.config import InUse, to_json
  from rlvr_jax.train.loop import Interrupted

  failed = []
  for number, (name, config) in enumerate(runs.items(), 1):
    folder, where = workdir / name, f"[{number}/{len(runs)}] {name}"
    if finished(folder, config):
      print(f"{where}: finished before")
      continue
    print(f"\n{where}", flush=True)
    began = time.perf_counter()
    try:
      run(config, folder)
      # XLA maps each program of a CPU several times, and Linux gives a process 65,530 maps.
      jax.clear_caches()
    except InUse:
      print(f"{where}: another process has it")
      continue
    except Interrupted:
      raise
    except Exception as error:  # whatever it is, the other runs are worth having
      failed.append(f"{name}: {type(error).__name__}: {error}")
      print(f"{where} failed: {type(error).__name__}: {error}", flush=True)
      continue
    done = {"config": json.loads(to_json(config)), "seconds": time.perf_counter() - began}
    temporary = folder / f"{FINISHED_FILE}.tmp"
    temporary.write_text(json.dumps(done, indent=2) + "\n")
    temporary.replace(folder / FINISHED_FILE)
  return failed


def finished(folder: Path, config) -> bool:
  """Whether the run of this very config has come to its end."""
  from rlvr_jax.train.config import to_json

  file = folder / FINISHED_FILE
  try:
    done = json.loads(file.read_text()) if file.exists() else {}
  except ValueError:  # damaged; the run is resumed, and has nothing left to do
    done = {}
  return done.get("config") == json.loads(to_json(config))


def spread(processes: int, workdir: Path) -> list[str]:
  """Runs this command in so many processes, which take runs as they come; their output goes to files.

  Raises:
    Interrupted: after Ctrl-C or SIGTERM, which the processes were told of, once they have ended.
  """
  from rlvr_jax.train.loop import Interrupted

  command = [sys.executable, "-m", "launch.sweep", *sys.argv[1:], "--processes=1"]
  workdir.mkdir(parents=True, exist_ok=True)
  children, failed = [], []
  with contextlib.ExitStack() as opened:
    for i in range(processes):
      log = opened.enter_context(open(workdir / f"process_{i}.log", "w"))
      # In a session of its own it hears Ctrl-C once, from here.
      child = subprocess.Popen(
        command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
      )
      children.append(child)
      print(f"process {i}: {log.name}", flush=True)
    heard = []

    def pass_on(number, frame):
      heard.append(number)
      for child in children:
        child.send_signal(number)
      with contextlib.suppress(RuntimeError, OSError):  # it may come in the middle of another print
        print("\nstopping after the steps that are running; once more to stop at once", flush=True)

    old = {n: signal.signal(n, pass_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
      for i, child in enumerate(children):
        if child.wait():
          failed.append(f"process {i} ended with status {child.returncode}; see its log")
    finally:
      for number, handler in old.items():
        signal.signal(number, handler)
  if heard:
    raise Interrupted("stopped")
  return failed


# --------------------------------------------------------------------------------------------------
# The table


class Point(NamedTuple):
  """Where runs are compared."""

  unit: str  # steps or tokens
  value: int | None  # None: as far as all of them went


def parse_point(text: str) -> Point:
  """The point that --at names.

  Raises:
    ValueError: if it is none of steps, tokens, steps:N and tokens:N.
  """
  match = re.fullmatch(r"(steps|tokens)(?::(\d[\d_]*))?", text)
  if not match:
    raise ValueError(f"--at={text} must be steps, tokens, steps:N or tokens:N")
  return Point(match[1], int(match[2]) if match[2] else None)


def _spent(rows: Sequence[Mapping[str, Any]], unit: str) -> list[int]:
  """Steps or generated tokens behind each row.

  What a row says of its step holds after it; its evaluation is of the parameters before, and holds there.
  """
  if unit == "steps":
    return [row["step"] + ("reward/mean" in row) for row in rows]
  return [row.get("tokens/generated") or 0 for row in rows]


def value_at(rows, name: str, at: int, unit: str, window: int) -> float | None:
  """A metric of a run when `at` steps were made or tokens generated; None if it was not known yet.

  Evaluations and cumulative metrics are the last known; others the mean of the last `window`.
  """
  spent = _spent(rows, unit)
  if name.startswith("eval/"):  # made before the update of its row
    spent = [row["step"] if unit == "steps" else before for row, before in zip(rows, [0, *spent])]
  known = [row[name] for row, used in zip(rows, spent) if used <= at and row.get(name) is not None]
  last = name.startswith(("eval/", "tokens/", "train/")) or name == "perf/compilations"
  known = known[-1:] if last else known[-window:]
  return statistics.fmean(known) if known else None


def tabulate(
  runs: Mapping[str, Any], workdir: Path, metrics: Sequence[str], point: Point, window: int
) -> dict[str, Any]:
  """The table as JSON values: where the runs were read, and for each line its runs and metrics."""
  from rlvr_jax.train.config import METRICS_FILE
  from rlvr_jax.train.metrics import read_metrics

  files = {name: workdir / name / METRICS_FILE for name in runs}
  rows = {name: read_metrics(file) for name, file in files.items() if file.exists()}
  reached = {name: max(_spent(r, point.unit), default=0) for name, r in rows.items()}
  done = [name for name in rows if finished(workdir / name, runs[name])]
  at = point.value if point.value is not None else min((reached[n] for n in done), default=0)
  table = []
  for label, names in lines(runs).items():
    there = [n for n in names if n in rows and reached[n] >= at]
    line: dict[str, Any] = {"label": label, "runs": len(names), "read": there, "metrics": {}}
    for metric in metrics:
      values = {n: value_at(rows[n], metric, at, point.unit, window) for n in there}
      known = [v for v in values.values() if v is not None]
      line["metrics"][metric] = {
        "mean": statistics.fmean(known) if known else None,
        "std": statistics.stdev(known) if len(known) > 1 else None,
        "values": values,
      }
    table.append(line)
  return {"at": at, "unit": point.unit, "window": window, "lines": table}


def markdown(table: Mapping[str, Any]) -> str:
  """The table as text: mean ± standard deviation over seeds."""
  metrics = list(table["lines"][0]["metrics"])

  def cell(of):
    if of["mean"] is None:
      return "-"
    number = lambda v: f"{v:,.0f}" if abs(v) >= 1000 else f"{v:.3f}"
    return number(of["mean"]) + ("" if of["std"] is None else f" ± {number(of['std'])}")

  cells = [("runs", "seeds", *metrics)]
  for line in table["lines"]:
    seeds = f"{len(line['read'])}/{line['runs']}"
    cells.append((line["label"], seeds, *(cell(line["metrics"][m]) for m in metrics)))
  widths = [max(map(len, column)) for column in zip(*cells)]
  text = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |" for row in cells]
  text.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
  at = "generated tokens" if table["unit"] == "tokens" else "steps"
  return "\n".join([f"After {table['at']:,} {at}:", "", *text]) + "\n"


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  values = flags.FLAGS
  if not values.workdir:
    raise app.UsageError("--workdir=FOLDER is needed: it holds a folder for each run")
  logging.set_verbosity(logging.WARNING)
  from rlvr_jax.train.loop import Interrupted
  from rlvr_jax.train.mirror import local

  try:
    failed = _sweep(values, local(values.workdir))
  except (Interrupted, KeyboardInterrupt) as stopped:
    print(f"{stopped or 'stopped'}; the same command goes on with the sweep", flush=True)
    sys.exit(130)
  except (ValueError, ImportError, OSError) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")
  if failed:
    sys.exit("\n".join(["error: not all runs came to their end", *failed]))


def _sweep(values, workdir: Path) -> list[str]:
  if values.sweep and values.grid:
    raise ValueError("--sweep and --grid exclude each other")
  if values.sweep:
    runs = read_sweep(values.sweep, train.overrides())
  else:
    runs = grid(train.build_config(), values.grid)
  point = parse_point(values.at)
  failed = []
  if not values.table_only:
    if values.processes > 1:
      failed = spread(values.processes, workdir)
    else:
      train.use_compile_cache()
      failed = run_all(runs, workdir, train.run)
  table = tabulate(runs, workdir, values.metrics, point, values.window)
  (workdir / "table.json").write_text(json.dumps(table, indent=2) + "\n")
  (workdir / "table.md").write_text(text := markdown(table))
  print(f"\n{text}")
  return failed


if __name__ == "__main__":
  define_flags()
  app.run(main)
