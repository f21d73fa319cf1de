"""Metrics: names, files, what survives a kill and a resume, the screen, and the curve."""

import io
import json
import re
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rlvr_jax.train import metrics as metrics_lib
from rlvr_jax.train import plots
from rlvr_jax.train.metrics import (
  CompileCounter,
  Progress,
  Sample,
  Writers,
  before_after_table,
  find,
  read_metrics,
)


@pytest.mark.parametrize(
  ("name", "declared"),
  [
    ("reward/mean", "reward/mean"),
    ("reward/gsm8k/mean", "reward/<source>/mean"),
    ("time/collect_seconds", "time/<phase>_seconds"),
    ("eval/test/pass@1", "eval/<set>/pass@<k>"),
    ("eval/test/pass@16", "eval/<set>/pass@<k>"),
    ("eval/test/add/pass@1", "eval/<set>/<source>/pass@<k>"),
    ("tokens/verified", "tokens/verified"),
  ],
)
def test_a_name_finds_its_declaration(name, declared):
  assert find(name).name == declared


@pytest.mark.parametrize(
  "name",
  ["reward/means", "reward/a/b/mean", "eval/test/pass@0", "eval/test/pass@k", "eval/test/passX1"],
)
def test_an_undeclared_name_raises(name):
  with pytest.raises(ValueError, match="unknown metric"):
    find(name)


def test_names_are_declared_once():
  names = [metric.name for metric in metrics_lib.METRICS]
  assert len(set(names)) == len(names)
  assert all(metric.description for metric in metrics_lib.METRICS)


def test_jsonl_is_one_sorted_object_a_line(tmp_path):
  with Writers(tmp_path, ["jsonl"]) as writers:
    writers.write(
      0,
      {
        "reward/mean": jnp.float32(0.5),
        "policy/loss": float("nan"),
        "tokens/generated": np.int64(3_000_000_000),
        "policy/entropy": jnp.asarray([0.25], jnp.bfloat16),
      },
    )
    text = (tmp_path / "metrics.jsonl").read_text()  # flushed before it is closed
  assert text == (
    '{"policy/entropy": 0.25, "policy/loss": null, "reward/mean": 0.5, "step": 0,'
    ' "tokens/generated": 3000000000}\n'
  )


@pytest.mark.parametrize("value", [jnp.ones(2), "1", None])
def test_a_value_that_is_not_one_number_raises(tmp_path, value):
  with Writers(tmp_path, ["jsonl"]) as writers:
    with pytest.raises(ValueError, match="'reward/mean' must be one number"):
      writers.write(0, {"group/frac_all_0": 0.0, "reward/mean": value})
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_an_undeclared_metric_writes_nothing(tmp_path):
  writers = Writers(tmp_path, ["jsonl"])
  with pytest.raises(ValueError, match="did you mean reward/mean"):
    writers.write(0, {"completion/length_max": 3, "reward/mea": 1.0})
  writers.close()
  assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_steps_do_not_go_back_without_rewind(tmp_path):
  with Writers(tmp_path, ["jsonl"]) as writers:
    writers.write(4, {"reward/mean": 0})
    with pytest.raises(ValueError, match="step 3 after step 4"):
      writers.write(3, {"reward/mean": 0})


def test_a_resumed_run_writes_what_an_uninterrupted_one_does(tmp_path):
  def value(step):
    return {"reward/mean": step / 8}

  with Writers(tmp_path / "whole", ["jsonl"]) as writers:
    for step in range(6):
      writers.write(step, value(step))
  with Writers(tmp_path / "cut", ["jsonl"]) as writers:
    for step in range(5):
      writers.write(step, value(step))
  file = tmp_path / "cut" / "metrics.jsonl"
  with file.open("a") as f:
    f.write('{"reward/mean": 0.6')  # killed while writing
  with Writers(tmp_path / "cut", ["jsonl"]) as writers:
    writers.rewind(3)  # the checkpoint was older than the metrics
    for step in range(3, 6):
      writers.write(step, value(step))
  assert file.read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()


