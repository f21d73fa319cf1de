"""Reading a run, and pictures of it: curves, ledger, histograms, solve rates; and pass@k of evaluations.

The functions that return arrays are what the pictures and launch.report draw.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.figure
import matplotlib.ticker
import numpy as np

from rlvr_jax.core.table import unknown
from rlvr_jax.train.config import CONFIG_FILE, METRICS_FILE
from rlvr_jax.train.metrics import Metric, find, read_metrics
from rlvr_jax.train.records import read_rollouts

_INK, _MUTED, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_REWARD = "#2563a8"
_EVALS = ("#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#4d7c0f")
COLORS = (_REWARD, *_EVALS)  # of runs, in order

AXES = {  # what a curve may run along -> its title
  "steps": "step",
  "tokens": "response tokens generated",
  "seconds": "seconds of training, evaluation apart",
}
# What becomes of response tokens: label -> color, from the bottom of the stack. From the third on they are
# entries of the ledger.
FATES = {
  "trained": "#0f766e",
  "in the batch, without weight": "#99c8c2",
  "rejected": "#c2410c",
  "surplus": "#f0b58f",
  "pruned": "#be185d",
  "probed": "#eeb6cc",
  "banked": "#a5b4d4",
}


class Run(NamedTuple):
  """What a workdir says of its run."""

  name: str
  config: dict[str, Any]  # of config.json; empty where there is none
  rows: list[dict[str, Any]]  # of metrics.jsonl, one a step
  rollouts: dict[str, np.ndarray]  # train.records.read_rollouts


def read_run(workdir: str | os.PathLike, name: str = "") -> Run:
  """The run in a workdir, finished or going on; `name` is the folder's unless given.

  Raises:
    ValueError: if it has no metrics, or a file is damaged elsewhere than at its end.
  """
  path = Path(workdir)
  if not (path / METRICS_FILE).is_file():
    raise ValueError(
      f"{path} has no {METRICS_FILE}: it is no workdir, or its first step is not done"
    )
  file = path / CONFIG_FILE
  try:
    config = json.loads(file.read_text()) if file.exists() else {}
  except ValueError as error:
    raise ValueError(f"cannot read {file}: {error}") from error
  rows = read_metrics(path / METRICS_FILE)
  return Run(name or path.resolve().name, config, rows, read_rollouts(path))


# --------------------------------------------------------------------------------------------------
# Numbers to draw


def curve(
  rows: list[dict[str, Any]], name: str, along: str = "steps"
) -> tuple[np.ndarray, np.ndarray]:
  """(x [n], values [n]) of one metric along an axis of AXES; rows without a finite value are left out.

  A step's row lies where the step ended, its evaluation where it began.
  """
  x = positions(rows, along, ended=not name.startswith("eval/"))
  values = np.array([row.get(name) for row in rows], float)  # None becomes NaN
  have = np.isfinite(values)
  return x[have], values[have]


def positions(rows: list[dict[str, Any]], along: str, *, ended: bool = True) -> np.ndarray:
  """[rows]: where each row lies on an axis of AXES, at its step's end or beginning."""
  if along == "steps":
    return np.array([row["step"] for row in rows], int)
  if along == "seconds":
    ends = np.cumsum([row.get("time/step_seconds") or 0.0 for row in rows])
  else:
    ends = np.maximum.accumulate([row.get("tokens/generated") or 0 for row in rows] or [0])
  ends = ends[: len(rows)]
  return ends if ended else np.concatenate([np.zeros(1, ends.dtype), ends])[: len(rows)]


def described(name: str) -> Metric:
  """The metric's declaration; one without unit and description if another version wrote it."""
  try:
    return find(name)
  except ValueError:
    return Metric(name, "", "")


def smooth(values: np.ndarray, window: int) -> np.ndarray:
  """[n]: mean of each value and those around it, `window` in all, fewer at the ends."""
  kernel = np.ones(window)
  total = np.convolve(values, kernel, mode="full")
  count = np.convolve(np.ones_like(values), kernel, mode="full")
  start = (window - 1) // 2
  return (total / count)[start : start + len(values)]


