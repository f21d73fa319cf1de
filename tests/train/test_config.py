"""Config: checks, overrides, JSON, and who may use a workdir."""

import dataclasses
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_jax.train.config import (
  FIELDS,
  RESUMABLE,
  Config,
  apply_overrides,
  claim_workdir,
  difference,
  digest,
  from_json,
  hold_workdir,
  load_config,
  to_json,
)


@pytest.mark.parametrize(
  ("field", "value", "allowed"),
  [
    ("steps", 0, ">= 1"),
    ("budget", 7, ">= prompts = 8"),
    ("learning_rate", 0.0, "> 0"),
    ("warm_start_wrong", -0.1, r"\[0, 1\]"),
    ("warm_start_wrong", 1.5, r"\[0, 1\]"),
    ("adam_b2", 1.0, r"\[0, 1\)"),
    ("learning_rate", float("nan"), "a finite number"),
    ("learning_rate", -1e-5, "> 0"),
    ("eval_temperature", -0.1, ">= 0"),
    ("dtype", "float8", "float32, bfloat16"),
    ("schedule", "cosin", "constant, cosine, linear"),
    ("long_prompts", "cut", "raise, drop"),
    ("loggers", ("jsonl", "jsonl"), "different names"),
    ("loggers", ("csv",), "different names"),
    ("loggers", "jsonl", "tuple of strings"),
    ("warm_start_wrong", 1.5, r"\[0, 1\]"),
    ("seed", 2**32, r"2\*\*32"),
    ("policy", "", "a name"),
    ("steps", 2.0, "a whole number"),
    ("steps", True, "a whole number"),
    ("export", 1, "true or false"),
    ("task_args", {"f": print}, "JSON values"),
    ("task_args", {1: 2}, "dict of names"),
    ("rewards", {"format": "high"}, 'a weight, or {"weight": a number'),
    ("rewards", {"format": True}, "a weight"),
    ("rewards", {"length": {"longest": 5}}, "a weight"),
    ("rewards", {"format": float("inf")}, "JSON values"),
  ],
)
def test_a_bad_field_is_named_with_its_value_and_range(field, value, allowed):
  with pytest.raises(ValueError, match=allowed) as error:
    Config(**{field: value})
  assert field in str(error.value)
  assert repr(value) in str(error.value)


@pytest.mark.parametrize(
  "given",
  [
    {"learning_rate": 1e-9},
    {"warm_start_wrong": 1.0},
    {"eval_temperature": 0},
    {"budget": 8},
    {"schedule": "cosine", "warmup_steps": 99},
    {"loggers": ()},
  ],
)
def test_the_ends_of_ranges_are_allowed(given):
  Config(**given)


def test_decay_needs_steps_after_the_warm_up():
  with pytest.raises(ValueError, match=r"warmup_steps = 100 .* < steps = 100"):
    Config(schedule="linear", warmup_steps=100)
  Config(schedule="constant", warmup_steps=100)


def test_every_field_says_what_it_is():
  declared = [
    line
    for line in inspect.getsource(Config).splitlines()
    if line.strip().partition(":")[0] in FIELDS
  ]
  assert len(declared) == len(FIELDS)
  assert all("  # " in line for line in declared)


def test_every_field_is_read_somewhere():
  root = Path(__file__).parents[2]
  files = [*(root / "rlvr_jax" / "train").glob("*.py"), *(root / "launch").glob("*.py")]
  source = "".join(file.read_text() for file in files if file.name != "config.py")
  unread = [field for field in FIELDS if not re.search(rf"\bconfig\.{field}\b", source)]
  assert not unread


def test_overrides_are_read_by_the_type_of_the_field():
  config = apply_overrides(
    Config(task_args={"mixture": ({"weight": 1, "name": "add"}, {"weight": 3}), "show": True}),
    [
      "steps=1_000",
      "learning_rate=1",
      "policy=7",
      "export=False",
      "loggers=jsonl, wandb",
      "recipe_args.clip=0.1",
      "recipe_args.bounds=[0.2, 0.28]",
      "recipe_args.length_penalty=none",
      "task_args.mixture.0.weight=2",
      "task_args.mixture.0.name=12",
      "task_args.show=false",
      "steps=3",
    ],
  )
  assert config.steps == 3
  assert config.learning_rate == 1.0 and isinstance(config.learning_rate, float)
  assert config.policy == "7"
  assert config.export is False
  assert config.loggers == ("jsonl", "wandb")
  assert config.recipe_args == {"clip": 0.1, "bounds": [0.2, 0.28], "length_penalty": "none"}
  assert config.task_args == {
    "mixture": [{"weight": 2, "name": "12"}, {"weight": 3}],
    "show": False,
  }


