"""Trains a policy.

python -m launch.train --config=experiments/quickstart/config.py --workdir=runs/quickstart
python -m launch.train --policy=tiny --task=arithmetic --steps=200 --workdir=runs/tiny
"""

import os
import sys
import time

from absl import app, flags, logging

from rlvr_jax.core import table

_CONFIG = flags.DEFINE_string("config", None, "Python file with get_config() -> Config.")
_SET = flags.DEFINE_multi_string(
  "set", [], "key=value, e.g. recipe_args.clip_high=0.28; repeatable."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; a second start resumes it.")
_SHORT = {
  name: flags.DEFINE_string(name, None, f"Short for --set={name}=...")
  for name in ("policy", "task", "recipe", "mesh", "steps", "seed")
}


def build_config():
  """The config that the flags describe."""
  from rlvr_jax.train import config as configs

  config = configs.load_config(_CONFIG.value) if _CONFIG.value else configs.Config()
  short = [f"{name}={flag.value}" for name, flag in _SHORT.items() if flag.value is not None]
  return configs.apply_overrides(config, [*short, *_SET.value])


def run(config, workdir):
  """Builds what the config names, and trains, alone in the workdir. Returns train.loop.Outcome."""
  from rlvr_jax.train import config as configs

  with configs.hold_workdir(workdir):
    return _run(config, workdir)


def _run(config, workdir):
  from launch import meshes
  from rlvr_jax.models.load import export_policy, load_policy
  from rlvr_jax.recipes import RECIPES
  from rlvr_jax.tasks import TASKS
  from rlvr_jax.train import config as configs
  from rlvr_jax.train import loop, plots
  from rlvr_jax.train.checkpoint import Checkpointer

  placed = meshes.place(config.mesh)
  recipe = table.build("recipe", config.recipe, RECIPES, config.recipe_args)
  task = table.build("task", config.task, TASKS, config.task_args)
  began = time.perf_counter()
  loaded = load_policy(
    config.policy,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    seed=config.seed,
    tokenizer=task.tokenizer,
  )
  workdir = configs.claim_workdir(workdir, config)
  print(configs.to_json(config))
  print(f"loaded {config.policy} in {time.perf_counter() - began:.1f} s")
  with Checkpointer(workdir, keep=config.keep_checkpoints) as checkpoints:
    fresh = checkpoints.latest() is None
  if config.warm_start_steps and fresh:
    loaded = loaded._replace(params=_warm_start(config, loaded, recipe, task))
  params, loaded = [loaded.params], loaded._replace(params=None)
  outcome = loop.train(
    config,
    loaded.policy,
    params.pop(),  # taken over: nothing here keeps a second copy alive
    loaded.tokenizer,
    recipe,
    task,
    workdir,
    placement=placed.placement,
  )
  if configs.METRICS_FILE in os.listdir(workdir):
    plots.reward_curve(workdir / configs.METRICS_FILE, workdir / "reward_curve.png")
    print(f"curve: {workdir / 'reward_curve.png'}")
  if config.export:
    export_policy(workdir / "export", loaded._replace(params=outcome.state.learner.params))
    print(f"exported: {workdir / 'export'}")
  return outcome


def _warm_start(config, loaded, recipe, task):
  from rlvr_jax.tasks.arithmetic import demonstrations
  from rlvr_jax.train.warm_start import warm_start

  pairs = demonstrations(task, wrong=config.warm_start_wrong, repeats=4, seed=config.seed)
  params, loss = warm_start(
    loaded.policy,
    loaded.params,
    recipe,
    pairs,
    steps=config.warm_start_steps,
    rows=config.budget,
    learning_rate=config.warm_start_learning_rate,
    seed=config.seed,
  )
  print(f"warm start: {config.warm_start_steps} steps, {loss:.3f} nats a token")
  return params


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  from rlvr_jax.train import loop

  logging.set_verbosity(logging.WARNING)  # orbax narrates every checkpoint
  if not _WORKDIR.value:
    raise app.UsageError("--workdir=FOLDER is needed: where the run is kept, and resumed from")
  try:
    run(build_config(), _WORKDIR.value)
  except loop.Interrupted as stopped:
    print(stopped)
    sys.exit(130)
  except (ValueError, ImportError, loop.NotFinite) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  app.run(main)
