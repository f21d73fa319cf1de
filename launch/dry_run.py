"""What a run would do and need, from its config alone: `python -m launch.train --dry_run`."""

import math
import pathlib
from collections.abc import Sequence

import numpy as np

from launch import memory
from rlvr_jax.core import table, traits
from rlvr_jax.core.records import Task
from rlvr_jax.core.types import Recipe, plain_table
from rlvr_jax.models.configs import CONFIGS
from rlvr_jax.recipes.compose import compose, rewarded
from rlvr_jax.reward import REWARDS
from rlvr_jax.tasks import TASKS
from rlvr_jax.train import config as configs
from rlvr_jax.train import rehearse as steps
from rlvr_jax.train.config import Config
from rlvr_jax.train.rewards import RewardFunction, Scorer, reward_functions


def budget(config: Config) -> dict[str, int]:
  """Tokens of the run, at most: no response ends early, and each step needs all its rounds.

  Raises:
    ValueError: as the run would: for a name, an argument or sizes that do not fit.
  """
  rewards = reward_functions(config.rewards, REWARDS)
  recipe = compose(config.recipe, config.recipe_args, config.slots, kl_coef=config.kl_coef)
  recipe = rewarded(recipe, {one.name: one.weight for one in rewards})
  task = table.build("task", config.task, TASKS, config.task_args)
  absent = set(recipe.annotate) - {"old", "reference", *config.models}
  if absent:
    name = min(absent)
    raise ValueError(
      f"the recipe reads log-probs of the model {name!r}: say which it is, --set=models.{name}=PATH"
    )
  rehearse(config, recipe, task, rewards)
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


def rehearse(config: Config, recipe: Recipe, task: Task, rewards: Sequence[RewardFunction]) -> None:
  """Goes through a step of the recipe on shapes alone, see train.rehearse.

  Raises:
    ValueError: if pieces of the recipe, sizes, or reward functions and data do not go together.
  """
  num = len(task.train)
  for piece in (recipe.posterior.init, recipe.select):  # prompts that are too long may be left out
    num = min(num, traits.trait(piece, "prompts", num))
  source = np.zeros(num, np.int32)
  source[-1:] = len(task.sources) - 1
  with Scorer(rewards, task.train) as scorer:
    steps.rehearse(
      recipe, plain_table(num, source=source), prompts=config.prompts, budget=config.budget,
      max_new_tokens=config.max_new_tokens, sources=task.sources, scorer=scorer,
    )  # fmt: skip


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