def test_overrides_are_checked_together():
  """prompts=100 alone would break budget >= prompts."""
  config = apply_overrides(Config(), ["prompts=100", "budget=800"])
  assert (config.prompts, config.budget) == (100, 800)


def test_overrides_leave_the_original_alone():
  config = Config(recipe_args={"knobs": {"a": 1}})
  apply_overrides(config, ["recipe_args.knobs.a=2"])
  assert config.recipe_args == {"knobs": {"a": 1}}


@pytest.mark.parametrize(
  ("override", "message"),
  [
    ("steps=2.5", "steps = 2.5 must be a whole number"),
    ("steps=many", "steps = 'many' must be a whole number"),
    ("learning_rate=fast", "learning_rate = 'fast' must be a finite number"),
    ("export=2", "export = 2 must be true or false"),
    ("loggers=3", "must be a tuple of strings"),
    ("learning_rat=1", "did you mean learning_rate"),
    ("steps", "not of the form key=value"),
    ("steps.a=1", "steps = 100 has no parts"),
    ("task_args.mixtur.0=1", "did you mean mixture"),
    ("task_args.mixture.1=1", "list of 1; it has no index '1'"),
    ("task_args.mixture.0.weight.x=1", "task_args.mixture.0.weight = 1 has no parts"),
    ("task_args.f={1, 2}", "JSON values"),
    ("learning_rate=-1", "learning_rate = -1.0 is out of range"),
  ],
)
def test_a_bad_override_says_why(override, message):
  with pytest.raises(ValueError) as error:
    apply_overrides(Config(task_args={"mixture": [{"weight": 1}]}), [override])
  assert message in str(error.value)


def test_json_gives_back_an_equal_config():
  config = Config(steps=3, weight_decay=1, task_args={"a": [1, {"b": None}], "t": (1, 2)})
  assert from_json(to_json(config)) == config
  assert json.loads(to_json(config))["steps"] == 3


def test_json_with_unknown_or_missing_keys_is_refused():
  values = json.loads(to_json(Config()))
  with pytest.raises(ValueError, match="did you mean budget"):
    from_json(json.dumps({**values, "budgets": 1}))
  del values["budget"]
  with pytest.raises(ValueError, match="lacks budget"):
    from_json(json.dumps(values))


def test_difference_lists_paths():
  a = Config(steps=1, task_args={"m": [{"w": 1}, {"w": 2}], "gone": 0})
  b = Config(steps=2, task_args={"m": [{"w": 1}, {"w": 5}], "new": []})
  assert difference(a, a) == []
  assert sorted(difference(a, b)) == [
    "steps: 1 -> 2",
    "task_args.gone: 0 -> (absent)",
    "task_args.m.1.w: 2 -> 5",
    "task_args.new: (absent) -> []",
  ]


def test_load_config_runs_the_file(tmp_path):
  file = tmp_path / "config.py"
  file.write_text(
    "from rlvr_jax.train.config import Config\n\ndef get_config():\n  return Config(steps=4)\n"
  )
  assert load_config(file) == Config(steps=4)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("x = 1", "has no function get_config"),
    ("def get_config():\n  return {}", "returned a dict, not a Config"),
  ],
)
def test_load_config_says_what_is_wrong_with_the_file(tmp_path, text, message):
  file = tmp_path / "config.py"
  file.write_text(text)
  with pytest.raises(ValueError, match=message):
    load_config(file)


def test_load_config_without_a_file(tmp_path):
  with pytest.raises(ValueError, match=r"no config file at .*absent\.py"):
    load_config(tmp_path / "absent.py")
  other = tmp_path / "config.txt"
  other.write_text("{}")
  with pytest.raises(ValueError, match="not a Python file"):
    load_config(other)


