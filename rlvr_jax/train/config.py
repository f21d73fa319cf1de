"""The configuration of a run: its fields, reading and overriding it, and claiming a workdir for it.

A config file is Python with `get_config() -> Config`. A Config is checked when it is made, so an
invalid one never gets as far as a compiler.
"""

import ast
import contextlib
import copy
import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import math
import os
import typing
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from rlvr_jax.core.table import unknown

# What a workdir holds.
CONFIG_FILE = "config.json"
METRICS_FILE = "metrics.jsonl"
CHECKPOINTS = "checkpoints"
DTYPES = ("float32", "bfloat16")
CACHE_DTYPES = ("float32", "bfloat16", "int8")
LONG_PROMPTS = ("raise", "drop")
DEBUG = ("rollout", "mock")
SCHEDULES = ("constant", "cosine", "linear")
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
QUANTS = ("none", "int8", "int4")
REMAT = ("none", "dots", "full")
LOGGERS = ("jsonl", "tensorboard", "wandb")

# Fields that may differ when a run is resumed: they change how far it goes and what it records, not
# what it computes on the way. (`steps` does when the schedule decays towards the last step.)
RESUMABLE = (
  "steps",
  "max_generated_tokens",
  "eval_every",
  "sample_every",
  "record_completions",
  "record_mib",
  "alarms",
  "checkpoint_every",
  "checkpoint_minutes",
  "keep_checkpoints",
  "keep_best",
  "loggers",
  "export",
  "prompt_cache",
  "mesh",  # sums round otherwise on another number of devices; the run is the same
  "rollout_devices",
)