def test_read_metrics_joins_rows_of_one_step_and_refuses_garbage(tmp_path):
  file = tmp_path / "m.jsonl"
  file.write_text('{"step": 0, "a": 1}\n{"step": 0, "b": null}\n{"step": 1, "a": 2}\n{"st')
  assert read_metrics(file) == [{"step": 0, "a": 1, "b": None}, {"step": 1, "a": 2}]
  file.write_text('{"step": 0}\nnot json\n{"step": 1}\n')
  with pytest.raises(ValueError, match="line 2"):
    read_metrics(file)


def _events(folder):
  """Event protos of all files, in order: a record is length (8), crc (4), data, crc (4)."""
  for file in sorted(folder.iterdir()):
    data, at = file.read_bytes(), 0
    while at < len(data):
      length = int.from_bytes(data[at : at + 8], "little")
      event = event_pb2.Event()
      event.ParseFromString(data[at + 12 : at + 12 + length])
      yield event
      at += length + 16


def test_tensorboard_events(tmp_path):
  with Writers(tmp_path, ["tensorboard"]) as writers:
    writers.write(7, {"reward/mean": 0.5, "tokens/generated": 12})
  events = _events(tmp_path / "tensorboard")
  scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
  assert scalars == [(7, "reward/mean", 0.5), (7, "tokens/generated", 12.0)]


def test_tensorboard_is_told_of_a_rewind(tmp_path):
  with Writers(tmp_path, ["tensorboard"]) as writers:
    writers.rewind(3)
    writers.write(3, {"reward/mean": 0.5})
  start = event_pb2.SessionLog.START
  events = _events(tmp_path / "tensorboard")
  assert [e.step for e in events if e.session_log.status == start] == [3]


def test_wandb_gets_the_same_numbers(tmp_path, monkeypatch):
  calls = []
  run = types.SimpleNamespace(
    log=lambda values: calls.append(values),
    define_metric=lambda *args, **kwargs: None,
    finish=lambda: calls.append("finish"),
  )
  wandb = types.SimpleNamespace(init=lambda **kwargs: calls.append(kwargs["config"]) or run)
  monkeypatch.setitem(sys.modules, "wandb", wandb)
  with Writers(tmp_path, ["wandb"], config={"seed": 1}) as writers:
    writers.write(2, {"reward/mean": 0.5})
  assert calls == [{"seed": 1}, {"reward/mean": 0.5, "step": 2}, "finish"]


