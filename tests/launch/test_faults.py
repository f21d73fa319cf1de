"""Runs that are killed with -9 at any moment end as those that are not: same metrics, same parameters.

Two kills, or as many as RLVR_KILLS says.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.train.test_loop import _rows

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("RLVR_KILLS", "2"))
STEPS = max(6, 4 * KILLS)

RUN = f"""
import sys
from pathlib import Path
from rlvr_jax.train import debug
from tests.train.test_loop import _train
outcome = _train(Path(sys.argv[1]), steps={STEPS}, checkpoint_every=1, keep_best="eval/heldout/pass@1")
print("learned", debug.digest(outcome.state), flush=True)
"""


def _start(workdir, cache):
  environment = {
    **os.environ,
    "JAX_PLATFORMS": "cpu",
    "JAX_COMPILATION_CACHE_DIR": str(cache),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "PYTHONPATH": str(ROOT),
  }
  return subprocess.Popen(
    [sys.executable, "-u", "-c", RUN, str(workdir)],
    cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
  )  # fmt: skip


def _end(process):
  text, _ = process.communicate()
  assert process.returncode == 0, text
  return text, re.search(r"learned (\w+)", text)[1]


def test_a_storm_of_kills(tmp_path, tmp_path_factory):
  """Each life is ended a random time after a random step of its own; a checkpoint is always being written."""
  cache = tmp_path_factory.getbasetemp() / "compiled"  # test_loop's own: the programs are the same
  _, whole = _end(_start(tmp_path / "whole", cache))
  chance = random.Random(0)
  workdir = tmp_path / "killed"
  for _ in range(KILLS):
    process = _start(workdir, cache)
    steps = chance.randint(1, 3)
    for line in process.stdout:
      steps -= line.startswith("step ")
      if steps <= 0:
        break
    time.sleep(chance.uniform(0, 0.1))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
  text, learned = _end(_start(workdir, cache))
  assert "resumed from step" in text
  assert learned == whole
  assert _rows(workdir) == _rows(tmp_path / "whole")
  left = lambda path: {p.name for p in (path / "checkpoints").iterdir()}
  assert left(workdir) == left(tmp_path / "whole")
