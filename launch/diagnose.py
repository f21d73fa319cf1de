"""Says what ails a run, finished or going on, and what to try.

python -m launch.diagnose --workdir=runs/quickstart

Reads metrics.jsonl alone: the warnings that came up on the way, then every rule that holds in the last 20
steps, most severe first, with the recipes that answer it. See rlvr_jax.train.health.
"""

import os
import sys
from typing import NamedTuple

from absl import app, flags

from rlvr_jax.recipes import RECIPES
from rlvr_jax.train.health import WINDOW, Finding, Rule, Watch
from rlvr_jax.train.mirror import reading
from rlvr_jax.train.plots import Run, read_run


def define_flags():
  """Called when this is the command: other commands have flags of the same names."""
  flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)


class Health(NamedTuple):
  """What a run's metrics say."""

  step: int  # the last one
  raised: list[Finding]  # warnings, as they came up
  found: list[Finding]  # rules that hold now, most severe first
  unchecked: list[Rule]  # rules whose metric is missing


def examine(run: Run) -> Health:
  """Looks at every step of a run.

  Raises:
    ValueError: if it has no step.
  """
  if not run.rows:
    raise ValueError(f"the run {run.name} has no step yet")
  functions = [key.rpartition(":")[2] for key in run.config.get("rewards", {})]
  watch = Watch(run.config.get("alarms", {}), functions=functions)
  raised = [one for row in run.rows for one in watch.look(row["step"], row)]
  step = run.rows[-1]["step"]
  return Health(step, raised, *watch.diagnosis(step))


def recipes(rule: Rule) -> list[str]:
  """Names of RECIPES that answer a rule, the most direct first."""
  return [
    name
    for method in rule.methods
    for name in RECIPES
    if name == method or name.startswith(method + "_")
  ]


def report(health: Health) -> str:
  """The text that the command prints."""
  lines = []
  if health.raised:
    lines += ["On the way:", *(f"  {one.text()}" for one in health.raised), ""]
  lines += [f"Last {WINDOW} steps, to step {health.step}:"]
  for one in health.found:
    lines.append(f"  {one.severity:6.2f}x  {one.text()}")
    if one.rule.modules:
      lines.append(f"           see {', '.join(one.rule.modules)}")
    if here := recipes(one.rule):
      lines.append(f"           recipes: {', '.join(here)}")
  if not health.found:
    lines.append("  nothing found")
  if health.unchecked:
    names = (f"{rule.name} ({rule.metric})" for rule in health.unchecked)
    lines += ["", f"Not checked, for want of their metric: {', '.join(names)}"]
  return "\n".join(lines)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  try:
    with reading(flags.FLAGS.workdir) as folder:
      print(report(examine(read_run(folder))))
  except (ValueError, ImportError, OSError) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  define_flags()
  app.run(main)
