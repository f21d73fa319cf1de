"""What a run would do and need, from its config alone: `python -m launch.train --dry_run`."""

import math
import pathlib

from launch import memory
from rlvr_jax.core import table
from rlvr_jax.models.configs import CONFIGS
from rlvr_jax.recipes.compose import compose
from rlvr_jax.tasks import TASKS
from rlvr_jax.train import config as configs
from rlvr_jax.train.config import Config


def budget(config: Config) -> dict[str, int]:
  """Tokens of the run, at most: no response ends early, and each step needs all its rounds.

  Raises:
    ValueError: as the run would: for a name, an argument or sizes that do not fit.
  """
  recipe = compose(config.recipe, config.recipe_args, config.slots)
  task = table.build("task", config.task, TASKS, config.task_args)
  absent = set(recipe.annotate) - {"old", "reference", *config.models}
  if absent:
    name = min(absent)
    raise ValueError(
      f"the recipe reads log-probs of the model {name!r}: say which it is, --set=models.{name}=PATH"
    )
  rounds, waves = recipe.refill.rounds, recipe.allocate.plan(config.prompts, config.budget)
  step = rounds * sum(waves) * config.max_new_tokens
  steps, total = config.steps, config.steps * step
  if config.max_generated_tokens:  # the step that reaches them is the last
    total = min(total, config.max_generated_tokens - 1 + step)
  evaluations = math.ceil(steps / config.eval_every) + 1 if config.eval_every else 0
  held = sum(min(len(examples), config.eval_prompts) for examples in task.evals.values())
  return {
    "train prompts": len(task.train),
    "held-out prompts": held if config.eval_every else 0,
    "steps": steps,
    "rounds a step, at most": rounds,
    "prompts a round": config.prompts,
    "waves a round": len(waves),
    "rows a round": sum(waves),
    "rows learned a step": config.budget,
    "updates a step": recipe.updates,
    "tokens a step": step,
    "prompt tokens a step": rounds * len(waves) * config.prompts * config.max_prompt_length,
    "tokens of the run": total,
    "evaluations": evaluations,
    "tokens of evaluations": evaluations * held * config.eval_samples * config.max_new_tokens,
  }


def describe(config: Config) -> str:
  """The plan as text: the config, its tokens and the bytes of a device. Nothing is allocated."""
  lines = [f"{configs.to_json(config)}config {configs.digest(config)}", "", "at most:"]
  lines += [f"  {name:<24}{value:>16,}" for name, value in budget(config).items()]
  folder = pathlib.Path(config.policy).expanduser() / "config.json"
  if config.policy != "tiny" and config.policy not in CONFIGS and not folder.exists():
    return "\n".join([*lines, "", f"bytes: not known without the weights of {config.policy}"])
  bytes_of = memory.plan(config)
  lines += ["", f"{config.policy} on mesh {config.mesh}, MiB on each device:"]
  lines += [f"  {name:<24}{value / 2**20:>16,.1f}" for name, value in bytes_of._asdict().items()]
  lines += [
    f"  {'at most, in an update':<24}{bytes_of.learn / 2**20:>16,.1f}",
    f"  {'at most, in sampling':<24}{bytes_of.decode / 2**20:>16,.1f}",
  ]
  return "\n".join(lines)
