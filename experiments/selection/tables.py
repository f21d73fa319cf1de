"""The study's table and picture, from the metrics of its runs.

python -m experiments.selection.tables --workdir=runs/selection/runs
"""

import pathlib

import numpy as np
from absl import app, flags

from experiments.selection.config import RUNS, SEEDS, TOKENS
from rlvr_jax.train.metrics import read_metrics

POINTS = TOKENS // 4, TOKENS // 2, TOKENS
ACCURACY = "eval/heldout/pass@1"
LEARNABLE = "eval/heldout/learnable/pass@1"


def curve(rows, name):
  """(generated tokens, value) of each evaluation: an evaluation comes before the update of its row."""
  tokens, values, spent = [], [], 0.0
  for row in rows:
    if row.get(name) is not None:
      tokens.append(spent)
      values.append(row[name])
    spent = row.get("tokens/generated", spent)
  return np.array(tokens), np.array(values)


def reached(tokens, values, goal):
  """Tokens at which the straight lines between evaluations first reach the goal; inf if they do not."""
  for i in range(1, len(values)):
    if values[i] >= goal:
      rise = values[i] - values[i - 1]
      part = 1.0 if rise <= 0 else np.clip((goal - values[i - 1]) / rise, 0.0, 1.0)
      return tokens[i - 1] + part * (tokens[i] - tokens[i - 1])
  return np.inf


def read(workdir: pathlib.Path):
  """name -> the rows of metrics of each seed that is there."""
  runs = {}
  for name in RUNS:
    folders = [workdir / f"{name.replace(' + ', '+')}-{seed}" for seed in SEEDS]
    files = [f / "metrics.jsonl" for f in folders if (f / "finished.json").exists()]
    if files:
      runs[name] = [read_metrics(file) for file in files]
  return runs


def table(runs) -> str:
  """Markdown; mean and standard deviation over seeds."""
  head = [f"pass@1 at {point:,}" for point in POINTS] + [
    f"learnable at {TOKENS:,}", "mixed groups", "trained/generated", "tokens to DAPO's", "seconds",
  ]  # fmt: skip
  goal = np.mean([curve(rows, ACCURACY)[1][-1] for rows in runs.get("dapo", [])] or [np.nan])
  lines = [
    "| run | seeds | " + " | ".join(head) + " |", "|" + "---|" * (len(head) + 2),
  ]  # fmt: skip
  for name, seeds in runs.items():
    columns: list[list] = [
      [np.interp(point, *curve(rows, ACCURACY)) for rows in seeds] for point in POINTS
    ]
    columns.append([curve(rows, LEARNABLE)[1][-1] for rows in seeds])
    steps = [[row for row in rows if "reward/mean" in row] for rows in seeds]
    columns.append([1 - np.mean([r["group/frac_zero_std"] for r in rows]) for rows in steps])
    columns.append([rows[-1]["tokens/trained"] / rows[-1]["tokens/generated"] for rows in steps])
    mean = np.mean([np.interp(GRID, *curve(rows, ACCURACY)) for rows in seeds], 0)
    to_goal = reached(GRID, mean, goal)
    seconds = np.mean([sum(r["time/step_seconds"] for r in rows[1:]) for rows in steps])
    cells = [f"{np.mean(c):.3f} ± {np.std(c):.3f}" for c in columns]
    cells += [f"{to_goal:,.0f}" if np.isfinite(to_goal) else "not reached", f"{seconds:.1f}"]
    lines.append(f"| {name} | {len(seeds)} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


GRID = np.linspace(0, TOKENS, 81)


def picture(runs, file: pathlib.Path) -> None:
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  figure, axes = pyplot.subplots(figsize=(8, 5))
  shown = {name for name in runs if name in ("grpo", "dapo", "dps", "token_value") or "+" in name}
  for name, seeds in runs.items():
    mean = np.mean([np.interp(GRID, *curve(rows, ACCURACY)) for rows in seeds], 0)
    style = {"label": name} if name in shown else {"color": "0.8", "zorder": 0}
    axes.plot(GRID / 1000, mean, **style)
  axes.set_xlabel("generated tokens, thousands")
  axes.set_ylabel("held-out pass@1, mean of the seeds")
  axes.legend()
  axes.grid(alpha=0.3)
  figure.savefig(file, dpi=120, bbox_inches="tight")
  pyplot.close(figure)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  workdir = pathlib.Path(flags.FLAGS.workdir)
  runs = read(workdir)
  if not runs:
    raise app.UsageError(f"{workdir} holds no finished run of the study")
  print(table(runs))
  picture(runs, workdir / "accuracy.png")
  print(f"\n{workdir / 'accuracy.png'}")


if __name__ == "__main__":
  flags.DEFINE_string("workdir", "runs/selection/runs", "Of the sweep.")
  app.run(main)
