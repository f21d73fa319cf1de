"""`python -m launch.train` as a user runs it: learning, Ctrl-C, resuming, and errors in one line."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr_jax.models.load import load_policy
from rlvr_jax.tasks.arithmetic import CharTokenizer
from rlvr_jax.train.config import METRICS_FILE
from rlvr_jax.train.metrics import read_metrics

ROOT = Path(__file__).parents[2]
SMOKE = ROOT / "experiments" / "smoke" / "config.py"


def _start(*args, code=None, **variables):
  command = [sys.executable, "-u", *(["-c", code] if code else ["-m", "launch.train"]), *args]
  environment = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
  return subprocess.Popen(
    command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
  )


@pytest.mark.slow
def test_t69_the_smoke_experiment_learns_and_survives_ctrl_c(tmp_path):
  """Warm start, some steps, Ctrl-C, the same command again: accuracy rises on held-out prompts."""
  run = tmp_path / "run"
  command = f"--config={SMOKE}", f"--workdir={run}"
  cache = {  # the second start need not compile again
    "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  first = _start(*command, **cache)
  lines = []
  for line in first.stdout:
    lines.append(line)
    if line.startswith("step  10/100"):
      first.send_signal(signal.SIGINT)
  text = "".join(lines)
  assert first.wait() == 130, text
  assert "warm start: 300 steps" in text
  assert lines[-1].startswith("stopped after step") and "Traceback" not in text
  done = len(read_metrics(run / METRICS_FILE))
  assert 10 <= done < 20

  second = _start(*command, **cache)
  text, _ = second.communicate()
  assert second.returncode == 0, text
  assert f"resumed from step {done}" in text and "warm start" not in text
  rows = read_metrics(run / METRICS_FILE, merge=False)
  assert [row["step"] for row in rows] == list(range(101))
  before, after = (rows[i]["eval/heldout/pass@1"] for i in (0, -1))
  assert before < 0.7 and after > 0.9
  assert sum(row["reward/mean"] for row in rows[90:100]) / 10 > 0.9
  assert "eval/heldout/pass@1" in text.split("change")[1]  # the table of before and after
  assert (run / "reward_curve.png").stat().st_size > 1000
  assert list((run / "tensorboard").iterdir())
  loaded = load_policy(str(run / "export"), tokenizer=CharTokenizer())
  assert loaded.config.num_layers == 2

  third = _start(*command, "--set=learning_rate=0.1")
  text, _ = third.communicate()
  assert third.returncode == 1
  assert "learning_rate: 0.001 -> 0.1" in text and "Traceback" not in text


# Calls main() once for each list of arguments: one process, since imports take seconds.
DRIVER = """
import json, sys
from absl import flags
from launch import train
for args in json.loads(sys.argv[1]):
  flags.FLAGS.unparse_flags()
  for name in flags.FLAGS.flags_by_module_dict()["launch.train"]:
    name.unparse()
  try:
    train.main(flags.FLAGS(["train", *args]))
    print("0")
  except SystemExit as stop:
    print(stop.code)
