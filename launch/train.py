"""Trains a policy.

python -m launch.train --config=experiments/quickstart/config.py --workdir=runs/quickstart
python -m launch.train --policy=tiny --task=arithmetic --steps=200 --workdir=runs/tiny

A workdir in a bucket, --workdir=gs://bucket/run (pip install gcsfs), is a copy of a folder of this machine,
renewed with every checkpoint; see rlvr_jax.train.mirror.

Several processes, on one machine or many, run the same command; the workdir is a folder that all of them
see, and the mesh uses the devices of all. TPU pods and SLURM say by themselves who is who:

python -m launch.train --config=... --mesh=4x1x1 --coordinator=host:port --num_processes=2 --process_id=0
srun python -m launch.train --config=... --mesh=1x16x1 --distributed

Before a run, and when something is wrong with one:

--dry_run                    prints the plan, the bytes and the tokens of the run; nothing is allocated
--config=WORKDIR/config.json the config of a run, again
--profile=10:13              a JAX trace of steps 10, 11 and 12, in WORKDIR/trace
--debug=rollout              rollouts without learning
--debug=mock                 learning from random tokens, of lengths as debug_args say; no model samples
--dump=7                     keeps step 7: the state before it, its batch, and what came of it
--debug=replay --dump=7      runs that step again and says whether the same came of it, bit for bit
--debug=train --dump=7       the same from its batch: no rollouts
"""

import contextlib
import os
import sys
import time
from typing import Any, NamedTuple

from absl import app, flags, logging

from rlvr_jax.core import table

_CONFIG = flags.DEFINE_string(
  "config", None, "Python file with get_config() -> Config, or the config.json of a run."
)
_SET = flags.DEFINE_multi_string(
  "set", [], "key=value, e.g. recipe_args.clip_high=0.28, recipe.advantage=rloo; repeatable."
)
_WORKDIR = flags.DEFINE_string(
  "workdir", None, "Folder of the run, here or in a bucket (gs://...); a second start resumes it."
)
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
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print what the run would do and need, and stop.")
_PROFILE = flags.DEFINE_string("profile", None, "FROM:TO, steps to trace; TO is left out.")
_DUMP = flags.DEFINE_integer("dump", None, "Step to keep, or to run again.", lower_bound=0)
_DEBUG = flags.DEFINE_enum(
  "debug", None, ["rollout", "mock", "replay", "train"], "See the top of this file."
)
_COMPILE_CACHE = flags.DEFINE_string(
  "compile_cache", None, "Folder for compiled programs: a later run need not compile them again."
)


def build_config():
  """The config that the flags describe."""
  from rlvr_jax.train import config as configs

  config = configs.load_config(_CONFIG.value) if _CONFIG.value else configs.Config()
  return configs.apply_overrides(config, overrides())


def overrides() -> list[str]:
  """What the flags change in a config, as key=value."""
  short = [f"{name}={flag.value}" for name, flag in _SHORT.items() if flag.value is not None]
  if _DEBUG.value in ("rollout", "mock"):
    short.append(f"debug={_DEBUG.value}")
  return [*short, *_SET.value]


def profile_steps() -> range:
  """The steps that --profile names.

  Raises:
    ValueError: if it is not FROM:TO.
  """
  if _PROFILE.value is None:
    return range(0)
  first, colon, end = _PROFILE.value.partition(":")
  if not colon or not first.isdigit() or not end.isdigit() or int(first) >= int(end):
    raise ValueError(f"--profile={_PROFILE.value} must be FROM:TO, whole numbers with FROM < TO")
  return range(int(first), int(end))


def use_compile_cache():
  """Keeps every compiled program in the folder that the flags name, if they do."""
  import jax

  from rlvr_jax.train.mirror import is_remote

  if folder := _COMPILE_CACHE.value:
    where = folder if is_remote(folder) else os.path.abspath(folder)
    jax.config.update("jax_compilation_cache_dir", where)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


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


def run(config, workdir, *, profile=range(0), dump=None):
  """Builds what the config names, and trains, alone in the workdir. Returns train.loop.Outcome."""
  from rlvr_jax.core import hosts
  from rlvr_jax.train import config as configs
  from rlvr_jax.train import loop, plots
  from rlvr_jax.train.checkpoint import Checkpointer
  from rlvr_jax.train.mirror import working

  with contextlib.ExitStack() as held:
    workdir, mirror = hosts.first(
      lambda: held.enter_context(working(workdir, hold=configs.hold_workdir))
    )
    built = _build(config)
    workdir = hosts.first(lambda: configs.claim_workdir(workdir, config))
    print(f"{configs.to_json(config)}config {configs.digest(config)}")
    with Checkpointer(workdir, keep=config.keep_checkpoints) as checkpoints:
      fresh = checkpoints.latest() is None
    # A resumed run that needs its reference warms up again: the reference is where the run began.
    params, loaded = _begin(config, built, warm=fresh or built.needs_start)
    outcome = loop.train(
      config, loaded.policy, params.pop(), loaded.tokenizer, built.recipe, built.task, workdir,
      rewards=built.rewards, models=built.models, placement=built.placement, profile=profile,
      dump=dump, mirror=mirror,
    )  # fmt: skip
    if hosts.is_first() and configs.METRICS_FILE in os.listdir(workdir):
      plots.reward_curve(workdir / configs.METRICS_FILE, workdir / "reward_curve.png")
      print(f"curve: {workdir / 'reward_curve.png'}")
    if config.export:
      _export(loaded, outcome.params, workdir / "export")
    return outcome


