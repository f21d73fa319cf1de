"""`python -m launch.evaluate` as a user runs it: on a run, its checkpoint, its export; files and errors."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import optax
import pytest

from launch import dry_run, evaluate
from rlvr_jax.core import profile
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import plain_table
from rlvr_jax.models.convert import on_default_device
from rlvr_jax.models.load import export_policy, load_policy
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.tasks.arithmetic import CharTokenizer, arithmetic
from rlvr_jax.train.checkpoint import Checkpointer
from rlvr_jax.train.config import Config, claim_workdir
from rlvr_jax.train.forms import make_forms
from rlvr_jax.train.state import init_state

ROOT = Path(__file__).parents[2]
TASK = {"operations": ["copy", "add"], "train_size": 8, "eval_size": 7}
CONFIG = Config(
  task_args=TASK, steps=5, prompts=4, budget=8, max_prompt_length=16, max_new_tokens=3, seed=3,
  verifier_workers=1,
)  # fmt: skip
SAMPLES = 3


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
  """A run of five steps: checkpoints 4 and 5 with different parameters, 5 exported."""
  path = claim_workdir(tmp_path_factory.mktemp("run"), CONFIG)
  loaded = load_policy("tiny", tokenizer=CharTokenizer(), seed=9)
  optimizer = optax.adamw(1e-3)
  for step in (4, 5):
    params = jax.tree.map(lambda x, s=step: np.asarray(x) * s, loaded.params)
    state = init_state(grpo(), optimizer, params, table=plain_table(8), num_places=8, seed=0)
    state = state.replace(
      learner=state.learner.replace(step=np.int32(step) + 0 * state.learner.step)
    )
    with Checkpointer(path, keep=2) as checkpoints:
      checkpoints.save(state)
  export_policy(path / "export", loaded._replace(params=params))
  return path


# Calls main() for each list of arguments in one process, since imports take seconds.
DRIVER = """
import json, sys
from absl import flags
from launch import evaluate
evaluate.define_flags()
for args in json.loads(sys.argv[1]):
  for name in ("config", "set", "compare", "out", "plot", "policy", "profile", *evaluate._SHORT):
    flags.FLAGS[name].unparse()
  try:
    evaluate.main(flags.FLAGS(["evaluate", *args]))
    print("0")
  except (SystemExit, evaluate.app.UsageError) as stop:
    print(getattr(stop, "code", stop))