"""


def test_what_is_wrong_is_named_in_one_line(tmp_path):
  cases = [
    (["--policy=tinny"], "unknown policy 'tinny'; did you mean tiny"),
    (["--recipe=gpro"], "unknown recipe 'gpro'; did you mean"),
    (["--task=arithmatic"], "unknown task 'arithmatic'; did you mean arithmetic"),
    (["--mesh=cpu2"], "unknown mesh 'cpu2'; did you mean"),
    (["--set=learning_rat=1"], "unknown config key 'learning_rat'; did you mean learning_rate"),
    (["--set=recipe_args.clip_hihg=1"], "'clip_hihg'; did you mean clip_high"),
    (["--set=task_args.digit=1"], "'digit'; did you mean digits"),
    (["--set=recipe_args.clip_low=2"], "low must lie in [0, 1], got 2"),
    (["--set=recipe_args.temperature=0"], "temperature must be positive"),
    (["--steps=ten"], "steps = 'ten' must be a whole number"),
    (["--steps=0"], "steps = 0 is out of range"),
    (["--set=budget=4"], "budget = 4 is out of range; it must be >= prompts"),
    (["--set=rewards.fromat=1"], "unknown reward 'fromat'; did you mean format"),
    (["--recipe=fapo", "--set=rewards.format=1"], "the recipe has a reward of its own"),
    (["--set=steps"], "not of the form key=value"),
    (["--config=nowhere.py"], "no config file at nowhere.py"),
    ([f"--workdir={__file__}"], "cannot write the workdir"),
    (["--dry_run", "--recipe=gpro"], "unknown recipe 'gpro'"),
    (["--profile=3"], "--profile=3 must be FROM:TO"),
    (["--profile=9:12", "--steps=9"], "--profile: there is no step 9, the last one is 8"),
    (["--dump=9", "--steps=9"], "--dump: there is no step 9, the last one is 8"),
    (["--debug=replay"], "--debug=replay needs --dump=STEP"),
    (["--debug=mock", "--set=debug_args.median=0"], "mock rollouts need median > 0"),
    (["--debug=mock", "--set=debug_args.medain=4"], "'medain'; did you mean median"),
    (["--set=debug_args.median=4"], "debug_args = {'median': 4} is out of range"),
    (["--task=reasoning_gym", "--set=task_args.mixture=[{'name':'chain_sun'}]"], "chain_sum"),
  ]
  folders = [f"--workdir={tmp_path / str(i)}" for i in range(len(cases))]
  argv = [[folder, *args] for (args, _), folder in zip(cases, folders)]
  process = _start(json.dumps(argv), code=DRIVER)
  text, _ = process.communicate()
  assert process.returncode == 0, text
  errors = [line for line in text.splitlines() if line.startswith("error: ") or line == "0"]
  assert len(errors) == len(cases), text
  for error, (args, expected) in zip(errors, cases):
    assert expected in error, (args, error)
  assert not any((tmp_path / str(i) / "checkpoints").exists() for i in range(len(cases)))


def test_a_dry_run_counts_the_tokens_and_makes_nothing(tmp_path):
  """Two rounds of 4 x 8 rows of at most 16 tokens a step; evaluations before, at 2, and at the end."""
  process = _start(
    "--dry_run", f"--workdir={tmp_path / 'run'}", "--recipe=dapo", "--set=recipe_args.rounds=2",
    "--steps=3", "--set=prompts=4", "--set=budget=32", "--set=eval_every=2",
    "--set=task_args.eval_size=10", "--set=task_args.train_size=20", "--set=eval_samples=2",
  )  # fmt: skip
  text, _ = process.communicate()
  assert process.returncode == 0, text
  counts = dict(re.findall(r"^  (\S.*?)  +([\d,]+)$", text, flags=re.MULTILINE))
  expected = {
    "train prompts": 20,
    "rows a round": 32,
    "tokens a step": 2 * 32 * 16,
    "tokens of the run": 3 * 2 * 32 * 16,
    "evaluations": 3,
    "tokens of evaluations": 3 * 10 * 2 * 16,
  }
  assert {k: int(counts[k].replace(",", "")) for k in expected} == expected
  assert "at most, in an update" in text and "config " in text
  assert not list(tmp_path.iterdir())


FIRST_START = """
import sys
from launch import train
from rlvr_jax.train import loop
from rlvr_jax.train.config import Config
class Stop(Exception): pass
def killed(config, policy, params, tokenizer, recipe, task, workdir, **options):
  loop.Checkpointer(workdir, keep=1).close()  # the first thing that a run does
  raise Stop
loop.train = killed
train._warm_start = lambda config, loaded, recipe, task: print("WARM") or loaded.params
for _ in range(2):
  try:
    train.run(Config(warm_start_steps=1), sys.argv[1])
  except Stop:
    pass
"""


def test_a_run_killed_before_its_first_checkpoint_warms_up_again(tmp_path):
  """Otherwise the second start would train a policy without the warm start, and never tell."""
  process = _start(str(tmp_path), code=FIRST_START)
  text, _ = process.communicate()
  assert process.returncode == 0, text
  assert text.count("WARM") == 2