def ledger_stack(rows: list[dict[str, Any]]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """(steps [n], label -> cumulative tokens [n]): the labels of FATES, "generated" and "reused".

  By the ledger's balance the fates add up to generated and reused. "trained" is at most what entered the
  batch, where the ledger counts a token again for each update.
  """
  rows = [row for row in rows if row.get("tokens/generated") is not None]
  entry = lambda name: np.array([row.get(f"tokens/{name}") or 0 for row in rows], int)
  batched = entry("batched")
  trained = np.minimum(entry("trained"), batched)
  left = [entry(name) for name in list(FATES)[2:]]
  steps = np.array([row["step"] for row in rows], int)
  came = {"generated": entry("generated"), "reused": entry("reused")}
  return steps, dict(zip(FATES, (trained, batched - trained, *left), strict=True)) | came


def bin_edges(values: np.ndarray, bins: int = 40) -> np.ndarray:
  """[b + 1], b <= bins: equal bins around finite values; whole numbers get bins of whole width.

  The smallest and the largest value are in the middle of their bins.
  """
  values = values[np.isfinite(values)]
  if not len(values):
    return np.array([-0.5, 0.5])
  low, high = float(values.min()), float(values.max())
  if values.dtype.kind == "i":
    width = max(1, -(-int(high - low + 1) // bins))
    return low - 0.5 + width * np.arange(int((high - low) // width) + 2)
  if low == high:
    return np.array([low - 0.5, low + 0.5])
  width = (high - low) / (bins - 1)
  return np.linspace(low - width / 2, high + width / 2, bins + 1)


def histogram(run: Run, column: str, edges: np.ndarray, parts: int = 4) -> np.ndarray:
  """[parts,b]: rollouts whose `column` is in each bin, for equal parts of the steps on record."""
  values, steps = run.rollouts[column], run.rollouts["step"]
  out = np.zeros((parts, len(edges) - 1), int)
  if len(steps):
    first, span = steps.min(), steps.max() - steps.min() + 1
    part = (steps - first) * parts // span
    for i in range(parts):
      out[i] = np.histogram(values[(part == i) & np.isfinite(values)], edges)[0]
  return out


class Heat(NamedTuple):
  """A heat map."""

  labels: np.ndarray  # [r], of the rows
  edges: np.ndarray  # [c + 1], of the columns, in steps
  values: np.ndarray  # [r,c] in [0, 1], NaN where there is nothing
  total: int  # rows there would be with room for all


def _columns(steps: np.ndarray, columns: int) -> tuple[np.ndarray, np.ndarray]:
  """(edges [c + 1], the column of each step [n]): at most `columns` of equal whole width."""
  if not len(steps):
    return np.zeros(1, int), steps
  first = int(steps.min())
  width = -(-(int(steps.max()) - first + 1) // columns)
  column = (steps - first) // width
  return first + width * np.arange(int(column.max()) + 2), column


def solve_rates(run: Run, *, prompts: int = 60, columns: int = 80) -> Heat:
  """Mean verdict of each prompt over the steps: the prompts seen at most steps, best solved first."""
  ids, row, seen = np.unique(run.rollouts["prompt"], return_inverse=True, return_counts=True)
  edges, column = _columns(run.rollouts["step"], columns)
  correct = np.nan_to_num(run.rollouts["correct"])
  visits = np.unique(np.stack([row, run.rollouts["step"]]), axis=1)[0]
  often = np.argsort(-np.bincount(visits, minlength=len(ids)), kind="stable")[:prompts]
  rate = np.bincount(row, correct, len(ids)) / np.maximum(seen, 1)
  order = often[np.argsort(-rate[often], kind="stable")]
  shape = (len(ids), len(edges) - 1)
  cell = row * shape[1] + column
  count = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
  total = np.bincount(cell, correct, shape[0] * shape[1]).reshape(shape)
  values = np.where(count > 0, total / np.maximum(count, 1), np.nan)
  return Heat(ids[order], edges, values[order], len(ids))


def solve_shares(run: Run, *, columns: int = 80) -> Heat:
  """Share of the prompts of each time whose solve rate then lies in each of a few bands, 1 first.

  Groups of up to 16 rows get a band for each number of correct ones, larger ones 11 bands.
  """
  steps = run.rollouts["step"]
  edges, column = _columns(steps, columns)
  pairs, cell = np.unique(np.stack([steps, run.rollouts["prompt"]]), axis=1, return_inverse=True)
  seen = np.bincount(cell, minlength=pairs.shape[1])
  most = int(seen.max(initial=1))
  bands = most + 1 if most <= 16 else 11
  rate = np.bincount(cell, np.nan_to_num(run.rollouts["correct"]), pairs.shape[1])
  band = np.rint(np.clip(rate / np.maximum(seen, 1), 0, 1) * (bands - 1)).astype(int)
  where = np.zeros(pairs.shape[1], int)
  where[cell] = column
  count = np.zeros((bands, len(edges) - 1))
  np.add.at(count, (bands - 1 - band, where), 1)
  total = count.sum(0, keepdims=True)
  values = np.where(total > 0, count / np.maximum(total, 1), np.nan)
  return Heat(np.linspace(1, 0, bands), edges, values, bands)


# --------------------------------------------------------------------------------------------------
# Pictures


def reward_curve(
  jsonl_path: str | os.PathLike, png_path: str | os.PathLike, *, title: str = ""
) -> Path:
  """Draws the mean reward of each step and the evaluations of a run.

  The reward is drawn raw, and smoothed from 8 points on; evaluations as points joined by lines:
  pass@1 of each set, thinner for each data source of it.

  Args:
    jsonl_path: metrics.jsonl of a run, with any number of rows.
    png_path: the picture; its folder is made when there is none.
    title: above the plot; none when empty.

  Returns:
    png_path.

  Raises:
    ValueError: if there is neither a reward nor an evaluation in the file.
  """
  rows = read_metrics(jsonl_path)
  names = sorted({name for row in rows for name in row})
  evals = [name for name in names if re.fullmatch(r"eval/[^/]+/pass@1", name)]
  steps, reward = curve(rows, "reward/mean")
  if not len(steps) and not any(len(curve(rows, name)[0]) for name in evals):
    raise ValueError(f"{jsonl_path} has neither reward/mean nor eval/<set>/pass@1: nothing to draw")

  figure = matplotlib.figure.Figure(figsize=(7.2, 4.0), layout="constrained")
  axes = figure.add_subplot()
  if len(steps):
    window = max(len(steps) // 15, 3)
    many = len(steps) >= 8
    axes.plot(
      steps,
      reward,
      color=_REWARD,
      alpha=0.3 if many else 1.0,
      linewidth=1.0 if many else 1.8,
      marker="" if many else "o",
      markersize=4,
      label=None if many else "training reward",
    )
    if many:
      label = f"training reward (mean of {window} steps)"
      axes.plot(steps, smooth(reward, window), color=_REWARD, linewidth=2.0, label=label)
  for i, name in enumerate(evals):
    color = _EVALS[i % len(_EVALS)]
    held_out = name.split("/")[1]
    points = curve(rows, name)
    axes.plot(
      *points, color=color, marker="o", markersize=5, linewidth=1.8, label=f"{held_out}: pass@1"
    )
    parts = [n for n in names if re.fullmatch(rf"eval/{re.escape(held_out)}/[^/]+/pass@1", n)]
    styles = ("--", ":", "-.")
    for j, part in enumerate(parts):
      axes.plot(
        *curve(rows, part),
        color=color,
        alpha=0.65,
        linewidth=1.1,
        linestyle=styles[j % len(styles)],
        marker="svD^<>"[j % 6],
        markersize=3.5,
        label=f"{held_out}: {part.split('/')[2]}",
      )
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
  _dress(axes, title, "step", "reward, accuracy")
  png_path = Path(png_path)
  png_path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(png_path, dpi=160, format="png", facecolor="white")
  return png_path


def pass_at_k(
  reports: Mapping[str, Mapping[str, Any]], png_path: str | os.PathLike, *, title: str = ""
) -> Path:
  """Draws pass@k over k, with its intervals as bands, of one or more evaluations.

  Args:
    reports: label -> what launch.evaluate wrote; one curve for each set of each.
    png_path: the picture; its folder is made when there is none.
    title: above the plot; none when empty.

  Returns:
    png_path.

  Raises:
    ValueError: if there is no report.
  """
  if not reports:
    raise ValueError("no evaluation to draw")
  figure = matplotlib.figure.Figure(figsize=(7.2, 4.0), layout="constrained")
  axes, colors = figure.add_subplot(), COLORS
  curves = [(label, name, one) for label, r in reports.items() for name, one in r["sets"].items()]
  for i, (label, name, found) in enumerate(curves):
    points = {
      int(metric.removeprefix("pass@")): value
      for metric, value in found["all"]["metrics"].items()
      if metric.startswith("pass@")
    }
    ks, color = sorted(points), colors[i % len(colors)]
    column = lambda field, points=points, ks=ks: [points[k][field] for k in ks]
    axes.plot(
      ks, column("value"), color=color, marker="o", markersize=4, linewidth=1.8,
      linestyle="-" if i < len(colors) else "--", label=f"{label}: {name}",
    )  # fmt: skip
    axes.fill_between(ks, column("low"), column("high"), color=color, alpha=0.15, linewidth=0)
    if len(ks) == 1:  # a band of no width
      axes.vlines(ks, column("low"), column("high"), color=color, linewidth=1.2)
  axes.set_xscale("log", base=2)
  axes.xaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%d"))
  _dress(axes, title, "k", "pass@k")
  png_path = Path(png_path)
  png_path.parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(png_path, dpi=160, format="png", facecolor="white")
  return png_path


def save_pictures(
  runs: Sequence[Run], folder: str | os.PathLike, *, along: str = "steps"
) -> list[Path]:
  """Draws curves of the runs together, and the ledger and rollouts of each; the files, in order.

  Args:
    runs: with different names.
    folder: made when there is none. A metric a/b becomes a_b.png; what belongs to one run carries its name.
    along: of AXES.

  Raises:
    ValueError: for an axis there is not.
  """
  if along not in AXES:
    raise unknown("axis", along, AXES)
  folder, paths = Path(folder), []
  folder.mkdir(parents=True, exist_ok=True)
  names = sorted({name for run in runs for row in run.rows for name in row} - {"step"})
  for name in names:
    if not name.startswith(("tokens/", "time/")) and any(len(curve(r.rows, name)[0]) for r in runs):
      paths.append(_curves(runs, name, along, folder / f"{_file(name)}.png"))
  for column, unit in (("length", "tokens"), ("reward", "reward")):
    if have := [run for run in runs if len(run.rollouts[column])]:
      paths.append(_histograms(have, column, unit, folder / f"histogram_{column}.png"))
  for run in runs:
    suffix = f"_{_file(run.name)}" if len(runs) > 1 else ""
    paths.append(_ledger(run, folder / f"ledger{suffix}.png"))
    if len(run.rollouts["step"]):
      heat = solve_rates(run)
      label = f"prompts ({len(heat.labels)} of {heat.total}, those seen most)"
      paths.append(_heat(run, heat, label, "solve rate", folder / f"solve_rates{suffix}.png"))
      shares = solve_shares(run)
      label = "solve rate of a prompt"
      paths.append(_heat(run, shares, label, "share of prompts", folder / f"shares{suffix}.png"))
  return paths


def _file(name: str) -> str:
  return re.sub(r"[^\w.-]+", "_", name)


def _figure(width: float = 7.2, height: float = 4.0):
  figure = matplotlib.figure.Figure(figsize=(width, height), layout="constrained")
  return figure, figure.add_subplot()


def _save(figure, path: Path) -> Path:
  figure.savefig(path, dpi=160, format="png", facecolor="white")
  return path


def _curves(runs: Sequence[Run], name: str, along: str, path: Path) -> Path:
  figure, axes = _figure()
  for i, run in enumerate(runs):
    x, values = curve(run.rows, name, along)
    color, few = COLORS[i % len(COLORS)], len(x) < 8 or name.startswith("eval/")
    marker = "o" if few else ""
    axes.plot(
      x, values, color=color, alpha=1.0 if few else 0.3, linewidth=1.2, marker=marker, markersize=4,
      label=_plain(run.name) if few else None,
    )  # fmt: skip
    if not few:
      window = max(len(x) // 15, 3)
      axes.plot(x, smooth(values, window), color=color, linewidth=2.0, label=_plain(run.name))
  unit = described(name).unit
  _dress(axes, _plain(name), AXES[along], _plain(unit or name.rpartition("/")[2]))
  return _save(figure, path)


def _ledger(run: Run, path: Path) -> Path:
  figure, axes = _figure()
  steps, parts = ledger_stack(run.rows)
  axes.stackplot(
    steps, *(parts[name] for name in FATES), colors=list(FATES.values()), labels=list(FATES)
  )
  axes.plot(steps, parts["generated"], color=_INK, linewidth=1.4, linestyle="--", label="generated")
  came = parts["generated"] + parts["reused"]
  axes.plot(steps, came, color=_INK, linewidth=1.4, label="generated and reused")
  _dress(axes, _plain(f"{run.name}: what became of tokens"), "step", "response tokens, cumulative")
  return _save(figure, path)


def _histograms(runs: Sequence[Run], column: str, unit: str, path: Path) -> Path:
  figure, axes = _figure()
  edges, highest = bin_edges(np.concatenate([run.rollouts[column] for run in runs])), 0.0
  for i, run in enumerate(runs):
    counts = histogram(run, column, edges)
    for part, style in ((0, ":"), (-1, "-")):
      share = counts[part] / max(counts[part].sum(), 1)
      highest = max(highest, share.max())
      label = _plain(f"{run.name}, {'last' if part else 'first'} quarter")
      axes.stairs(
        share, edges, color=COLORS[i % len(COLORS)], linestyle=style, linewidth=1.6, label=label
      )
  _dress(axes, f"{column} of rollouts", f"{column} ({unit})", "share of rollouts")
  axes.set_ylim(0, highest * 1.05)
  return _save(figure, path)


def _heat(run: Run, heat: Heat, label: str, unit: str, path: Path) -> Path:
  figure, axes = _figure()
  image = axes.pcolormesh(
    heat.edges, np.arange(len(heat.labels) + 1), heat.values, cmap="viridis", vmin=0, vmax=1
  )
  axes.set_ylim(len(heat.labels), 0)
  axes.set_xlabel("step", color=_INK)
  axes.set_ylabel(label, color=_INK)
  axes.set_title(_plain(run.name), loc="left", color=_INK, fontsize=11)
  rows = np.unique(np.linspace(0, len(heat.labels) - 1, 11).astype(int))
  axes.set_yticks(rows + 0.5, [f"{heat.labels[i]:g}" for i in rows])
  axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
  figure.colorbar(image, label=unit)
  return _save(figure, path)


def _plain(text: str) -> str:
  """Text that matplotlib draws as it stands: no formulas, and legends show no leading underscore."""
  return text.replace("$", r"\$").lstrip("_") or "run"


def _dress(axes, title: str, x: str, y: str) -> None:
  axes.set_xlabel(x, color=_INK)
  axes.set_ylabel(y, color=_INK)
  if title:
    axes.set_title(title, loc="left", color=_INK, fontsize=11)
  low, high = axes.get_ylim()
  if low >= -0.2 and high <= 1.2:  # fractions: the whole range, so that runs compare
    axes.set_ylim(-0.02, 1.02)
  axes.grid(axis="y", color=_GRID, linewidth=0.8)
  axes.set_axisbelow(True)
  axes.spines[["top", "right"]].set_visible(False)
  axes.spines[["left", "bottom"]].set_color(_MUTED)
  axes.tick_params(colors=_MUTED, labelcolor=_INK)
  axes.legend(
    loc="upper left",
    bbox_to_anchor=(1.0, 1.0),
    frameon=False,
    fontsize=8,
    labelcolor=_INK,
  )
