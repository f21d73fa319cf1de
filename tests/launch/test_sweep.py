"""Sweeps: what is run, what is left alone, and the table."""

import json
import math
import os
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import pytest

from launch import sweep
from rlvr_jax.train.config import METRICS_FILE, Config, hold_workdir

ROOT = Path(__file__).parents[2]


def test_a_grid_is_every_combination():
  runs = sweep.grid(Config(), ["seed=0,1", "recipe_args.bounds=[0.1, 0.2],none", "policy='a,b'"])
  assert list(runs) == [
    "seed=0,recipe_args.bounds=[0.1, 0.2],policy='a,b'",
    "seed=0,recipe_args.bounds=none,policy='a,b'",
    "seed=1,recipe_args.bounds=[0.1, 0.2],policy='a,b'",
    "seed=1,recipe_args.bounds=none,policy='a,b'",
  ]
  assert [c.seed for c in runs.values()] == [0, 0, 1, 1]
  assert [c.recipe_args["bounds"] for c in runs.values()] == [[0.1, 0.2], "none"] * 2
  assert list(sweep.grid(Config(), ["policy=a/b"])) == ["policy=a_b"]
  with pytest.raises(ValueError, match="not of the form key=value,value"):
    sweep.grid(Config(), ["seed"])
  with pytest.raises(ValueError, match="did you mean seed"):
    sweep.grid(Config(), ["sed=1"])
  with pytest.raises(ValueError, match="two runs of the name 'policy=a_b'"):
    sweep.grid(Config(), ["policy=a/b,c,a_b"])


@pytest.mark.parametrize(
  ("returned", "match"),
  [
    ("{}", "must return a dict"),
    ("{'a/b': Config()}", "no name for a folder"),
    ("{'a': 1}", "'a' is a int, no Config"),
  ],
)
def test_a_sweep_file_that_is_none(tmp_path, returned, match):
  file = tmp_path / "sweep.py"
  file.write_text(
    f"from rlvr_jax.train.config import Config\ndef get_sweep():\n  return {returned}\n"
  )
  with pytest.raises(ValueError, match=match):
    sweep.read_sweep(file)


def test_a_sweep_file_with_overrides(tmp_path):
  file = tmp_path / "sweep.py"
  file.write_text(
    "from rlvr_jax.train.config import Config\n"
    "def get_sweep():\n  return {f'r{i}': Config(seed=i) for i in range(2)}\n"
  )
  assert sweep.read_sweep(file, ["steps=3"]) == {f"r{i}": Config(seed=i, steps=3) for i in range(2)}


def test_runs_that_differ_in_their_seed_alone_are_one_line():
  runs = {
    "grpo_0": Config(seed=0), "grpo_1": Config(seed=1),
    "seed=5,recipe=dapo": Config(recipe="dapo", seed=5),
    "seed=6,recipe=dapo": Config(recipe="dapo", seed=6),
    "lr=3,seed=3": Config(learning_rate=3, seed=3), "lr=3,seed=4": Config(learning_rate=3, seed=4),
    "alone, seed=1": Config(steps=7, seed=1),
  }  # fmt: skip
  assert sweep.lines(runs) == {
    "grpo": ["grpo_0", "grpo_1"],
    "recipe=dapo": ["seed=5,recipe=dapo", "seed=6,recipe=dapo"],
    "lr=3": ["lr=3,seed=3", "lr=3,seed=4"],
    "alone, seed=1": ["alone, seed=1"],
  }


def test_finished_runs_are_left_alone_and_the_rest_is_resumed(tmp_path, capsys):
  runs = {name: Config(seed=i) for i, name in enumerate("abcd")}
  calls, broken = [], {"b"}

  def run(config, folder):
    with hold_workdir(folder):
      calls.append(folder.name)
      if folder.name in broken:
        raise RuntimeError("it broke")

  with hold_workdir(tmp_path / "c"):
    assert sweep.run_all(runs, tmp_path, run) == ["b: RuntimeError: it broke"]
  assert calls == ["a", "b", "d"]
  assert "c: another process has it" in capsys.readouterr().out
  calls.clear()
  broken.clear()
  runs["a"] = Config(seed=0, steps=200)  # a longer run is another one
  (tmp_path / "d" / sweep.FINISHED_FILE).write_text("{")
  assert sweep.run_all(runs, tmp_path, run) == []
  assert calls == ["a", "b", "c", "d"]


