"""Pictures: the course of a run, and pass@k of evaluations."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.figure
import matplotlib.ticker
import numpy as np

from rlvr_jax.train.metrics import read_metrics

_INK, _MUTED, _GRID = "#1f2933", "#7b8794", "#e4e7eb"
_REWARD = "#2563a8"
_EVALS = ("#c2410c", "#0f766e", "#7c3aed", "#a16207", "#be185d", "#4d7c0f")


def series(rows: list[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
  """(steps [n], values [n]) of one metric: the rows that have it, null left out."""
  points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
  steps, values = zip(*points, strict=True) if points else ((), ())
  return np.asarray(steps, int), np.asarray(values, float)


def smooth(values: np.ndarray, window: int) -> np.ndarray:
  """[n]: mean of each value and those around it, `window` in all, fewer at the ends."""
  kernel = np.ones(window)
  total = np.convolve(values, kernel, mode="full")
  count = np.convolve(np.ones_like(values), kernel, mode="full")
  start = (window - 1) // 2
  return (total / count)[start : start + len(values)]


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
  steps, reward = series(rows, "reward/mean")
  if not len(steps) and not any(len(series(rows, name)[0]) for name in evals):
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
    points = series(rows, name)
    axes.plot(
      *points, color=color, marker="o", markersize=5, linewidth=1.8, label=f"{held_out}: pass@1"
    )
    parts = [n for n in names if re.fullmatch(rf"eval/{re.escape(held_out)}/[^/]+/pass@1", n)]
    styles = ("--", ":", "-.")
    for j, part in enumerate(parts):
      axes.plot(
        *series(rows, part),
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
  axes, colors = figure.add_subplot(), (_REWARD, *_EVALS)
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
