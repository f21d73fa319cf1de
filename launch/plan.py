"""Suggests how to spend a budget of tokens: rollouts of a prompt, prompts of a step, steps.

  python -m launch.plan --tokens=2e8 --tokens_per_rollout=300
  python -m launch.plan --tokens=2e9 --tokens_per_rollout=800 --prompts=128 --most=128 --most_rows=16384
  python -m launch.plan --tokens=2e8 --tokens_per_rollout=300 --points=sweep.jsonl

The law is that of the IsoCompute Playbook (arXiv 2603.12151): the best number n of rollouts of a prompt rises
with the number C of all rollouts, and saturates,

    log2 n(C) = log2 least + (log2 most - log2 least) / (1 + exp(-slope (log10 C - middle)))

Only where it saturates has been published, for a few policies; the slope and the middle printed here are
placeholders. With --points they are fitted to runs of your own: a JSON line {"group": n, "rollouts": C,
"reward": r} for each evaluation of runs with at least three values of n.
"""

import collections
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from absl import app, flags
from scipy import optimize

FEWEST_STEPS = 50


def define_flags():
  """Here and not at the top, so that the module can be imported beside other commands."""
  flags.DEFINE_float("tokens", None, "Response tokens that the run may generate.")
  flags.DEFINE_float("tokens_per_rollout", None, "Mean response length, as a run has measured it.")
  flags.DEFINE_integer("prompts", 32, "Prompts of a step.")
  flags.DEFINE_integer("least", 8, "Rollouts of a prompt that a small budget is best spent with.")
  flags.DEFINE_integer("most", 512, "Rollouts of a prompt beyond which nothing is gained.")
  flags.DEFINE_float("slope", 2.5, "Of the law, a decade of rollouts.")
  flags.DEFINE_float("middle", 6.0, "Of the law, log10 of rollouts.")
  flags.DEFINE_integer("most_rows", 65536, "Rows of a step that the machine can take.")
  flags.DEFINE_string(
    "points", None, "JSONL of evaluations to fit least, most, slope and middle to."
  )


class Law(NamedTuple):
  least: float = 8.0
  most: float = 512.0
  slope: float = 2.5
  middle: float = 6.0

  def best(self, rollouts):
    """Rollouts of a prompt, not rounded, for a number of rollouts in all."""
    low, high = math.log2(self.least), math.log2(self.most)
    return 2 ** (low + (high - low) * sigmoid(self.slope * (np.log10(rollouts) - self.middle)))


class Plan(NamedTuple):
  group: int  # rollouts of a prompt, a power of two
  prompts: int
  budget: int  # rows of a step
  steps: int
  learning_rate: float


def sigmoid(x):
  return 1 / (1 + np.exp(-np.asarray(x, float)))