@dataclasses.dataclass(frozen=True)
class Config:
  """All that decides a run. Raises ValueError when a field is out of its range."""

  # What is trained, on what, how.
  policy: str = "tiny"  # name of a policy in the models' table, or a path to its weights
  dtype: str = "float32"  # of activations: float32 or bfloat16
  param_dtype: str = "float32"  # float32, or bfloat16 with float32 master weights in the optimizer
  task: str = "arithmetic"  # name in tasks.TASKS
  task_args: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the task's factory
  recipe: str = "grpo"  # name in recipes.RECIPES
  recipe_args: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the recipe's factory
  slots: dict[str, Any] = dataclasses.field(default_factory=dict)  # slot -> what fills it instead
  kl_coef: float = 0.0  # of the KL to the model "reference" in the loss, >= 0
  # Other policies: name -> path. The reference is the policy at the start, unless it is given.
  models: dict[str, Any] = dataclasses.field(default_factory=dict)  # none
  # Reward functions: "module:function" or a name in reward.REWARDS -> weight, or {"weight": weight, and
  # arguments of the function}. Those of weight 0 are looked at, and no more.
  rewards: dict[str, Any] = dataclasses.field(default_factory=dict)  # none: the verdict rules
  steps: int = 100  # optimizer batches in the run, >= 1
  max_generated_tokens: int = 0  # the run ends after the step that reaches them, >= 0; 0: no limit

  # Rollouts.
  prompts: int = 8  # prompts in a round, >= 1
  budget: int = 64  # rollout rows in a step, >= prompts
  # A round chooses among the next prompts of a shuffled stream, or among all that the epoch has left.
  candidates: int = 0  # of the stream, >= prompts; 0: no stream
  source_weights: dict[str, Any] = dataclasses.field(default_factory=dict)  # shares of the stream
  max_prompt_length: int = 256  # tokens, >= 1
  long_prompts: str = "raise"  # what a longer prompt does: raise, or drop it from the table
  max_new_tokens: int = 16  # tokens of a response, >= 1
  stop_strings: tuple[str, ...] = ()  # a response ends with the token that completes one of them
  cache_dtype: str = ""  # of keys and values in decoding: float32, bfloat16 or int8; "": as dtype
  prompt_cache: str = ""  # folder for tokenised prompts, so that a later start reads them; "": none

  # The update.
  learning_rate: float = 2e-5  # peak, > 0
  warmup_steps: int = 0  # steps of linear warm-up, >= 0
  schedule: str = "constant"  # after the warm-up: constant, or cosine or linear down to 0
  optimizer: str = "adamw"  # name in train.optimizers.OPTIMIZERS
  optimizer_args: dict[str, Any] = dataclasses.field(default_factory=dict)  # of its factory
  weight_decay: float = 0.0  # decoupled, >= 0
  adam_b1: float = 0.9  # of adamw: decay of the first moment, in [0, 1)
  adam_b2: float = 0.99  # of adamw: decay of the second moment, in [0, 1); a memory of 100 steps
  adam_eps: float = 1e-8  # of adamw: added to the root of the second moment, > 0
  max_grad_norm: float = 1.0  # gradients of a larger global norm are scaled down to it, > 0
  max_bad_steps: int = 3  # stop after this many updates in a row that are not finite, >= 1

  # LoRA: only low-rank corrections to the matrices of the layers are trained and saved.
  lora_rank: int = 0  # >= 0; 0 trains everything
  lora_alpha: float = 32.0  # corrections are scaled by alpha / rank, > 0
  lora_targets: tuple[str, ...] = TARGETS  # any of q, k, v, o, gate, up, down

  # Memory and speed.
  rollout_quant: str = "none"  # weights that are rolled out: none, int8 or int4; see models.quant
  bin_tokens: int = 0  # tokens of a packed bin of the learner; 0: chosen from the row length
  read_tokens: int = 256  # tokens of a bin whose logits exist at a time, >= 1
  offload_models: bool = False  # other policies than the one trained wait in host memory
  remat: str = "none"  # what the backward pass makes again: none, dots (all but products), full
  mesh: str = "cpu1"  # name in launch.meshes
  rollout_devices: int = 0  # more devices, which make the rollouts; 0: those of the mesh do, >= 0

  # Supervised steps on reference answers before the first rollout.
  warm_start_steps: int = 0  # >= 0
  warm_start_learning_rate: float = 1e-3  # > 0
  warm_start_wrong: float = 0.5  # share of wrong answers among the references, in [0, 1]

  # Verification.
  verifier_workers: int = 2  # processes, >= 1
  verifier_seconds: float = 5.0  # an answer that takes longer to judge is wrong, > 0

  # Evaluation and records. Where it says "every": in steps, 0 for never.
  eval_every: int = 20  # also before the first step and after the last
  eval_prompts: int = 256  # prompts of each held-out set, at most, >= 1
  eval_samples: int = 1  # responses to each prompt, >= 1
  eval_temperature: float = 1.0  # >= 0; 0: greedy
  sample_every: int = 10  # print some responses
  num_samples_shown: int = 2  # how many, >= 0
  record_completions: int = 8  # of each step, kept in completions.jsonl, >= 0
  record_mib: float = 64.0  # of completions.jsonl, and of rollouts.jsonl, > 0; full, they thin out
  # warning -> threshold; None: off
  alarms: dict[str, Any] = dataclasses.field(default_factory=dict)  # see train.health
  checkpoint_every: int = 50  # also after the last step
  checkpoint_minutes: float = 0.0  # also when so many have passed, >= 0; 0: never
  keep_checkpoints: int = 2  # the newest are kept, >= 1
  keep_best: str = ""  # also the one whose eval/... metric of this name is highest; "": none
  export: bool = True  # write the trained model as safetensors after the last step
  loggers: tuple[str, ...] = ("jsonl", "tensorboard")  # any of jsonl, tensorboard, wandb
  seed: int = 0  # of everything random, in [0, 2**32)

  # Runs that look for a fault: "rollout" generates and learns nothing, "mock" learns from random tokens.
  debug: str = ""  # one of them, or empty for a run that means it
  debug_args: dict[str, Any] = dataclasses.field(default_factory=dict)  # of debug.mock_rollout

  def __post_init__(self):
    validate(self)
    # Equal values get one form, the one JSON gives back: 1.0 for 1, lists for tuples in *_args.
    for name, kind in FIELDS.items():
      value = getattr(self, name)
      if kind is float:
        object.__setattr__(self, name, float(value))
      elif typing.get_origin(kind) is dict:
        object.__setattr__(self, name, json.loads(json.dumps(value)))


