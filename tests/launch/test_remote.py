"""A workdir with a scheme, through every command that takes one; nothing with its name is made here."""

import json
import os
import types
from typing import Any

import fsspec
import jax
import numpy as np
import pytest

from launch import diagnose, report, train
from rlvr_jax.models.load import LoadedPolicy
from rlvr_jax.train import loop, mirror
from rlvr_jax.train.config import METRICS_FILE
from rlvr_jax.train.parts import Placement
from tests.train import test_loop as toy_runs

pytestmark = pytest.mark.usefixtures("compiled_once")
URL = "memory://bucket/run"


def _metrics(text):
  clock = ("time", "perf")
  rows = [json.loads(line) for line in text.splitlines()]
  return [{k: v for k, v in row.items() if k.split("/")[0] not in clock} for row in rows]


def test_a_run_that_is_killed_and_read(tmp_path, monkeypatch, capsys):
  store = fsspec.filesystem("memory")
  store.store.clear()
  (here := tmp_path / "here").mkdir()
  monkeypatch.chdir(here)
  monkeypatch.setattr(mirror.tempfile, "tempdir", str(tmp_path / "temporary"))
  (tmp_path / "temporary").mkdir()
  config = toy_runs._config(
    steps=4, checkpoint_every=1, eval_every=0, loggers=("jsonl", "tensorboard")
  )

  def build(config, tokenizer: Any = toy_runs.TASK.tokenizer):
    params = toy_runs.POLICY.init(jax.random.key(0))
    no_config: Any = None
    loaded = LoadedPolicy(toy_runs.POLICY, params, tokenizer, no_config, "toy")
    return train._Built(toy_runs.RECIPE, toy_runs.TASK, (), [loaded], {}, False, Placement())

  def export(loaded, params, folder):
    folder.mkdir()
    np.savez(folder / "params.npz", **params)

  monkeypatch.setattr(train, "_build", build)
  monkeypatch.setattr(train, "_export", export)
  whole = train.run(config, tmp_path / "whole")

  # As after kill -9 in the fourth step: nothing is copied but what the checkpoints had copied.
  wire = toy_runs.Tripwire(3 * toy_runs.PER_STEP + 7, toy_runs._die)
  with monkeypatch.context() as patch:
    patch.setattr(train, "_build", lambda config: build(config, wire))
    patch.setattr(mirror.Mirror, "finish", lambda self: None)
    with pytest.raises(RuntimeError, match="killed"):
      train.run(config, URL)
  files = json.loads(store.cat("/bucket/run/mirror.json"))["files"]
  assert "config.json" in files and not any(name.startswith("export") for name in files)
  capsys.readouterr()
  outcome = train.run(config, URL)
  assert "resumed from step" in capsys.readouterr().out
  jax.tree.map(np.testing.assert_array_equal, *jax.device_get((outcome.state, whole.state)))
  files = json.loads(store.cat("/bucket/run/mirror.json"))["files"]
  assert {name.split("/")[0] for name in files} == set(os.listdir(tmp_path / "whole")) - {".lock"}
  assert {name.split("/")[1] for name in files if name.startswith("checkpoints/")} == {"3", "4"}
  text = store.cat(f"/bucket/run/{METRICS_FILE}").decode()
  assert _metrics(text) == _metrics((tmp_path / "whole" / METRICS_FILE).read_text())

  given = {"workdir": URL, "compare": [], "out": None, "png": "figures", "along": "steps"}
  monkeypatch.setattr(report.flags, "FLAGS", types.SimpleNamespace(**given))
  report.main([""])
  assert b'"name":"run"' in store.cat("/bucket/run/report.html")
  diagnose.main([""])
  assert "Last 20 steps, to step 3:" in capsys.readouterr().out
  assert os.listdir(here) == ["figures"]

  with pytest.raises(ValueError, match="give a folder here"):
    loop.train(
      config, toy_runs.POLICY, {}, toy_runs.TASK.tokenizer, toy_runs.RECIPE, toy_runs.TASK, URL
    )