def plan(rollouts: float, prompts: int, law: Law, most_rows: int) -> Plan:
  """Sizes of a run of that many rollouts in all.

  Raises:
    ValueError: if the rollouts, or the rows of a step, are too few.
  """
  if min(rollouts, prompts, most_rows) <= 0 or not 1 <= law.least <= law.most or law.slope <= 0:
    raise ValueError(
      "need rollouts, prompts and rows above 0, 1 <= least <= most and a slope above 0, got "
      f"{rollouts:g}, {prompts}, {most_rows} and {law}"
    )
  if rollouts < law.least * prompts:
    raise ValueError(
      f"{rollouts:,.0f} rollouts are less than one step of {prompts} prompts with {law.least:g} each: raise "
      "--tokens, or lower --prompts or --least"
    )
  if most_rows < law.least * prompts:
    raise ValueError(
      f"a step of {prompts} prompts with {law.least:g} rollouts each has more than {most_rows} rows"
    )
  group = 2 ** round(math.log2(law.best(rollouts)))
  group = max(min(group, law.most), law.least)
  group = int(2 ** math.floor(math.log2(min(group, most_rows // prompts))))
  budget = group * prompts
  steps = int(rollouts // budget)
  if not steps:
    raise ValueError(
      f"{rollouts:,.0f} rollouts are less than one step of {budget}: lower --prompts"
    )
  return Plan(group, prompts, budget, steps, 1e-6 * math.sqrt(budget / 1024))


# --------------------------------------------------------------------------------------------------
# Fitting the law to runs


def record_breaking(compute, reward) -> np.ndarray:
  """Indices of the points whose reward exceeds that of all with less compute, by rising compute."""
  compute, reward = np.asarray(compute, float), np.asarray(reward, float)
  order = np.lexsort((-reward, compute))
  best = np.maximum.accumulate(np.concatenate([[-np.inf], reward[order]]))
  return order[reward[order] > best[:-1]]


class Curve(NamedTuple):
  """reward = start + gain sigmoid(slope (log10 C - middle)), gain >= 0 and slope > 0."""

  start: float
  gain: float
  slope: float
  middle: float

  def at(self, compute):
    return self.start + self.gain * sigmoid(self.slope * (np.log10(compute) - self.middle))


def fit_curve(compute, reward) -> Curve:
  """The monotone sigmoid of least squares through points, from several starts.

  Raises:
    ValueError: for fewer than four points, which is what it takes.
  """
  x, y = np.log10(np.asarray(compute, float)), np.asarray(reward, float)
  if len(x) < 4:
    raise ValueError(f"a curve has four parameters, and there are {len(x)} points")
  span = max(np.ptp(y), 1e-6)
  bounds = ([y.min() - span, 0.0, 0.05, x.min() - 2], [y.max() + span, 4 * span, 50.0, x.max() + 2])
  starts = [(y.min(), span, *rest) for rest in _starts(x)]
  return Curve(*_least_squares(lambda p: Curve(*p).at(10**x) - y, starts, bounds))


def frontier(curves: Mapping[int, Curve], compute) -> np.ndarray:
  """Which group size has the highest curve at each compute; of equal ones the smaller."""
  sizes = sorted(curves)
  heights = np.stack([curves[n].at(np.asarray(compute, float)) for n in sizes])
  return np.asarray(sizes)[heights.argmax(0)]


def fit_law(compute, best) -> Law:
  """The law of least squares in log2 of the best group sizes.

  Raises:
    ValueError: if these have fewer than three different values.
  """
  x, y = np.log10(np.asarray(compute, float)), np.log2(np.asarray(best, float))
  if len(np.unique(y)) < 3:
    raise ValueError(
      f"the best group sizes are {sorted(set(np.asarray(best).tolist()))}: a law needs at least three values"
    )
  bounds = ([0.0, 0.0, 0.05, x.min() - 2], [y.max() + 2, np.ptp(y) + 4, 50.0, x.max() + 2])
  starts = [(y.min(), np.ptp(y), *rest) for rest in _starts(x)]
  low, rise, slope, middle = _least_squares(
    lambda p: p[0] + p[1] * sigmoid(p[2] * (x - p[3])) - y, starts, bounds
  )
  return Law(2**low, 2 ** (low + rise), slope, middle)


def law_of(points: Sequence[Mapping[str, float]]) -> Law:
  """The law that evaluations with `group`, `rollouts` and `reward` follow.

  Raises:
    ValueError: if they lack a field, or are too few.
  """
  runs = collections.defaultdict(list)
  for point in points:
    absent = {"group", "rollouts", "reward"} - set(point)
    if absent:
      raise ValueError(f"a point lacks {sorted(absent)}: {point}")
    runs[int(point["group"])].append((point["rollouts"], point["reward"]))
  if len(runs) < 3:
    raise ValueError(f"group sizes {sorted(runs)}: a law needs runs of at least three")
  curves = {}
  for n, pairs in runs.items():
    compute, reward = np.array(pairs, float).T
    kept = record_breaking(compute, reward)
    curves[n] = fit_curve(compute[kept], reward[kept])
  every = np.array([p["rollouts"] for p in points], float)
  grid = np.logspace(np.log10(every.min()), np.log10(every.max()), 60)
  return fit_law(grid, frontier(curves, grid))


def _starts(x):
  middles = np.quantile(x, (0.2, 0.5, 0.8))
  return [(slope, middle) for slope in (1.0, 2.5, 8.0) for middle in middles]


def _least_squares(residuals, starts, bounds):
  low, high = map(np.asarray, bounds)
  fits = [
    optimize.least_squares(residuals, np.clip(start, low + 1e-9, high - 1e-9), bounds=bounds)
    for start in starts
  ]
  return min(fits, key=lambda fit: fit.cost).x.tolist()


# --------------------------------------------------------------------------------------------------


def text(tokens: float, tokens_per_rollout: float, law: Law, fitted: bool, found: Plan) -> str:
  """The plan, and what each of its numbers rests on."""
  rollouts = tokens / tokens_per_rollout
  source = "fitted to your runs" if fitted else "placeholders until fitted with --points"
  lines = [
    f"{rollouts:,.0f} rollouts: {tokens:,.0f} tokens at {tokens_per_rollout:g} each. Assumes that the mean "
    "length stays; it often grows in training.",
    f"--set=budget={found.budget} is {found.group} rollouts for each prompt. The law asks for "
    f"{law.best(rollouts):.1f} (least {law.least:g}, most {law.most:g}, slope {law.slope:g}, middle "
    f"{law.middle:g}: {source}); a power of two that fits the rows of a step. Published saturation: 512 on "
    "easy tasks and 128 on hard ones for Qwen2.5-7B-Instruct, 16 to 64 for other policies.",
    f"--set=prompts={found.prompts}. Any number from 32 to 1024 changed little there; more of them steady "
    "the update where difficulties differ much.",
    f"--set=steps={found.steps}. What the tokens allow.",
    f"--set=learning_rate={found.learning_rate:.3g}. 1e-6 at 1024 rows, with the square root of the rows "
    "(AdamW, full fine-tuning of billions of parameters): tune it for small policies and adapters.",
  ]
  return "\n".join(lines)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  given = flags.FLAGS
  try:
    for name in ("tokens", "tokens_per_rollout"):
      if getattr(given, name) is None or getattr(given, name) <= 0:
        raise ValueError(f"give --{name}, a positive number")
    law = Law(given.least, given.most, given.slope, given.middle)
    if given.points:
      with open(given.points) as file:
        law = law_of([json.loads(line) for line in file if line.strip()])
    rollouts = given.tokens / given.tokens_per_rollout
    found = plan(rollouts, given.prompts, law, given.most_rows)
  except (OSError, ValueError) as error:
    sys.exit(f"error: {error}")
  print(text(given.tokens, given.tokens_per_rollout, law, bool(given.points), found))
  if found.steps < FEWEST_STEPS:
    print(f"warning: {found.steps} steps are few: lower --prompts or --most", file=sys.stderr)


if __name__ == "__main__":
  define_flags()
  app.run(main)