FIELDS: dict[str, Any] = typing.get_type_hints(Config)  # name -> type, in order


def validate(config: Config) -> None:
  """Raises ValueError naming the first field whose type or range is wrong, and what is allowed."""
  for name, kind in FIELDS.items():
    _check_type(name, getattr(config, name), kind)

  def check(names: str, allowed: str, ok: Callable[[Any], bool]):
    for name in names.split():
      value = getattr(config, name)
      if not ok(value):
        raise ValueError(f"{name} = {value!r} is out of range; it must be {allowed}")

  check("policy task recipe optimizer mesh", "a name", bool)
  check("dtype param_dtype", f"one of {', '.join(DTYPES)}", lambda v: v in DTYPES)
  check(
    "cache_dtype", f"one of {', '.join(CACHE_DTYPES)}, or empty", lambda v: v in ("", *CACHE_DTYPES)
  )
  check("stop_strings", "strings that are not empty", all)
  check("long_prompts", f"one of {', '.join(LONG_PROMPTS)}", lambda v: v in LONG_PROMPTS)
  check("remat", f"one of {', '.join(REMAT)}", lambda v: v in REMAT)
  check("debug", f"one of {', '.join(DEBUG)}, or empty", lambda v: v in ("", *DEBUG))
  check("debug_args", "empty without debug = 'mock'", lambda v: not v or config.debug == "mock")
  check("keep_best", "empty, or an eval/... metric", lambda v: not v or v.startswith("eval/"))
  check("schedule", f"one of {', '.join(SCHEDULES)}", lambda v: v in SCHEDULES)
  check(
    "loggers",
    f"different names among {', '.join(LOGGERS)}",
    lambda v: set(v) <= set(LOGGERS) and len(set(v)) == len(v),
  )
  check(
    "steps prompts max_prompt_length max_new_tokens max_bad_steps read_tokens verifier_workers eval_prompts"
    " eval_samples keep_checkpoints",
    ">= 1",
    lambda v: v >= 1,
  )
  check(
    "warmup_steps weight_decay bin_tokens warm_start_steps eval_every eval_temperature"
    " sample_every num_samples_shown record_completions checkpoint_every checkpoint_minutes"
    " max_generated_tokens rollout_devices kl_coef",
    ">= 0",
    lambda v: v >= 0,
  )
  check(
    "learning_rate adam_eps max_grad_norm warm_start_learning_rate verifier_seconds record_mib",
    "> 0",
    lambda v: v > 0,
  )
  check("rollout_quant", f"one of {', '.join(QUANTS)}", lambda v: v in QUANTS)
  check("lora_rank", ">= 0", lambda v: v >= 0)
  check("lora_alpha", "> 0", lambda v: v > 0)
  check(
    "lora_targets",
    f"different names among {', '.join(TARGETS)}, at least one",
    lambda v: v and set(v) <= set(TARGETS) and len(set(v)) == len(v),
  )
  if config.lora_rank:  # what is not trained must be found again when the run is resumed
    check(
      "warm_start_steps",
      "0 with lora_rank: warm-start, export, then train the export",
      lambda v: not v,
    )
  check("adam_b1 adam_b2", "in [0, 1)", lambda v: 0 <= v < 1)
  check("warm_start_wrong", "in [0, 1]", lambda v: 0 <= v <= 1)
  check("seed", "in [0, 2**32)", lambda v: 0 <= v < 2**32)
  check(
    "candidates", f"0, or >= prompts = {config.prompts}", lambda v: v == 0 or v >= config.prompts
  )
  check(
    "source_weights",
    "source -> number > 0, and needs candidates",
    lambda v: not v or (config.candidates > 0 and all(_is_number(w) and w > 0 for w in v.values())),
  )
  check("budget", f">= prompts = {config.prompts}", lambda v: v >= config.prompts)
  check(
    "slots models", "names of text", lambda v: all(isinstance(x, str) and x for x in v.values())
  )
  for name, value in config.rewards.items():
    weight = value.get("weight") if isinstance(value, dict) else value
    if not _is_number(weight):
      raise ValueError(
        f"rewards = {config.rewards!r}: the value of {name!r} must be a weight, or "
        '{"weight": a number, and arguments of the function}'
      )
  if config.schedule != "constant":
    check(
      "warmup_steps",
      f"< steps = {config.steps} with schedule = {config.schedule!r}",
      lambda v: v < config.steps,
    )


