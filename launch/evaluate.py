"""Evaluates a policy on the held-out prompts of a task.

python -m launch.evaluate --policy=runs/quickstart --samples=16
python -m launch.evaluate --policy=smollm2-135m --task=gsm8k --samples=16 --max_new_tokens=256
python -m launch.evaluate --compare=runs/a/evaluation --compare=runs/b/evaluation --plot=both.png
python -m launch.evaluate --policy=smollm2-135m --task=gsm8k --samples=8 --profile=runs/gsm8k.npz

A policy is a name, a folder of Hugging Face safetensors, a .gguf file, a hub id, the workdir of a run (its
newest checkpoint, or else its export), or a folder in a run's checkpoints. A run brings its own task,
lengths and temperature.

In --out: completions.jsonl (every completion with its verdict), evaluation.json (avg@n, pass@k and maj@k with
95 % bootstrap intervals over prompts; of all prompts, each source, each difficulty; lengths) and
pass_at_k.png. The same command writes the same files.

With --profile the TRAINING prompts are sampled instead, and how many of each prompt's completions were right
is all that is written: what the recipes pvpo and sgpo read as their `profile`. Give it the task, the lengths
and `long_prompts` of the run that will read it, so that its prompt table is the same.
"""

import dataclasses
import functools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags, logging

from rlvr_jax.core import table

_SHORT = {  # flag -> config key
  "task": "task",
  "samples": "eval_samples",
  "temperature": "eval_temperature",
  "prompts": "eval_prompts",
  "max_new_tokens": "max_new_tokens",
  "seed": "seed",
  "mesh": "mesh",
}


def define_flags():
  """Called when this is the command: other commands have flags of the same names."""
  flags.DEFINE_string("policy", None, "What to evaluate; see above.")
  flags.DEFINE_string("config", None, "Python file with get_config() -> Config; not with a run.")
  flags.DEFINE_multi_string("set", [], "key=value of the config, e.g. task_args.digits=2.")
  flags.DEFINE_string("task", None, "Name of the task; with its own arguments unset.")
  flags.DEFINE_string("samples", None, "Completions of each prompt.")
  flags.DEFINE_string("temperature", None, "Of sampling; 0 is greedy.")
  flags.DEFINE_string("prompts", None, "Prompts of each held-out set, at most, evenly spread.")
  flags.DEFINE_string("max_new_tokens", None, "Tokens of a completion, at most.")
  flags.DEFINE_string("seed", None, "Of the sampling and the intervals.")
  flags.DEFINE_string("mesh", None, "Name of a mesh, see launch.meshes.")
  flags.DEFINE_string(
    "out", None, "Folder to write. Default: WORKDIR/evaluation, or runs/evaluation."
  )
  flags.DEFINE_string("profile", None, "File to write the solve rates of the training prompts to.")
  flags.DEFINE_multi_string("compare", [], "Folder that an evaluation wrote; drawn, not run.")
  flags.DEFINE_string("plot", None, "Picture of pass@k. Default: pass_at_k.png in --out.")


class Run(NamedTuple):
  """A run to evaluate."""

  workdir: Path
  step: int | None  # of the checkpoint; None: the export


def find_run(name: str) -> Run | None:
  """The run that a path belongs to; None if it is no workdir and no checkpoint.

  Raises:
    ValueError: if a workdir has neither a checkpoint nor an export.
  """
  from rlvr_jax.train.config import CHECKPOINTS, CONFIG_FILE

  path = Path(name).expanduser().absolute()
  if path.parent.name == CHECKPOINTS and path.name.isdigit():
    if not path.is_dir():
      raise ValueError(f"there is no checkpoint {path}")
    return Run(path.parent.parent, int(path.name))
  if not (path / CONFIG_FILE).is_file() or not (path / CHECKPOINTS).is_dir():
    return None
  steps = [int(one.name) for one in (path / CHECKPOINTS).iterdir() if one.name.isdigit()]
  if not steps and not (path / "export").is_dir():
    raise ValueError(f"the run in {path} has no checkpoint and no export yet")
  return Run(path, max(steps, default=None))


