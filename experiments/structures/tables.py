"""The study's table, from the metrics of its runs.

python -m experiments.structures.tables --workdir=runs/structures
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import app, flags

from experiments.selection.tables import ACCURACY, curve
from experiments.structures.config import RUNS, SEEDS, TOKENS
from rlvr_jax.train.metrics import read_metrics

POINTS = TOKENS // 3, 2 * TOKENS // 3, TOKENS
Runs = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]  # name -> seed -> rows of metrics


def read(workdir: pathlib.Path) -> Runs:
  """The runs that have come to their end."""
  runs: dict[str, dict[int, Any]] = {}
  for name in RUNS:
    for seed in SEEDS:
      folder = workdir / f"{name}-{seed}"
      if (folder / "finished.json").exists():
        runs.setdefault(name, {})[seed] = read_metrics(folder / "metrics.jsonl")
  return runs


def table(runs: Runs) -> str:
  """Markdown: means over seeds; differences are to the grpo of the same seed, with their standard deviation.

  Accuracy lies on straight lines between evaluations. A run that ended before a point keeps its last one.
  """
  accuracy = {
    name: {seed: np.interp(POINTS, *curve(rows, ACCURACY)) for seed, rows in seeds.items()}
    for name, seeds in runs.items()
  }
  head = [
    "run", "seeds", *(f"pass@1 at {point:,}" for point in POINTS),
    *(f"less grpo at {point:,}" for point in POINTS[1:]), "steps", "tokens a step", "trained/generated",
  ]  # fmt: skip
  lines = [head, ["---"] * len(head)]
  for name, seeds in runs.items():
    mine, base = accuracy[name], accuracy.get("grpo", {})
    both = sorted(set(mine) & set(base))
    gain = np.array([mine[seed] - base[seed] for seed in both])
    made = [[row for row in rows if "policy/lr" in row] for rows in seeds.values()]
    spent = [rows[-1]["tokens/generated"] for rows in made]
    trained = [rows[-1]["tokens/trained"] / tokens for rows, tokens in zip(made, spent)]
    lines.append(
      [
        name,
        str(len(seeds)),
        *(f"{x:.3f}" for x in np.mean(list(mine.values()), 0)),
        *(f"{m:+.3f} ± {s:.3f}" for m, s in list(zip(gain.mean(0), gain.std(0)))[1:]),
        f"{np.mean([len(rows) for rows in made]):.0f}",
        f"{np.mean([tokens / len(rows) for rows, tokens in zip(made, spent)]):.0f}",
        f"{np.mean(trained):.2f}",
      ]
    )
  return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  runs = read(pathlib.Path(flags.FLAGS.workdir))
  if "grpo" not in runs:
    raise app.UsageError(f"{flags.FLAGS.workdir} holds no finished run of grpo to compare with")
  print(table(runs))


if __name__ == "__main__":
  flags.DEFINE_string("workdir", "runs/structures", "Of the sweep.")
  app.run(main)