def _is_number(value: Any) -> bool:
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def _check_type(name: str, value: Any, kind: Any) -> None:
  origin = typing.get_origin(kind)
  if kind is float:
    ok = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
  elif kind is int:
    ok = isinstance(value, int) and not isinstance(value, bool)
  elif origin is tuple:
    ok = isinstance(value, tuple) and all(isinstance(v, str) for v in value)
  elif origin is dict:
    ok = isinstance(value, dict) and all(isinstance(k, str) for k in value) and _is_json(value)
  else:
    ok = isinstance(value, kind)
  if not ok:
    raise ValueError(f"{name} = {value!r} must be {_type_name(kind)}")


def _is_json(value: Any) -> bool:
  try:
    json.dumps(value, allow_nan=False)
  except (TypeError, ValueError):
    return False
  return True


def _type_name(kind: Any) -> str:
  names = {float: "a finite number", int: "a whole number", bool: "true or false", str: "a string"}
  if kind in names:
    return names[kind]
  if typing.get_origin(kind) is tuple:
    return "a tuple of strings"
  return "a dict of names to JSON values (numbers, strings, booleans, None, lists, dicts)"


# --------------------------------------------------------------------------------------------------
# Reading and overriding


def load_config(path: str | os.PathLike) -> Config:
  """The config in the file at `path`: the config.json of a workdir, or Python with get_config().

  Raises:
    ValueError: if there is no such file, no get_config in it, or what it holds is no config.
  """
  path = Path(path)
  if path.suffix == ".json" and path.is_file():
    try:
      return from_json(path.read_text())
    except ValueError as error:
      raise ValueError(f"{path}: {error}") from error
  config = call_file(path, "get_config")
  if not isinstance(config, Config):
    raise ValueError(f"get_config() of {path} returned a {type(config).__name__}, not a Config")
  return config


def call_file(path: str | os.PathLike, name: str) -> Any:
  """What the function `name` of the Python file at `path` returns, called without arguments.

  Raises:
    ValueError: if there is no such file, or no such function in it.
  """
  path = Path(path)
  if not path.is_file():
    raise ValueError(f"no config file at {path}; give the path of a config.py")
  spec = importlib.util.spec_from_file_location(f"{path.parent.name}_config", path)
  if spec is None or spec.loader is None:
    raise ValueError(f"{path} is not a Python file; a config file ends in .py or .json")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  function = getattr(module, name, None)
  if not callable(function):
    raise ValueError(f"{path} has no function {name}()")
  return function()