def build_config(policy, run, config_file, overrides):
  """The config of an evaluation.

  Args:
    policy: what is asked for.
    run: find_run(policy).
    config_file: path, or None.
    overrides: "key=value", left to right.
  """
  from rlvr_jax.train import config as configs

  if run is not None:
    if config_file:
      raise ValueError(f"{policy} brings the config of its run; --config is for other policies")
    config = configs.from_json((run.workdir / configs.CONFIG_FILE).read_text())
  else:
    base = configs.Config(max_prompt_length=1024, max_new_tokens=256)
    config = configs.load_config(config_file) if config_file else base
    config = configs.apply_overrides(config, [f"policy={policy}"])
  tasks = [one for one in overrides if one.startswith("task=")]
  if tasks and tasks[-1] != f"task={config.task}":
    overrides = ["task_args={}", *overrides]  # those of another task
  return configs.apply_overrides(config, overrides)


def open_policy(config, run, tokenizer, place):
  """models.load.LoadedPolicy of a config's policy, or of what its run made of it."""
  from rlvr_jax.models.load import load_policy
  from rlvr_jax.train.forms import make_forms

  load = functools.partial(
    load_policy,
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    cache_dtype=config.cache_dtype or None,
    seed=config.seed,
    tokenizer=tokenizer,
    place=place,
  )
  if run is None:
    return load(config.policy)
  if run.step is None:
    return load(str(run.workdir / "export"))
  loaded = load(config.policy)
  forms = make_forms(config, loaded.policy, loaded.params)
  return loaded._replace(params=forms.merged(restore_params(run, forms.trained, forms.frozen)))


def restore_params(run, like, frozen=None):
  """The parameters of a checkpoint, placed as `like` is.

  Args:
    run: find_run.
    like: parameters of the same structure.
    frozen: those that the run did not train, if any: only looked at.

  Raises:
    ValueError: if they have another structure, shape or type, or go with other frozen ones.
  """
  import jax
  import numpy as np
  import orbax.checkpoint as ocp

  from rlvr_jax.models.lora import fingerprint
  from rlvr_jax.train.config import CHECKPOINTS

  options = ocp.CheckpointManagerOptions(read_only=True)  # the run may be going on
  handler = ocp.PyTreeCheckpointHandler()
  path = run.workdir / CHECKPOINTS
  with ocp.CheckpointManager(path, options=options, item_handlers=handler) as manager:
    metadata: Any = manager.item_metadata(run.step)
    shapes = lambda tree: {
      jax.tree_util.keystr(where, simple=True, separator="/"): (tuple(x.shape), np.dtype(x.dtype))
      for where, x in jax.tree_util.tree_leaves_with_path(
        tree, is_leaf=lambda x: hasattr(x, "dtype")
      )
    }
    saved, wanted = shapes(metadata["learner"]["params"]), shapes(like)
    for name in sorted({*saved, *wanted}):
      if saved.get(name) != wanted.get(name):
        raise ValueError(
          f"checkpoint {run.step} of {run.workdir}: {name} is {saved.get(name)}, the policy has "
          f"{wanted.get(name)}"
        )
    target = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), like
    )
    item: Any = {"learner": {"params": target}}
    if frozen:
      item["frozen"] = np.asarray(fingerprint(frozen))
    how = ocp.checkpoint_utils.construct_restore_args(item)
    args = ocp.args.PyTreeRestore(item=item, restore_args=how, partial_restore=True)
    restored: Any = manager.restore(run.step, args=args)
  if frozen and not np.array_equal(restored["frozen"], item["frozen"]):
    raise ValueError(
      f"checkpoint {run.step} of {run.workdir} was trained on other frozen weights than the policy has; "
      "give the policy and seed of the run"
    )
  return restored["learner"]["params"]