def replay(config, workdir, step: int, *, learn_only: bool) -> bool:
  """Runs a step again from its dump; prints what came of it. Returns whether it was the same."""
  from rlvr_jax.train import debug, loop
  from rlvr_jax.train.mirror import reading

  built = _build(config)
  params, loaded = _begin(config, built, warm=built.needs_start)
  with reading(workdir, debug.DUMPS) as folder:
    metrics = loop.replay(
      config, loaded.policy, params.pop(), loaded.tokenizer, built.recipe, built.task, folder, step,
      learn_only=learn_only, rewards=built.rewards, models=built.models, placement=built.placement,
    )  # fmt: skip
  for name, value in sorted(metrics.items()):
    print(f"{name:<32}{value:>14.6g}")
  same = metrics["same_batch"] and metrics["same_update"]
  print(f"step {step}: {'the same' if same else 'NOT the same'} batch and update, bit for bit")
  return same


class _Built(NamedTuple):
  """What a config names."""

  recipe: Any
  task: Any
  rewards: Any
  loaded: list[Any]  # [models.load.Loaded]; emptied when training begins
  models: dict[str, Any]  # other policies
  needs_start: bool  # the reference is the policy as it was before the first step
  placement: Any


def _build(config) -> _Built:
  from launch import dry_run, meshes
  from rlvr_jax.models.load import load_policy
  from rlvr_jax.recipes.compose import compose, rewarded
  from rlvr_jax.reward import REWARDS
  from rlvr_jax.tasks import TASKS
  from rlvr_jax.train.annotate import Model
  from rlvr_jax.train.rewards import reward_functions

  placed = meshes.place(config.mesh, config.rollout_devices)
  recipe = compose(config.recipe, config.recipe_args, config.slots, kl_coef=config.kl_coef)
  if config.debug == "mock":
    mock = {"mock": "rlvr_jax.train.debug:mock_rollout"}
    recipe = recipe._replace(rollout=table.build("rollout", "mock", mock, config.debug_args))
  rewards = reward_functions(config.rewards, REWARDS)
  recipe = rewarded(recipe, {f.name: f.weight for f in rewards})
  task = table.build("task", config.task, TASKS, config.task_args)
  dry_run.rehearse(config, recipe, task, rewards)
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
  print(f"loaded {config.policy} in {time.perf_counter() - began:.1f} s")
  models = {name: Model(*others.pop(name)[:2]) for name in list(others)}  # handed over
  needs_start = "reference" in recipe.annotate and "reference" not in models
  return _Built(recipe, task, rewards, [loaded], models, needs_start, placed.placement)


def _begin(config, built: _Built, *, warm: bool):
  """([parameters], what else was loaded): handed over, so that nothing keeps a second copy alive."""
  loaded = built.loaded.pop()
  if config.warm_start_steps and warm:
    loaded = loaded._replace(params=_warm_start(config, loaded, built.recipe, built.task))
  return [loaded.params], loaded._replace(params=None)


def _export(loaded, params, folder):
  from rlvr_jax.core import hosts
  from rlvr_jax.models.load import export_policy

  params = hosts.host(params)
  if hosts.is_first():
    export_policy(folder, loaded._replace(params=params))
  print(f"exported: {folder}")


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


def _command(config, workdir):
  """What the flags ask for."""
  if _DRY_RUN.value:
    from launch import dry_run

    print(dry_run.describe(config))
  elif _DEBUG.value in ("replay", "train"):
    if _DUMP.value is None:
      raise ValueError(f"--debug={_DEBUG.value} needs --dump=STEP, a step that a run has kept")
    if not replay(config, workdir, _DUMP.value, learn_only=_DEBUG.value == "train"):
      sys.exit(1)
  else:
    profile, dump = profile_steps(), _DUMP.value
    for flag, step in (("profile", profile.start), ("dump", dump or 0)):
      if step >= config.steps:
        raise ValueError(f"--{flag}: there is no step {step}, the last one is {config.steps - 1}")
    run(config, workdir, profile=profile, dump=dump)


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  import jax

  from rlvr_jax.train import loop

  logging.set_verbosity(logging.WARNING)  # orbax narrates every checkpoint
  if not _WORKDIR.value and not _DRY_RUN.value:
    raise app.UsageError("--workdir=FOLDER is needed: where the run is kept, and resumed from")
  try:
    connect()
    use_compile_cache()
    _command(build_config(), _WORKDIR.value)
  except loop.Interrupted as stopped:
    print(stopped)
    sys.exit(130)
  except (ValueError, ImportError, OSError, loop.NotFinite) as error:
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
  sys.modules["launch.train"] = sys.modules[
    "__main__"
  ]  # else launch.memory defines the flags again
  app.run(main)
