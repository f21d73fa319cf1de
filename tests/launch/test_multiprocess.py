"""Runs of two and four processes on this machine: the same numbers as one process, and what a death does."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

from launch import train
from rlvr_jax.train.config import CHECKPOINTS, METRICS_FILE
from rlvr_jax.train.metrics import read_metrics

ROOT = Path(__file__).parents[2]
MESH, DEVICES = "2x2x1", 4
SECONDS = 10  # a process unheard of for so long has died
FLAGS = (
  "--policy=tiny", "--task=lenient", f"--mesh={MESH}", "--set=prompts=4", "--set=budget=8",
  "--set=max_prompt_length=12", "--set=max_new_tokens=3", "--set=eval_samples=2",
  "--set=eval_prompts=5", "--set=verifier_workers=1", "--set=loggers=jsonl",
  "--set=checkpoint_every=1", "--set=sample_every=0", "--set=export=false",
  f"--process_timeout_seconds={SECONDS}",
)  # fmt: skip


def _start(folder, processes, *args):
  """Starts the processes of one run in folder/run; their output goes to folder/<i>.txt."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  # Compiled without optimisation: most of the time of these tests goes into compiling.
  xla = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
  environment = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": f"{xla} --xla_force_host_platform_device_count={DEVICES // processes}",
    "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),  # of a restart
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
  }
  started = []
  for i in range(processes):
    join = (f"--coordinator=localhost:{port}", f"--num_processes={processes}", f"--process_id={i}")
    command = [sys.executable, "-u", "-m", "tests.launch.lenient", f"--workdir={folder / 'run'}"]
    command += [*FLAGS, *(join if processes > 1 else ()), *args]
    with open(folder / f"{i}.txt", "w") as log:
      started.append(
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
      )
  return started


def _texts(folder):
  return "\n".join(f"[{f.stem}]\n{f.read_text()}" for f in sorted(folder.glob("*.txt")))


def _until(ready, processes, folder):
  """Waits for ready(); fails if a process ends before."""
  while not ready():
    assert all(p.poll() is None for p in processes), _texts(folder)
    time.sleep(0.05)


def _end(processes):
  """Exit codes; kills whatever is left after a time in which a busy machine would have compiled."""
  try:
    return [p.wait(timeout=600) for p in processes]
  finally:
    for p in processes:
      p.kill()
      p.wait()


def _reached(folder):
  steps = [int(f.name) for f in (folder / "run" / CHECKPOINTS).glob("[0-9]*") if f.name.isdigit()]
  return max(steps, default=0)


def _rows(folder):
  """Metrics of each step, without what depends on the clock and the number of programs."""
  rows = read_metrics(folder / "run" / METRICS_FILE)
  keep = lambda name: not name.startswith(("time/", "perf/"))
  return [{k: v for k, v in row.items() if keep(k)} for row in rows]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  """Metrics of three steps in one process of four devices."""
  folder = tmp_path_factory.mktemp("one")
  assert _end(_start(folder, 1, "--steps=3")) == [0], _texts(folder)
  rows = _rows(folder)
  assert any(row["policy/grad_norm"] > 0 for row in rows[:2])
  return rows


@pytest.mark.slow
def test_two_processes_equal_one_and_go_on_after_one_was_killed(one, tmp_path):
  first, second = started = _start(tmp_path, 2, "--steps=1000")
  try:
    _until(lambda: _reached(tmp_path) > 0, started, tmp_path)
  finally:
    second.kill()
  # Who notices first decides who speaks: a broken connection, or the watch over heartbeats.
  assert _end([first]) != [0], _texts(tmp_path)
  text = (tmp_path / "0.txt").read_text()
  told = "error: process 0 cannot go on" in text and "Start all of them again" in text
  assert told or "another task died" in text

  reached = _reached(tmp_path)
  steps = max(3, reached + 1)
  again = _start(tmp_path, 2, f"--steps={steps}")
  assert _end(again) == [0, 0], _texts(tmp_path)
  assert f"resumed from step {reached}" in (tmp_path / "0.txt").read_text()
  assert "step" not in (tmp_path / "1.txt").read_text()  # only the first one speaks
  rows = _rows(tmp_path)
  assert [row["step"] for row in rows] == list(range(steps + 1))
  for step in range(3):
    assert rows[step] == pytest.approx(one[step], rel=1e-5, abs=1e-6)
  if steps == 3:
    assert rows[3] == pytest.approx(one[3], rel=1e-5, abs=1e-6)  # the evaluation at the end


@pytest.mark.slow
def test_four_processes_equal_one_and_none_waits_for_ever_for_one_that_hangs(one, tmp_path):
  """A stopped process keeps its connections: only the silence tells."""
  *others, last = started = _start(tmp_path, 4, "--steps=1000", "--set=eval_every=0")
  try:
    _until(lambda: _reached(tmp_path) > 1, started, tmp_path)
    last.send_signal(signal.SIGSTOP)
    assert all(code not in (None, 0) for code in _end(others)), _texts(tmp_path)
  finally:
    for p in started:
      p.kill()
      p.wait()
  for i in range(3):
    text = (tmp_path / f"{i}.txt").read_text()
    assert "another task died" in text or "cannot go on" in text
  rows = _rows(tmp_path)
  for step in range(2):
    same = {k: v for k, v in one[step].items() if not k.startswith("eval/")}
    same["tokens/evaluated"] = 0
    same["verifier/verified"] -= 5 * 2  # what the evaluation before the first step had judged
    assert rows[step] == pytest.approx(same, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(
  ("given", "match"),
  [
    ({"coordinator": "localhost:1"}, "go together"),
    ({"num_processes": 2, "process_id": 0}, "go together"),
    ({"coordinator": "localhost:1", "num_processes": 2, "process_id": 2}, "process_id 2 of 2"),
    ({"coordinator": "localhost:1", "num_processes": 2, "process_id": -1}, "process_id -1 of 2"),
  ],
)
def test_flags_that_do_not_name_a_process(given, match):
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(**given), pytest.raises(ValueError, match=match):
    train.connect()
