"""Trains a policy.

python -m launch.train --config=experiments/quickstart/config.py --workdir=runs/quickstart
python -m launch.train --policy=tiny --task=arithmetic --steps=200 --workdir=runs/tiny

Several processes, on one machine or many, run the same command; the workdir is a folder that all of them
see, and the mesh uses the devices of all. TPU pods and SLURM say by themselves who is who:

python -m launch.train --config=... --mesh=4x1x1 --coordinator=host:port --num_processes=2 --process_id=0
srun python -m launch.train --config=... --mesh=1x16x1 --distributed
"""

import contextlib
import os
import sys
import time

from absl import app, flags, logging

from rlvr_jax.core import table

_CONFIG = flags.DEFINE_string("config", None, "Python file with get_config() -> Config.")
_SET = flags.DEFINE_multi_string(
  "set", [], "key=value, e.g. recipe_args.clip_high=0.28, recipe.advantage=rloo; repeatable."
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; a second start resumes it.")
_SHORT = {
  name: flags.DEFINE_string(name, None, f"Short for --set={name}=...")
  for name in ("policy", "task", "recipe", "mesh", "steps", "seed")
}
_COORDINATOR = flags.DEFINE_string("coordinator", None, "host:port at which process 0 listens.")
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", None, "Processes of the run.", lower_bound=1)
_PROCESS_ID = flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.")
_DISTRIBUTED = flags.DEFINE_bool("distributed", False, "Let the TPU pod or SLURM say all three.")
_TIMEOUT = flags.DEFINE_integer(
  "process_timeout_seconds", 100, "A process unheard of for so long ends the run.", lower_bound=1
)


def build_config():
  """The config that the flags describe."""
  from rlvr_jax.train import config as configs

  config = configs.load_config(_CONFIG.value) if _CONFIG.value else configs.Config()
  short = [f"{name}={flag.value}" for name, flag in _SHORT.items() if flag.value is not None]
  return configs.apply_overrides(config, [*short, *_SET.value])


def connect():
  """Joins the other processes that the flags name, if any; all but the first stop printing.

  Raises:
    ValueError: if the flags do not go together.
  """
  import jax

  from rlvr_jax.core import hosts

  coordinator, num, this = given = _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  if given == (None, None, None) and not _DISTRIBUTED.value:
    return
  if not _DISTRIBUTED.value:
    if coordinator is None or num is None or this is None:
      raise ValueError("--coordinator, --num_processes and --process_id go together")
    if not 0 <= this < num:
      raise ValueError(f"process_id {this} of {num} processes: they count from 0")
  jax.config.update("jax_cpu_collectives_implementation", "gloo")
  jax.distributed.initialize(
    coordinator,
    num,
    this,
    heartbeat_timeout_seconds=_TIMEOUT.value,
    shutdown_timeout_seconds=_TIMEOUT.value,
  )
  if not hosts.is_first():
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (to the end of the process)


def run(config, workdir):
  """Builds what the config names, and trains, alone in the workdir. Returns train.loop.Outcome."""
  from rlvr_jax.core import hosts
  from rlvr_jax.train import config as configs

  with contextlib.ExitStack() as held:
    hosts.first(lambda: held.enter_context(configs.hold_workdir(workdir)))
    return _run(config, workdir)


def _run(config, workdir):
  from launch import meshes
  from rlvr_jax.core import hosts
  from rlvr_jax.models.load import export_policy, load_policy
  from rlvr_jax.recipes.compose import compose
  from rlvr_jax.reward import REWARDS, outcome
  from rlvr_jax.reward.weighted import weighted
  from rlvr_jax.tasks import TASKS
  from rlvr_jax.train import config as configs
  from rlvr_jax.train import loop, plots
  from rlvr_jax.train.annotate import Model
  from rlvr_jax.train.checkpoint import Checkpointer
  from rlvr_jax.train.rewards import reward_functions

  placed = meshes.place(config.mesh)
  recipe = compose(config.recipe, config.recipe_args, config.slots)
  rewards = reward_functions(config.rewards, REWARDS)
  if any(function.weight for function in rewards):  # else they are only looked at
    if getattr(recipe.reward, "__module__", None) != outcome.__name__:
      raise ValueError(f"recipe {config.recipe!r} has a reward of its own; give `rewards` weight 0")
    recipe = recipe._replace(reward=weighted(**{f.name: f.weight for f in rewards}))
  task = table.build("task", config.task, TASKS, config.task_args)
  began = time.perf_counter()

  def load(name):
    return load_policy(
      name,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      remat=config.remat,
      cache_dtype=config.cache_dtype or None,
      seed=config.seed,
      tokenizer=task.tokenizer,
      place=placed.leaf,
    )

  loaded = load(config.policy)
  others = {name: load(path) for name, path in config.models.items() if name in recipe.annotate}
  unused = sorted(set(config.models) - set(others))
  if unused:
    raise ValueError(f"models: nothing reads {unused}; the recipe asks for {list(recipe.annotate)}")
  workdir = hosts.first(lambda: configs.claim_workdir(workdir, config))
  print(configs.to_json(config))
  print(f"loaded {config.policy} in {time.perf_counter() - began:.1f} s")
  with Checkpointer(workdir, keep=config.keep_checkpoints) as checkpoints:
    fresh = checkpoints.latest() is None
  # A resumed run that needs its reference warms up again: the reference is where the run began.
  began_here = "reference" in recipe.annotate and "reference" not in others
  if config.warm_start_steps and (fresh or began_here):
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
    rewards=rewards,
    models={name: Model(*others.pop(name)[:2]) for name in list(others)},  # handed over
    placement=placed.placement,
  )
  if hosts.is_first() and configs.METRICS_FILE in os.listdir(workdir):
    plots.reward_curve(workdir / configs.METRICS_FILE, workdir / "reward_curve.png")
    print(f"curve: {workdir / 'reward_curve.png'}")
  if config.export:
    params = hosts.host(outcome.params)
    if hosts.is_first():
      export_policy(workdir / "export", loaded._replace(params=params))
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
  import jax

  from rlvr_jax.train import loop

  logging.set_verbosity(logging.WARNING)  # orbax narrates every checkpoint
  if not _WORKDIR.value:
    raise app.UsageError("--workdir=FOLDER is needed: where the run is kept, and resumed from")
  try:
    connect()
    run(build_config(), _WORKDIR.value)
  except loop.Interrupted as stopped:
    print(stopped)
    sys.exit(130)
  except (ValueError, ImportError, loop.NotFinite) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")
  except jax.errors.JaxRuntimeError as error:
    if jax.process_count() == 1:
      raise
    print(
      f"error: process {jax.process_index()} cannot go on: {str(error).splitlines()[0]}\n"
      "If another process has ended, its own message says why. Start all of them again: they go on "
      "from the newest checkpoint.",
      file=sys.stderr,
      flush=True,
    )
    os._exit(1)  # an orderly exit would wait for the process that is gone


if __name__ == "__main__":
  app.run(main)