def test_load_config_reads_what_a_run_has_saved(tmp_path):
  config = Config(steps=3, stop_strings=("a",), task_args={"digits": 2})
  file = claim_workdir(tmp_path, config) / "config.json"
  assert load_config(file) == config
  assert digest(load_config(file)) == digest(config) != digest(Config(steps=4))
  file.write_text('{"steps": 3}')
  with pytest.raises(ValueError, match=r"config\.json: the config lacks policy"):
    load_config(file)


def test_a_workdir_is_claimed_then_resumed(tmp_path):
  config = Config(task_args={"digits": (1, 2)})
  workdir = claim_workdir(tmp_path / "a" / "run", config)
  assert from_json((workdir / "config.json").read_text()) == config
  assert claim_workdir(workdir, config) == workdir
  assert [p.name for p in workdir.iterdir()] == ["config.json"]


def _begun(workdir, config, *, checkpoint=None):
  """A workdir whose run has begun."""
  claim_workdir(workdir, config)
  (workdir / "metrics.jsonl").write_text('{"step": 0}\n')
  if checkpoint is not None:
    (workdir / "checkpoints" / str(checkpoint)).mkdir(parents=True)


def test_a_run_that_has_not_begun_gives_its_workdir_up(tmp_path):
  claim_workdir(tmp_path, Config(seed=1))
  claim_workdir(tmp_path, Config(seed=2))
  assert from_json((tmp_path / "config.json").read_text()).seed == 2


def test_fewer_steps_than_are_done_are_refused_and_change_nothing(tmp_path):
  _begun(tmp_path, Config(steps=50), checkpoint=40)
  with pytest.raises(ValueError, match="checkpoint of step 40, past steps = 39"):
    claim_workdir(tmp_path, Config(steps=39))
  assert from_json((tmp_path / "config.json").read_text()).steps == 50
  claim_workdir(tmp_path, Config(steps=40))


def test_a_workdir_is_held_by_one_process(tmp_path):
  take = (
    f"from rlvr_jax.train.config import hold_workdir\nwith hold_workdir({str(tmp_path)!r}): pass"
  )
  other = lambda: subprocess.run([sys.executable, "-c", take], capture_output=True, text=True)
  with hold_workdir(tmp_path):
    refused = other()
    assert refused.returncode and f"in use by process {os.getpid()};" in refused.stderr
  assert other().returncode == 0


def test_a_workdir_of_another_config_is_refused(tmp_path):
  _begun(tmp_path, Config(seed=1))
  with pytest.raises(ValueError, match="another config") as error:
    claim_workdir(tmp_path, Config(seed=2, steps=101))
  assert "seed: 1 -> 2" in str(error.value)
  assert "steps: " not in str(error.value)
  assert from_json((tmp_path / "config.json").read_text()).seed == 1


def test_what_a_resumed_run_may_change(tmp_path):
  _begun(tmp_path, Config())
  changed = {
    "steps": 200,
    "eval_every": 1,
    "sample_every": 0,
    "max_generated_tokens": 10_000,
    "checkpoint_every": 7,
    "checkpoint_minutes": 1.5,
    "keep_checkpoints": 1,
    "record_completions": 2,
    "record_mib": 1.0,
    "alarms": {"length_blowup": None},
    "keep_best": "eval/heldout/pass@1",
    "loggers": (),
    "export": False,
    "prompt_cache": "elsewhere",
    "mesh": "cpu8",
    "rollout_devices": 4,
  }
  assert set(changed) == set(RESUMABLE)
  longer = dataclasses.replace(Config(), **changed)
  claim_workdir(tmp_path, longer)
  assert from_json((tmp_path / "config.json").read_text()) == longer


def test_steps_may_not_change_under_a_decaying_schedule(tmp_path):
  _begun(tmp_path, Config(schedule="cosine"))
  with pytest.raises(ValueError, match="steps: 100 -> 200"):
    claim_workdir(tmp_path, Config(schedule="cosine", steps=200))


def test_a_broken_config_file_is_not_overwritten(tmp_path):
  _begun(tmp_path, Config())
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match="cannot read"):
    claim_workdir(tmp_path, Config())
  assert (tmp_path / "config.json").read_text() == "{"