def evaluate(config, out, *, run=None, label=None):
  """Evaluates, prints tables, writes completions and report into the folder `out`.

  Args:
    config: of the evaluation, see build_config.
    run: the run whose parameters are wanted, else those of config.policy.
    label: what the report calls the policy.

  Returns:
    The report.
  """
  from launch import meshes
  from rlvr_jax.tasks import TASKS
  from rlvr_jax.tasks.pool import VerifierPool
  from rlvr_jax.train import evaluate as lib
  from rlvr_jax.train import mirror

  out = mirror.local(out)
  placed = meshes.place(config.mesh)
  task = table.build("task", config.task, TASKS, config.task_args)
  if not task.evals:
    raise ValueError(f"task {config.task!r} has no held-out prompts; give it some (eval_size)")
  loaded = open_policy(config, run, task.tokenizer, placed.leaf)
  found: dict[str, Any] = {
    "policy": label or config.policy,
    "step": run.step if run else None,
    "task": config.task,
    "task_args": config.task_args,
    "samples": config.eval_samples,
    "temperature": config.eval_temperature,
    "max_new_tokens": config.max_new_tokens,
    "seed": config.seed,
    "interval": lib.LEVEL,
    "resamples": lib.RESAMPLES,
    "sets": {},
  }
  try:
    out.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f"cannot write {out}: {error}") from error
  temporary = out / f"{lib.COMPLETIONS_FILE}.tmp"  # the old files stay until the new ones are whole
  with (
    VerifierPool(task.verify, config.verifier_workers, config.verifier_seconds) as pool,
    open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file,
  ):
    for number, (name, examples) in enumerate(task.evals.items()):
      prompts = _prompts(loaded.tokenizer, task, name, examples, config)
      responses = _respond(config, loaded, placed, prompts, pool, number, file)
      found["sets"][name] = lib.report(responses, prompts.examples, seed=config.seed)
      sampled = f"{config.eval_samples} samples at temperature {config.eval_temperature:g}"
      print(f"\n{name}: {len(responses)} of {len(examples)} prompts, {sampled}\n")
      print(lib.text_tables(name, found["sets"][name]))
      cut = found["sets"][name]["all"]["truncated_frac"]
      if cut > 0.1:
        print(f"\n{cut:.0%} were cut off at {config.max_new_tokens} tokens: see --max_new_tokens")
    print(f"\nverifier: {dict(pool.counters)}")
  temporary.replace(out / lib.COMPLETIONS_FILE)
  text = json.dumps(found, indent=2) + "\n"
  (out / f"{lib.REPORT_FILE}.tmp").write_text(text)
  (out / f"{lib.REPORT_FILE}.tmp").replace(out / lib.REPORT_FILE)
  print(f"written: {out / lib.COMPLETIONS_FILE} and {out / lib.REPORT_FILE}")
  return found


def profile(config, path, *, run=None) -> None:
  """Writes how many of each training prompt's completions are right, see core.profile.

  Args:
    config: of the evaluation, see build_config; `eval_prompts` is not heeded.
    run: the run whose parameters are wanted, else those of config.policy.
  """
  import numpy as np

  from launch import meshes
  from rlvr_jax.core import profile as profiles
  from rlvr_jax.tasks import TASKS
  from rlvr_jax.tasks.pool import VerifierPool

  try:  # before the work is done, not after it
    Path(path).parent.mkdir(parents=True, exist_ok=True)
  except OSError as error:
    raise ValueError(f"cannot write {path}: {error}") from error
  placed = meshes.place(config.mesh)
  task = table.build("task", config.task, TASKS, config.task_args)
  config = dataclasses.replace(config, eval_prompts=max(len(task.train), 1))
  loaded = open_policy(config, run, task.tokenizer, placed.leaf)
  prompts = _prompts(loaded.tokenizer, task, "train", task.train, config)
  with VerifierPool(task.verify, config.verifier_workers, config.verifier_seconds) as pool:
    responses = _respond(config, loaded, placed, prompts, pool, 0)
  successes = np.array([sum(one.verdict.correct for one in row) for row in responses])
  trials = np.array([len(row) for row in responses])
  profiles.save(path, successes, trials)
  rate = successes / trials
  print(
    f"{len(rate)} prompts, {config.eval_samples} samples each: {(rate == 0).mean():.0%} never solved, "
    f"{(rate == 1).mean():.0%} always, {rate.mean():.3f} in the mean\nwritten: {path}"
  )