def test_wandb_that_is_not_installed(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(ImportError, match="pip install wandb"):
    Writers(tmp_path, ["jsonl", "wandb"])


def test_an_unknown_logger(tmp_path):
  with pytest.raises(ValueError, match="did you mean tensorboard"):
    Writers(tmp_path, ["tensorbord"])


class _Terminal(io.StringIO):
  encoding = "utf-8"

  def isatty(self):
    return True


def test_progress_is_a_line_a_step_without_a_terminal(monkeypatch):
  clock = iter([0.0, 60.0, 62.0, 64.0])  # the first step compiles for a minute
  monkeypatch.setattr(metrics_lib.time, "monotonic", lambda: next(clock))
  stream = io.StringIO()
  with Progress(100, start=9, stream=stream) as progress:
    for step in (10, 11, 12):
      progress.update(step, {"reward/mean": 0.25, "perf/tokens_per_second": 1234.4})
  assert stream.getvalue().splitlines()[-1] == (
    "step  12/100  reward 0.250  tokens/s 1,234  ETA 2m56s"  # 88 steps of 2 s
  )


def test_progress_on_a_terminal():
  stream = _Terminal()
  with Progress(100, stream=stream) as progress:
    progress.update(12, {"reward/mean": 0.25})
    progress.print("a [bold]literal[/bold] [/x] line")
  assert "12/100" in stream.getvalue()
  assert "reward 0.250" in stream.getvalue()
  assert "a [bold]literal[/bold] [/x] line" in stream.getvalue()


def test_a_terminal_shows_a_table_of_the_last_step_and_of_means(monkeypatch):
  monkeypatch.setenv("COLUMNS", "100")
  monkeypatch.setenv("NO_COLOR", "1")
  stream = _Terminal()
  with Progress(30, stream=stream) as progress:
    for step in range(24):  # the mean of the last 20 is that of 4 ... 23
      row = {"completion/length_mean": float(step), "group/frac_zero_std": 0.25}
      progress.update(
        step + 1, row | ({"eval/b/pass@1": 0.5} if step == 20 else {}), ["collapse", "stale"]
      )
  screen = re.sub(r"\x1b\[[\d;?]*\w", "", stream.getvalue())
  words = [line.split() for line in screen.splitlines()]
  assert ["accuracy", "0.500", "0.500", "length", "23", "14", "entropy", "-", "-"] in words
  assert any(line[:4] == ["no", "signal", "25%", "25%"] for line in words)
  assert words[-1] == ["warnings:", "collapse,", "stale"]
  assert max(map(len, screen.splitlines())) <= 100


def test_samples_cannot_break_the_screen():
  stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
  with Progress(10, stream=stream) as progress:
    samples = [Sample("1+1=", "\x1b[2J2\ud800é\nsecond", 1.0, answer="2", rule="number")]
    progress.print_samples(3, samples)
  stream.seek(0)
  assert stream.read() == (
    "--- step 3: reward 1, answer 2, number\n"
    "prompt   | 1+1=\n"
    "response | \\x1b[2J2\\ud800\\xe9\n"
    "         | second\n"
  )


def test_before_after_table():
  table = before_after_table({"eval/a/pass@1": 0.25, "x": 1.0}, {"eval/a/pass@1": 0.75, "y": 0.5})
  assert table.splitlines() == [
    "                before    after   change",
    "eval/a/pass@1    0.250    0.750   +0.500",
    "x                1.000        -        -",
    "y                    -    0.500        -",
  ]


def test_compile_counter_counts_programs_not_calls():
  add = jax.jit(lambda x: x * 3 + 1)
  x, longer = jnp.ones(3), jnp.ones(4)
  with CompileCounter() as counter:
    add(x)
    first = counter.count
    add(x)
    assert counter.count == first == 1
    jax.jit(lambda x: x + 5).lower(x)  # traced only
    assert counter.count == 1
    add(longer)
    assert counter.count == 2
  add(jnp.ones(5))
  assert counter.count == 2


def test_smooth_is_the_mean_of_neighbours():
  values = np.array([1.0, 2.0, 6.0, 3.0])
  np.testing.assert_allclose(plots.smooth(values, 3), [1.5, 3.0, 11 / 3, 4.5])


@pytest.mark.parametrize("steps", [1, 2, 40])
def test_reward_curve_draws_any_number_of_points(tmp_path, steps):
  with Writers(tmp_path, ["jsonl"]) as writers:
    for step in range(steps):
      row = {"reward/mean": step / steps}
      if step % 10 == 0:
        row |= {"eval/test/pass@1": step / steps, "eval/test/add/pass@1": 0.5}
      writers.write(step, row)
  png = plots.reward_curve(tmp_path / "metrics.jsonl", tmp_path / "docs" / "curve.png")
  data = png.read_bytes()
  assert data[:8] == b"\x89PNG\r\n\x1a\n"
  assert int.from_bytes(data[16:20], "big") == round(7.2 * 160)


def test_reward_curve_of_a_file_without_rewards(tmp_path):
  (tmp_path / "m.jsonl").write_text(json.dumps({"step": 0, "reward/mean": None}) + "\n")
  with pytest.raises(ValueError, match="nothing to draw"):
    plots.reward_curve(tmp_path / "m.jsonl", tmp_path / "m.png")


def test_null_is_left_out_of_a_curve():
  rows = [{"step": 0, "a": 1.0}, {"step": 1, "a": None}, {"step": 2}, {"step": 5, "a": 2.0}]
  steps, values = plots.curve(rows, "a")
  assert steps.tolist() == [0, 5] and values.tolist() == [1.0, 2.0]