def apply_overrides(config: Config, overrides: Iterable[str]) -> Config:
  """A copy of `config` with each "key=value" applied, left to right.

  "recipe.<slot>=..." fills a slot of the recipe: it is "slots.<slot>=...".

  A key is a field, or a path into a dict or list below one: "recipe_args.clip=0.1",
  "task_args.mixture.0.weight=2". The last name of a path may be new in a dict, since only the
  factory that takes the arguments knows them all. Values are read by the type of the field; below a
  field they are read as Python literals (true, false and None included), anything else is a string,
  and what replaces a string stays a string.

  Raises:
    ValueError: for an unknown key (with the close ones), a value of the wrong type or range.
  """
  values = {name: copy.deepcopy(getattr(config, name)) for name in FIELDS}
  for override in overrides:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals:
      raise ValueError(f"override {override!r} is not of the form key=value")
    field, *path = key.split(".")
    field = "slots" if field == "recipe" and path else field
    if field not in FIELDS:
      raise unknown("config key", field, FIELDS)
    if not path:
      values[field] = _parse_field(field, text)
    else:
      _assign(values[field], field, path, text)
  return Config(**values)


def _parse_field(field: str, text: str) -> Any:
  kind = FIELDS[field]
  value = _literal(text)
  if kind is str:
    return value if isinstance(value, str) else text
  if kind is bool:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    value = words.get(text.strip().lower(), value)
  elif kind is float and isinstance(value, int) and not isinstance(value, bool):
    value = float(value)
  elif typing.get_origin(kind) is tuple:
    if isinstance(value, str):
      value = [word.strip() for word in value.split(",") if word.strip()]
    value = tuple(value) if isinstance(value, (list, tuple)) else value
  _check_type(field, value, kind)
  return value


def _literal(text: str) -> Any:
  """`text` as a Python literal; true and false in any case are words for one; else a string."""
  words = {"true": True, "false": False}
  if text.strip().lower() in words:
    return words[text.strip().lower()]
  try:
    return ast.literal_eval(text.strip())
  except (ValueError, SyntaxError, TypeError):
    return text


def _assign(container: Any, where: str, path: Sequence[str], text: str) -> None:
  """Sets container[path[0]][path[1]]... from text, in place; `where` names container in errors."""
  for i, name in enumerate(path):
    last = i == len(path) - 1
    if isinstance(container, dict):
      if name not in container and not last:
        raise unknown(f"key of {where}", name, container)
      index: Any = name
    elif isinstance(container, list):
      if not name.isdigit() or int(name) >= len(container):
        raise ValueError(f"{where} is a list of {len(container)}; it has no index {name!r}")
      index = int(name)
    else:
      raise ValueError(f"{where} = {container!r} has no parts, so {name!r} cannot be set in it")
    if last:
      old = container.get(index) if isinstance(container, dict) else container[index]
      value = _literal(text)
      if isinstance(old, str) and not isinstance(value, str):
        value = text
      container[index] = value
    else:
      container, where = container[index], f"{where}.{name}"


# --------------------------------------------------------------------------------------------------
# Text, comparison and the workdir


def to_json(config: Config) -> str:
  """The config as indented JSON, fields in order."""
  return json.dumps({name: getattr(config, name) for name in FIELDS}, indent=2) + "\n"


def digest(config: Config) -> str:
  """Twelve hexadecimal digits that tell configs apart."""
  return hashlib.sha256(to_json(config).encode()).hexdigest()[:12]


def from_json(text: str) -> Config:
  """The config of `to_json`: from_json(to_json(config)) == config.

  Raises:
    ValueError: if it is no JSON object, has an unknown key, lacks one, or a value is invalid.
  """
  values = json.loads(text)
  if not isinstance(values, dict):
    raise ValueError("a config is a JSON object")
  for key in values:
    if key not in FIELDS:
      raise unknown("config key", key, FIELDS)
  absent = [name for name in FIELDS if name not in values]
  if absent:
    raise ValueError(f"the config lacks {', '.join(absent)}: another version of the code wrote it")
  for name, kind in FIELDS.items():  # JSON has no tuples
    if typing.get_origin(kind) is tuple and isinstance(values[name], list):
      values[name] = tuple(values[name])
  return Config(**values)