class _Prompts(NamedTuple):
  name: str
  table: Any  # core.types.PromptTable
  examples: list


def _prompts(tokenizer, task, name, examples, config):
  from rlvr_jax.tasks.table import tokenise
  from rlvr_jax.train.parts import evenly

  some = evenly(examples, config.eval_prompts)
  prompts, kept, dropped = tokenise(
    tokenizer,
    some,
    max_length=config.max_prompt_length,
    sources=task.sources,
    long=config.long_prompts,
  )
  if dropped:
    print(f"{name}: dropped {dropped} prompts of more than {config.max_prompt_length} tokens")
  return _Prompts(name, prompts, [some[i] for i in kept])


def _respond(config, loaded, placed, prompts, pool, number, file=None):
  """The responses to one set, written to a file, if there is one, as they come."""
  from rlvr_jax.train import evaluate as lib

  respond = lib.make_respond(
    loaded.policy,
    prompts.table,
    lambda index, texts: pool([prompts.examples[i] for i in index], texts),
    loaded.tokenizer.decode,
    samples=config.eval_samples,
    rows=max(config.budget, config.eval_samples),
    max_new_tokens=config.max_new_tokens,
    temperature=config.eval_temperature,
    eos_ids=loaded.tokenizer.eos_ids,
    seed=config.seed + number,
    stops=lib.stop_rules(config.stop_strings, loaded.tokenizer),
    constrain=placed.placement.rows,
  )
  responses, told = [], time.monotonic()
  for example, row in zip(prompts.examples, respond(loaded.params), strict=True):
    responses.append(row)
    if file is not None:
      for one in lib.records(prompts.name, row, example):
        file.write(json.dumps(one, ensure_ascii=False) + "\n")
    if time.monotonic() - told > 30:
      print(f"{prompts.name}: {len(responses)} of {len(prompts.examples)} prompts", flush=True)
      told = time.monotonic()
  return responses


def read_report(folder):
  """The report that an evaluation left in a folder.

  Raises:
    ValueError: if there is none.
  """
  from rlvr_jax.train.evaluate import REPORT_FILE

  path = Path(folder) / REPORT_FILE
  try:
    return json.loads(path.read_text())
  except (OSError, json.JSONDecodeError) as error:
    raise ValueError(f"{folder} holds no evaluation: {error}") from error


def main(argv):
  logging.set_verbosity(logging.ERROR)  # orbax narrates
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  given = flags.FLAGS
  if given.policy is None and (given.profile or not given.compare):
    raise app.UsageError("--policy=... is needed, or --compare=FOLDER")
  useless = [name for name in ("prompts", "out", "compare", "plot") if given[name].value]
  if given.profile and useless:
    raise app.UsageError(f"--profile takes all training prompts: --{useless[0]} has no place there")
  from rlvr_jax.train import plots
  from rlvr_jax.train.evaluate import PLOT_FILE

  try:
    reports = {folder: read_report(folder) for folder in given.compare}
    picture = given.plot
    if given.policy is not None:
      run = find_run(given.policy)
      short = [f"{key}={given[f].value}" for f, key in _SHORT.items() if given[f].value is not None]
      config = build_config(given.policy, run, given.config, [*short, *(given["set"].value or [])])
      if given.profile:
        profile(config, given.profile, run=run)
        return
      out = given.out or (run.workdir / "evaluation" if run else "runs/evaluation")
      reports[given.policy] = evaluate(config, out, run=run, label=given.policy)
      picture = picture or Path(out) / PLOT_FILE
    print(f"pass@k: {plots.pass_at_k(reports, picture or PLOT_FILE)}")
  except KeyboardInterrupt:
    print("stopped; nothing that an evaluation had written before is changed")
    sys.exit(130)
  except (ValueError, ImportError) as error:
    if os.environ.get("RLVR_TRACEBACK"):
      raise
    sys.exit(f"error: {error}")


if __name__ == "__main__":
  define_flags()
  app.run(main)