"""


def _run(cases, cache):
  environment = {
    **os.environ, "JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }  # fmt: skip
  done = subprocess.run(
    [sys.executable, "-c", DRIVER, json.dumps(cases)], cwd=ROOT, env=environment, text=True,
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
  )  # fmt: skip
  assert done.returncode == 0, done.stdout
  return done.stdout


def test_a_run_through_the_flags(workdir, tmp_path):
  """The newest checkpoint; the same again; greedy with the export; both drawn; and what goes wrong."""
  out = [tmp_path / name for name in ("once", "again", "greedy")]
  task = json.dumps(TASK)
  bare = tmp_path / "bare" / "checkpoints"
  bare.mkdir(parents=True)
  shutil.copy(workdir / "config.json", bare.parent)
  cases = [
    [f"--policy={workdir}", f"--samples={SAMPLES}", f"--out={out[0]}"],
    [f"--policy={workdir}/checkpoints/5", f"--samples={SAMPLES}", f"--out={out[1]}"],
    [f"--policy={workdir}/export", "--task=arithmetic", f"--set=task_args={task}", "--temperature=0",
     "--max_new_tokens=3", "--prompts=2", "--seed=1", f"--out={out[2]}"],
    [*(f"--compare={one}" for one in out), f"--plot={tmp_path / 'all.png'}"],
  ]  # fmt: skip
  wrong = [
    ([], "--policy=... is needed, or --compare=FOLDER"),
    (["--policy=tinny"], "unknown policy 'tinny'; did you mean tiny"),
    (["--policy=tiny", "--task=arithmatic"], "did you mean arithmetic"),
    ([f"--policy={workdir}/checkpoints/3"], "there is no checkpoint"),
    ([f"--policy={bare.parent}"], "has no checkpoint and no export yet"),
    ([f"--policy={workdir}", "--config=c.py"], "brings the config of its run"),
    ([f"--policy={workdir}", "--samples=0"], "eval_samples = 0 is out of range"),
    ([f"--policy={workdir}", "--set=task_args.eval_size=0"], "has no held-out prompts"),
    ([f"--compare={tmp_path}"], "holds no evaluation"),
    (["--policy=tiny", f"--out={__file__}"], "cannot write"),
    (["--policy=tiny", "--profile=p.npz", "--prompts=3"], "--prompts has no place there"),
  ]
  text = _run([*cases, *(args for args, _ in wrong)], tmp_path / "cache")
  ends = [
    line
    for line in text.splitlines()
    if line.startswith(("0", "error: ", "--policy=...", "--profile takes"))
  ]
  assert ends[:4] == ["0"] * 4, text
  assert len(ends) == 4 + len(wrong), text
  for end, (args, expected) in zip(ends[4:], wrong):
    assert expected in end, (args, end)

  # The same command, and the checkpoint by its name, write the same.
  for name in ("completions.jsonl",):
    assert (out[0] / name).read_bytes() == (out[1] / name).read_bytes()
  reports = [json.loads((one / "evaluation.json").read_text()) for one in out]
  assert reports[0]["sets"] == reports[1]["sets"] and reports[0]["step"] == 5
  assert (tmp_path / "all.png").stat().st_size > 1000
  assert not list(tmp_path.glob("*/*.tmp"))

  # Every prompt of the task with all its samples, though chunks of two do not divide seven.
  lines = [json.loads(line) for line in (out[0] / "completions.jsonl").read_text().splitlines()]
  examples = arithmetic(**TASK).evals["heldout"]
  assert [(r["prompt_id"], r["sample"]) for r in lines] == [
    (i, s) for i in range(len(examples)) for s in range(SAMPLES)
  ]
  for one in lines:
    example = examples[one["prompt_id"]]
    assert (one["prompt"], one["answer"], one["source"]) == example[:3]
    assert one["correct"] == float(one["completion"] == example.answer)
  found = reports[0]["sets"]["heldout"]
  assert (
    found["all"]["prompts"] == len(examples) == sum(p["prompts"] for p in found["source"].values())
  )
  for k, best in ((1, np.mean), (SAMPLES, np.max)):
    each = [
      best([r["correct"] for r in lines if r["prompt_id"] == i]) for i in range(len(examples))
    ]
    assert found["all"]["metrics"][f"pass@{k}"]["value"] == pytest.approx(np.mean(each))
  assert found["all"]["length_mean"] == pytest.approx(np.mean([r["num_tokens"] for r in lines]))
  cut = np.mean([r["ending"] == "length" for r in lines])
  assert found["all"]["truncated_frac"] == pytest.approx(cut)
  assert f"{cut:.1%}" in text and "heldout: 7 of 7 prompts" in text and "2 of 7 prompts" in text
  assert reports[2]["samples"] == 1 and reports[2]["temperature"] == 0.0


def test_a_checkpoint_and_the_export_hold_the_same_parameters(workdir):
  """And another checkpoint holds others; the base policy's are never used."""
  opened = []
  for path in (workdir, workdir / "checkpoints" / "4", workdir / "export"):
    run = evaluate.find_run(str(path))
    config = evaluate.build_config(str(path), run, None, [])
    opened.append(evaluate.open_policy(config, run, CharTokenizer(), on_default_device).params)
  newest, older, export = opened
  jax.tree.map(np.testing.assert_array_equal, newest, export)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a / 5, b / 4, rtol=1e-6), newest, older)