def difference(a: Config, b: Config) -> list[str]:
  """One 'key: old -> new' for each value that differs, with paths into dicts and lists."""
  old, new = (_flat(json.loads(to_json(config))) for config in (a, b))
  absent = "(absent)"
  return [
    f"{key}: {old.get(key, absent)} -> {new.get(key, absent)}"
    for key in {**old, **new}
    if old.get(key, absent) != new.get(key, absent)
  ]


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
  """path -> JSON text, for the leaves of nested dicts and lists; an empty one is a leaf."""
  if not isinstance(value, (dict, list)) or not value:
    return {prefix: json.dumps(value)}
  items = value.items() if isinstance(value, dict) else enumerate(value)
  flat = {}
  for key, item in items:
    flat.update(_flat(item, f"{prefix}.{key}" if prefix else str(key)))
  return flat


def claim_workdir(path: str | os.PathLike, config: Config) -> Path:
  """Makes `path` the workdir of `config`, or checks that it is.

  Writes config.json when there is none. When there is one and the run has begun (it has a checkpoint
  or a row of metrics), it is being resumed: the two must agree in all but RESUMABLE, whose new values
  are written. `steps` must agree too unless the schedule is constant, since the learning rate depends
  on it, and may not lie before the newest checkpoint.

  Returns:
    The path.

  Raises:
    ValueError: if the workdir belongs to another config, its config.json cannot be read, or it cannot
      be written.
  """
  path = Path(path)
  file = path / CONFIG_FILE
  reached = _reached(path)
  if reached is not None and config.steps < reached:
    raise ValueError(f"{path} has a checkpoint of step {reached}, past steps = {config.steps}")
  if file.exists() and (reached is not None or _rows_of(path)):
    try:
      old = from_json(file.read_text())
    except ValueError as error:
      raise ValueError(f"cannot read {file}: {error}; use another workdir") from error
    refuse_another(old, config, str(path))
  temporary = path / f"{CONFIG_FILE}.{os.getpid()}.tmp"
  try:
    path.mkdir(parents=True, exist_ok=True)
    temporary.write_text(to_json(config))
    temporary.replace(file)
  except OSError as error:
    raise ValueError(f"cannot write the workdir {path}: {error}") from error
  return path


def refuse_another(old: Config, new: Config, where: str) -> None:
  """Raises ValueError with the difference if a run of `old`, kept in `where`, cannot go on as `new`."""
  may_change = [f for f in RESUMABLE if f != "steps" or new.schedule == "constant"]
  changes = [d for d in difference(old, new) if _field_of(d) not in may_change]
  if changes:
    raise ValueError(
      f"{where} holds a run with another config:\n  "
      + "\n  ".join(changes)
      + "\nUse another workdir for a new run. To resume this one, give its own config"
      + f" (only {', '.join(may_change)} may change)."
    )


def _reached(workdir: Path) -> int | None:
  """Step of the newest checkpoint folder; None if there is none."""
  folder = workdir / CHECKPOINTS
  steps = [int(f.name) for f in folder.iterdir() if f.name.isdigit()] if folder.is_dir() else []
  return max(steps, default=None)


def _rows_of(workdir: Path) -> bool:
  """Whether there are metrics."""
  file = workdir / METRICS_FILE
  return file.exists() and file.stat().st_size > 0


class InUse(ValueError):
  """Another process holds the workdir."""


@contextlib.contextmanager
def hold_workdir(path: str | os.PathLike):
  """Holds the workdir for this process, to the end of the block or of the process, however it ends.

  Raises:
    InUse: if another process holds it.
    ValueError: if it cannot be written.
  """
  path = Path(path)
  try:
    path.mkdir(parents=True, exist_ok=True)
    file = open(path / ".lock", "a+")  # noqa: SIM115 (closed by the block below)
  except OSError as error:
    raise ValueError(f"cannot write the workdir {path}: {error}") from error
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
      file.seek(0)
      raise InUse(
        f"{path} is in use by process {file.read().strip() or '?'}; wait for it, or use another workdir"
      ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    yield


def _field_of(change: str) -> str:
  return change.partition(":")[0].partition(".")[0]
