"""Writes what a run did, finished or going on, as one HTML file that needs no network.

python -m launch.report --workdir=runs/quickstart
python -m launch.report --workdir=runs/a --compare=runs/b,runs/c --out=abc.html --png=figures

Curves of all runs along steps, tokens or seconds; warnings; the token ledger; lengths, rewards and solve
rates of rollouts; completions to search; the config. --png draws the same numbers as pictures.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from launch import diagnose
from rlvr_jax.core import ledger
from rlvr_jax.train import plots
from rlvr_jax.train.health import Finding
from rlvr_jax.train.mirror import local, reading, writing
from rlvr_jax.train.records import clip, read_completions

REPORT_FILE = "report.html"
POINTS = 500  # of a curve; longer ones become means
COMPLETIONS = 10_000
COMPLETIONS_MB = 7.0  # of their JSON, prompts included
CHARS = 4_000  # of a prompt or completion

# Title, prefixes, whether it is open at first.
_GROUPS = (
  ("Evaluation", ("eval/",), True),
  ("Reward", ("reward/",), True),
  ("Groups", ("group/",), True),
  ("Responses", ("completion/",), True),
  ("Policy", ("policy/",), True),
  ("Sampler against learner", ("mismatch/",), True),
  ("Rollout and verifier", ("rollout/", "verifier/"), False),
  ("Speed", ("time/", "perf/", "memory/"), False),
  ("Token counts", ("tokens/",), False),
  ("Other", ("",), False),
)
# Controls but for line feed and tab, halves of characters, and marks of direction and of lines: they would
# reach beyond the text that they are in, or not be seen.
_UNRULY = re.compile(
  "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def define_flags():
  """Called when this is the command: other commands have flags of the same names."""
  flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)
  flags.DEFINE_list("compare", [], "Folders of other runs, drawn over it.")
  flags.DEFINE_string("out", None, f"File to write. Default: WORKDIR/{REPORT_FILE}.")
  flags.DEFINE_string("png", None, "Folder for the same as pictures; none without it.")
  flags.DEFINE_enum(
    "along", "steps", list(plots.AXES), "What the curves of the pictures run along."
  )


def read_runs(workdirs: Sequence[str | os.PathLike]) -> list[plots.Run]:
  """The runs of different workdirs, with different names.

  Raises:
    ValueError: for a workdir without metrics or with damaged files, or one given twice.
  """
  paths = [Path(workdir).resolve() for workdir in workdirs]
  if len(set(paths)) < len(paths):
    raise ValueError("a workdir is given twice")
  same = lambda path: sum(other.name == path.name for other in paths) > 1
  return [plots.read_run(path, visible(str(path) if same(path) else path.name)) for path in paths]


def visible(text: str) -> str:
  """`text` with what a browser would act on, or not show, written as an escape."""
  return _UNRULY.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


# --------------------------------------------------------------------------------------------------
# The data of the page


def page_data(
  runs: Sequence[plots.Run], completions: Sequence[list[dict[str, Any]]]
) -> dict[str, Any]:
  """All that the page draws, fit for JSON: text is `visible`, numbers are finite or None.

  Args:
    runs: of `read_runs`.
    completions: of each, train.records.read_completions.
  """
  names = sorted({name for run in runs for row in run.rows for name in row} - {"step"})
  names = [name for name in names if any(len(plots.curve(run.rows, name)[0]) for run in runs)]
  groups, left = [], names
  for title, prefixes, is_open in _GROUPS:
    if mine := [name for name in left if name.startswith(prefixes)]:
      groups.append([title, mine, is_open])
      left = [name for name in left if name not in mine]
  edges = {
    column: plots.bin_edges(np.concatenate([run.rollouts[column] for run in runs]))
    for column in ("length", "reward")
  }
  texts, prompts, notes = _completions(runs, completions)
  longest = max(len(run.rows) for run in runs)
  if longest > POINTS:
    notes.append(f"Curves of up to {longest:,} steps are drawn with {POINTS} points, each a mean.")
  keys = {key: None for run in runs for key in _flat(run.config)}
  configs = [_flat(run.config) for run in runs]
  totals = [[_last(run, f"tokens/{entry}") for run in runs] for entry in ledger.ENTRIES]
  return {
    "runs": [_run(run, names, edges) for run in runs],
    "axes": plots.AXES,
    "colors": plots.COLORS,
    "fates": plots.FATES,
    "described": {name: list(plots.described(name)[1:]) for name in names},
    "groups": groups,
    "histograms": {column: _round(values) for column, values in edges.items()},
    "summary": _summary(runs),
    "entries": [[e, t, m] for (e, m), t in zip(ledger.ENTRIES.items(), totals, strict=True)],
    "config": [[visible(key), [visible(c.get(key, "–")) for c in configs]] for key in keys],
    "completions": texts,
    "prompts": prompts,
    "notes": notes,
  }


def _run(run: plots.Run, names: Sequence[str], edges: dict[str, np.ndarray]) -> dict[str, Any]:
  num = len(run.rows)
  bucket = np.arange(num) * min(num, POINTS) // max(num, 1)
  axis = lambda along, ended: _means(plots.positions(run.rows, along, ended=ended), bucket)
  columns = {n: np.array([row.get(n) for row in run.rows], float) for n in names}
  steps, parts = plots.ledger_stack(run.rows)
  pick = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), POINTS)).astype(int))
  recorded = len(run.rollouts["step"]) > 0
  return {
    "name": run.name,
    "x": {along: {"ended": axis(along, True), "began": axis(along, False)} for along in plots.AXES},
    "metrics": {
      name: _means(values, bucket) for name, values in columns.items() if np.isfinite(values).any()
    },
    "ledger": {
      "steps": steps[pick].tolist(),
      "parts": {name: values[pick].tolist() for name, values in parts.items()},
    },
    "histograms": {
      c: plots.histogram(run, c, e).tolist() for c, e in edges.items() if len(run.rollouts[c])
    },
    "rates": _heat(plots.solve_rates(run)) if recorded else None,
    "shares": _heat(plots.solve_shares(run)) if recorded else None,
    "health": _health(run),
  }


def _means(values: np.ndarray, bucket: np.ndarray) -> list[float | None]:
  """The mean of the finite values of each bucket, None where there is none."""
  have = np.isfinite(values)
  num = int(bucket.max(initial=-1)) + 1
  count = np.bincount(bucket[have], minlength=num)
  total = np.bincount(bucket[have], values[have], minlength=num)
  return _round(np.where(count > 0, total / np.maximum(count, 1), np.nan))


def _round(values: np.ndarray) -> list[float | None]:
  """Seven digits, whole numbers without a point, None for what is not finite."""
  short = lambda v: int(v) if v == int(v) else float(f"{v:.7g}")
  return [short(v) if np.isfinite(v) else None for v in values.tolist()]


def _heat(heat: plots.Heat) -> dict[str, Any]:
  return {
    "labels": _round(np.round(heat.labels, 2)),
    "edges": heat.edges.tolist(),
    "values": [_round(np.round(row, 3)) for row in heat.values],
    "total": heat.total,
  }


def _health(run: plots.Run) -> dict[str, Any]:
  if not run.rows:
    return {"raised": [], "found": [], "unchecked": []}
  seen = diagnose.examine(run)

  def told(one: Finding) -> dict[str, Any]:
    rule, sign = one.rule, ">" if one.rule.above else "<"
    return {
      "name": rule.name,
      "step": one.step,
      "severity": round(one.severity, 4),
      "test": f"{rule.metric} {one.value:.4g} {sign} {rule.threshold:g}",
      "advice": rule.advice,
      "modules": ", ".join(rule.modules),
      "recipes": ", ".join(diagnose.recipes(rule)),
    }

  return {
    "raised": [told(one) for one in seen.raised[:200]],
    "found": [told(one) for one in seen.found],
    "unchecked": [rule.name for rule in seen.unchecked],
  }


def _last(run: plots.Run, name: str) -> float | None:
  values = plots.curve(run.rows, name)[1]
  return _round(values[-1:])[0] if len(values) else None


def _summary(runs: Sequence[plots.Run]) -> list[tuple[str, list[float | None]]]:
  evals = {name for run in runs for row in run.rows for name in row if name.startswith("eval/")}
  tail = lambda run, name: plots.curve(run.rows, name)[1][-20:]
  mean = lambda run, name: (
    _round(tail(run, name).mean(keepdims=True))[0] if len(tail(run, name)) else None
  )
  seconds = lambda run: _round(plots.positions(run.rows, "seconds")[-1:])
  lines = [
    ("steps", [sum(row.get("reward/mean") is not None for row in run.rows) for run in runs]),
    ("reward, last 20", [mean(run, "reward/mean") for run in runs]),
    *(
      (name.removeprefix("eval/"), [_last(run, name) for run in runs])
      for name in sorted(evals)
      if name.count("/") == 2
    ),
    ("tokens generated", [_last(run, "tokens/generated") for run in runs]),
    ("discarded, share", [_last(run, "rollout/waste_frac") for run in runs]),
    ("seconds", [(seconds(run) or [None])[0] for run in runs]),
    ("tokens/s, last 20", [mean(run, "perf/tokens_per_second") for run in runs]),
    ("updates skipped", [_last(run, "train/skipped_steps") for run in runs]),
  ]
  return lines


def _completions(runs, completions):
  """(completions fit for JSON, the distinct prompts they point into, what was left out)."""
  every = [(run.name, one) for run, some in zip(runs, completions, strict=True) for one in some]
  length = sum(min(len(one["completion"]), CHARS) for _, one in every)
  num = min(len(every), COMPLETIONS, int(len(every) * COMPLETIONS_MB * 1e6 / max(length, 1)) + 1)
  while True:  # what escapes and prompts take is known once it is written
    prompts: dict[str, int] = {}
    some = [every[i * len(every) // num] for i in range(num)]
    texts = [_completion(name, one, prompts) for name, one in some]
    size = len(json.dumps([texts, list(prompts)])) / 1e6
    if size <= COMPLETIONS_MB or num <= 1:
      break
    num = max(int(num * min(COMPLETIONS_MB / size, 0.95)), 1)
  notes = []
  if num < len(every):
    notes.append(f"{num:,} of {len(every):,} recorded completions are here, evenly spread.")
  if any(max(len(one["prompt"]), len(one["completion"])) > CHARS for _, one in some):
    notes.append(f"Prompts and completions of more than {CHARS:,} characters lack their middle.")
  return texts, list(prompts), notes


def _completion(run: str, one: dict[str, Any], prompts: dict[str, int]) -> dict[str, Any]:
  text = lambda name: visible(clip(str(one.get(name) or ""), CHARS))
  number = lambda value: value if value is not None and np.isfinite(value) else None
  return {
    "run": run,
    "step": one["step"],
    "prompt_id": one["prompt_id"],
    "prompt": prompts.setdefault(text("prompt"), len(prompts)),
    "reward": number(one["reward"]),
    "correct": number(one["correct"]),
    "length": one["length"],
    "rewards": {visible(k): number(v) for k, v in one["rewards"].items()},
    **{name: text(name) for name in ("completion", "status", "source", "answer", "rule", "parsed")},
  }


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
  """path -> JSON text of each leaf of nested dicts and lists; an empty one is a leaf."""
  if not isinstance(value, dict | list) or not value:
    return {prefix: json.dumps(value, ensure_ascii=False)} if prefix else {}
  items = value.items() if isinstance(value, dict) else enumerate(value)
  out = {}
  for key, item in items:
    out |= _flat(item, f"{prefix}.{key}" if prefix else str(key))
  return out


# --------------------------------------------------------------------------------------------------
# The page


def html(data: dict[str, Any]) -> str:
  """The page, in ASCII; no text of a run can leave the JSON that it is in."""
  folder = Path(__file__).parent
  style, script = ((folder / f"report.{kind}").read_text() for kind in ("css", "js"))
  # In a script element nothing but "<" matters, and in JSON that occurs in strings alone.
  content = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
  title = "Run " + " and ".join(run["name"] for run in data["runs"])
  escaped = title.replace("&", "&amp;").replace("<", "&lt;")
  page = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{escaped}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>{escaped}</h1></header>
<nav aria-label="Sections"></nav>
<main></main>
<noscript>This report is drawn by its own JavaScript, which is switched off.</noscript>
<script type="application/json" id="data">{content}</script>
<script>
{script}</script>
</body>
</html>
"""
  return page.encode("ascii", "xmlcharrefreplace").decode()


def write_report(workdirs: Sequence[str | os.PathLike], out: str | os.PathLike) -> list[str]:
  """Writes the page of some runs; the notes on what was left out.

  Raises:
    ValueError: see read_runs.
  """
  runs = read_runs(workdirs)
  data = page_data(runs, [read_completions(workdir) for workdir in workdirs])
  out = Path(out)
  out.parent.mkdir(parents=True, exist_ok=True)
  temporary = out.with_name(f"{out.name}.tmp")
  temporary.write_text(html(data))
  temporary.replace(out)
  return data["notes"]


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  given = flags.FLAGS
  out = given.out or os.path.join(given.workdir, REPORT_FILE)
  try:
    with contextlib.ExitStack() as opened:
      workdirs = [opened.enter_context(reading(one)) for one in (given.workdir, *given.compare)]
      with writing(out) as file:
        notes = write_report(workdirs, file)
        size = file.stat().st_size / 1e6
      print(f"written: {out}, {size:.1f} MB", *notes, sep="\n")
      if given.png:
        paths = plots.save_pictures(read_runs(workdirs), local(given.png), along=given.along)
        print(f"written: {len(paths)} pictures in {given.png}")
  except (ValueError, ImportError, OSError) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  define_flags()
  app.run(main)