def test_a_run_with_lora_is_its_base_with_the_corrections(tmp_path):
  config = dataclasses.replace(CONFIG, lora_rank=2, lora_alpha=6.0, lora_targets=("q", "down"))
  path = claim_workdir(tmp_path / "lora", config)
  loaded = load_policy("tiny", tokenizer=CharTokenizer(), seed=config.seed)
  forms = make_forms(config, loaded.policy, loaded.params)
  rng = np.random.default_rng(0)
  trained = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), forms.trained)
  state = init_state(
    grpo(),
    optax.adamw(1e-3),
    trained,
    table=plain_table(8),
    num_places=8,
    seed=0,
    frozen=forms.frozen,
  )
  with Checkpointer(path, keep=2) as checkpoints:
    checkpoints.save(state)

  run = evaluate.find_run(str(path))
  found = evaluate.open_policy(config, run, CharTokenizer(), on_default_device).params
  base = flax.traverse_util.flatten_dict(loaded.params, sep="/")
  adapters = flax.traverse_util.flatten_dict(trained["adapters"], sep="/")
  corrected = 0
  for name, leaf in flax.traverse_util.flatten_dict(found, sep="/").items():
    expected = np.asarray(base[name])
    if f"{name}/a" in adapters:
      corrected += 1
      expected = expected + 3.0 * adapters[f"{name}/b"] @ adapters[f"{name}/a"]
    np.testing.assert_allclose(leaf, expected, rtol=1e-5, atol=1e-5)
  assert corrected > 0 and 2 * corrected == len(adapters)
  other = dataclasses.replace(config, seed=config.seed + 1)
  with pytest.raises(ValueError, match="other frozen weights"):
    evaluate.open_policy(other, run, CharTokenizer(), on_default_device)


def test_parameters_of_another_shape_are_refused(workdir):
  run = evaluate.find_run(str(workdir))
  other = load_policy("tiny", tokenizer=CharTokenizer("0123456789"))
  with pytest.raises(ValueError, match=r"checkpoint 5 .*embedding is \(\(18, .*the policy has"):
    evaluate.restore_params(run, other.params)


def test_another_task_comes_without_the_arguments_of_the_first(workdir):
  run = evaluate.find_run(str(workdir))
  build = lambda *overrides: evaluate.build_config(str(workdir), run, None, list(overrides))
  assert build().task_args == build("task=arithmetic").task_args == CONFIG.task_args
  assert build("task=reasoning_gym", "task_args.eval_size=3").task_args == {"eval_size": 3}
  assert build("eval_samples=16").eval_samples == 16


def judged_by_source(**args):
  return arithmetic(**args)._replace(verify=copies_are_right)


def copies_are_right(example, text):
  return Verdict(float(example.source == "copy"))


def test_a_profile_of_the_training_prompts(tmp_path):
  """Which are right is up to the prompt alone, so that every number is known; a dry run then reads it."""
  config = dataclasses.replace(
    CONFIG, policy="tiny", task="tests.launch.test_evaluate:judged_by_source", eval_samples=SAMPLES,
    eval_prompts=2,
  )  # fmt: skip
  path = str(tmp_path / "profile.npz")
  evaluate.profile(config, path)
  successes, trials = profile.load(path)
  right = [e.source == "copy" for e in arithmetic(**TASK).train]
  assert len(right) == TASK["train_size"] and 0 < sum(right) < len(right)
  np.testing.assert_array_equal(successes, np.multiply(right, SAMPLES))
  np.testing.assert_array_equal(trials, np.full(len(right), SAMPLES))
  assert [one.name for one in tmp_path.iterdir()] == ["profile.npz"]
  run = dataclasses.replace(config, recipe="pvpo", recipe_args={"profile": path})
  assert dry_run.budget(run)["rows a round"] == CONFIG.budget
  more = dataclasses.replace(run, task_args=TASK | {"train_size": 6})
  with pytest.raises(ValueError, match="has 8 prompts, the table 6"):
    dry_run.budget(more)
  with pytest.raises(ValueError, match="cannot write"):
    evaluate.profile(config, str(tmp_path / "profile.npz" / "in_a_file.npz"))