# Two runs that go on until a file "go" lies beside them, or until they are stopped, as those of train.loop.
ENDLESS = """
import time
from launch import train
from rlvr_jax.train.config import Config, hold_workdir
from rlvr_jax.train.loop import Interrupted, _StopSignals

def run(config, folder):
  with hold_workdir(folder), _StopSignals() as stop:
    (folder / "began").touch()
    while not stop.requested and not (folder.parent / "go").exists():
      time.sleep(0.02)
    if stop.requested:
      raise Interrupted("stopped after step 3")

train.run = run
get_sweep = lambda: {f"r{seed}": Config(seed=seed) for seed in range(2)}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_processes_share_the_runs_and_a_signal_stops_them_all(tmp_path, monkeypatch, number):
  """Ctrl-C, as from a terminal, goes to the whole process group."""
  monkeypatch.setattr(sweep.train, "run", sweep.train.run)  # which reading the sweep replaces
  file, workdir = tmp_path / "sweep.py", tmp_path / "runs"
  file.write_text(ENDLESS)
  command = [sys.executable, "-m", "launch.sweep", f"--sweep={file}", f"--workdir={workdir}"]
  process = subprocess.Popen(
    [*command, "--processes=2"], cwd=ROOT, text=True, start_new_session=True,
    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "JAX_PLATFORMS": "cpu"},
  )  # fmt: skip
  while process.poll() is None and not all((workdir / f"r{i}" / "began").exists() for i in (0, 1)):
    time.sleep(0.02)
  os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
  text, _ = process.communicate()
  assert process.returncode == 130, text
  assert "stopped; the same command goes on with the sweep" in text
  for i in (0, 1):
    log = (workdir / f"process_{i}.log").read_text()
    assert log.endswith("stopped after step 3; the same command goes on with the sweep\n"), log
  (workdir / "go").touch()
  runs = sweep.read_sweep(file)
  assert not any(sweep.finished(workdir / name, config) for name, config in runs.items())
  assert sweep.run_all(runs, workdir, sweep.train.run) == []
  assert all(sweep.finished(workdir / name, config) for name, config in runs.items())


def test_a_sweep_needs_a_folder_here(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sweep.flags, "FLAGS", types.SimpleNamespace(workdir="gs://bucket/sweep"))
  with pytest.raises(SystemExit, match=r"gs://bucket/sweep: .* give a folder here"):
    sweep.main([""])
  assert os.listdir(tmp_path) == []


def _write(folder, config, spent, scores):
  """A run of len(spent) steps; scores[i] is the reward of step i, an evaluation every two steps."""
  folder.mkdir()
  rows = [
    {"step": i, "tokens/generated": t, "reward/mean": r}
    | ({"eval/a": 10 * r} if i % 2 == 0 else {})
    for i, (t, r) in enumerate(zip(spent, scores))
  ]
  rows.append({"step": len(spent), "tokens/generated": spent[-1], "eval/a": 99.0})
  (folder / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
  sweep.run_all({folder.name: config}, folder.parent, lambda config, folder: None)


def test_the_table_reads_all_runs_at_the_same_point(tmp_path):
  """At equal steps (2) and at equal tokens (40), by hand."""
  runs = {"x_0": Config(seed=0), "x_1": Config(seed=1), "y": Config(steps=2), "z": Config(steps=9)}
  _write(tmp_path / "x_0", runs["x_0"], [10, 20, 30, 40], [0.1, 0.2, 0.3, 0.4])
  _write(tmp_path / "x_1", runs["x_1"], [20, 40, 60], [0.5, 0.6, 0.7])
  _write(tmp_path / "y", runs["y"], [100, 200], [0.8, 0.9])
  metrics = ["reward/mean", "eval/a", "tokens/generated"]
  read = lambda at: sweep.tabulate(runs, tmp_path, metrics, sweep.parse_point(at), 2)

  table = read("steps")
  assert (table["at"], table["unit"]) == (2, "steps")
  x, y, z = table["lines"]
  assert (x["label"], x["read"], z["read"]) == ("x", ["x_0", "x_1"], [])
  # Two steps are done: rewards of steps 0 and 1; the evaluation before step 2.
  assert x["metrics"]["reward/mean"]["values"] == pytest.approx({"x_0": 0.15, "x_1": 0.55})
  assert x["metrics"]["reward/mean"]["mean"] == pytest.approx(0.35)
  assert x["metrics"]["reward/mean"]["std"] == pytest.approx(0.4 / math.sqrt(2))
  assert x["metrics"]["eval/a"]["values"] == {"x_0": 3.0, "x_1": 7.0}
  assert x["metrics"]["tokens/generated"]["mean"] == 30
  assert y["metrics"]["eval/a"]["values"] == {"y": 99.0} and y["metrics"]["eval/a"]["std"] is None

  table = read("tokens")
  assert table["at"] == 40  # of x_0, the run that went least far
  x, y, z = table["lines"]
  assert x["metrics"]["reward/mean"]["values"] == pytest.approx({"x_0": 0.35, "x_1": 0.55})
  # x_0 ends with 40 tokens and its last evaluation; x_1 has spent 40 before its third step.
  assert x["metrics"]["eval/a"]["values"] == {"x_0": 99.0, "x_1": 7.0}
  assert y["read"] == ["y"] and y["metrics"]["reward/mean"]["mean"] is None

  text = sweep.markdown(table)
  assert text.startswith("After 40 generated tokens:")
  assert "| x    | 2/2   | 0.450 ± 0.141 |" in text and "| z    | 0/1   | -" in text
  assert read("steps:3")["lines"][1]["read"] == []
  with pytest.raises(ValueError, match="--at=epochs must be steps, tokens"):
    read("epochs")
