"""`python -m launch.diagnose`: what it says of runs, and its errors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launch import diagnose
from rlvr_jax.train.health import RULES
from rlvr_jax.train.plots import Run, read_run

ROOT = Path(__file__).parents[2]


def _run(rows, **config):
  rows = [{"step": step} | row for step, row in enumerate(rows)]
  return Run("r", config, rows, {})


def test_warnings_on_the_way_and_now():
  rows = [
    {"policy/ratio_max": 40.0 * (s == 3), "group/frac_all_0": 0.9 * (s > 9)} for s in range(40)
  ]
  health = diagnose.examine(_run(rows))
  # 0.9 k / n > 0.3 for the first time with k = 6 of n = 16 steps, step 15.
  assert [(one.rule.name, one.step) for one in health.raised] == [
    ("ratio_extreme", 3),
    ("unsolved", 15),
  ]
  assert [(one.rule.name, one.severity) for one in health.found] == [
    ("unsolved", pytest.approx(3.0))
  ]
  assert {rule.name for rule in health.unchecked} == {rule.name for rule in RULES} - {
    "ratio_extreme", "unsolved",
  }  # fmt: skip
  text = diagnose.report(health)
  assert "ratio_extreme at step 3: policy/ratio_max 40 > 10" in text
  assert "Last 20 steps, to step 39:\n    3.00x  unsolved at step 39" in text
  assert "see allocate, replay/success, condition, rollout/tree" in text
  assert "Not checked, for want of their metric: saturated (group/frac_all_1)" in text


def test_a_healthy_run():
  text = diagnose.report(diagnose.examine(_run([{"policy/ratio_max": 1.0}] * 3)))
  assert text.startswith("Last 20 steps, to step 2:\n  nothing found\n")


def test_recipes_are_those_there_are(monkeypatch):
  table = dict.fromkeys(("grpo", "nat_rpc", "d3s", "nat_urs", "natural", "aero"))
  monkeypatch.setattr(diagnose, "RECIPES", table)
  rule = next(rule for rule in RULES if rule.name == "dead_weight")  # d3s nat arrol aero
  assert diagnose.recipes(rule) == ["d3s", "nat_rpc", "nat_urs", "aero"]


def test_the_config_names_reward_functions_and_thresholds():
  rows = [{"reward/add/mean": 0.0, "reward/brief/mean": -9.0, "policy/kl_old": 0.05}] * 9
  health = diagnose.examine(_run(rows, rewards={"mine:brief": 0.2}, alarms={"kl_old": 0.01}))
  assert [one.rule.name for one in health.found] == ["kl_old"]  # and no spread of sources
  with pytest.raises(ValueError, match="no step yet"):
    diagnose.examine(_run([]))


def test_as_a_command(tmp_path):
  (tmp_path / "run").mkdir()
  rows = [{"step": s, "mismatch/ess": None if s else 0.5} for s in range(3)]
  text = "".join(json.dumps(row) + "\n" for row in rows)
  (tmp_path / "run" / "metrics.jsonl").write_text(text + '{"step": 3, "mis')
  code = """
import sys
from absl import flags
from launch import diagnose
diagnose.define_flags()
for workdir in sys.argv[1:]:
  try:
    diagnose.main(flags.FLAGS(["diagnose", "--workdir=" + workdir]))
  except SystemExit as stop:
    print(stop.code)
"""
  done = subprocess.run(
    [sys.executable, "-c", code, str(tmp_path / "run"), str(tmp_path)], cwd=ROOT, text=True,
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
  )  # fmt: skip
  told = diagnose.report(diagnose.examine(read_run(tmp_path / "run")))
  error = f"error: {tmp_path} has no metrics.jsonl: it is no workdir, or its first step is not done"
  assert done.stdout == f"{told}\n{error}\n"
  assert "few_effective at step 0: mismatch/ess 0.5 < 0.8" in told
