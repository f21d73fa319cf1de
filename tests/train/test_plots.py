"""Numbers of a run that are drawn, and what the pictures show."""

import json

import matplotlib.figure
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.train import plots
from rlvr_jax.train.metrics import Writers
from rlvr_jax.train.records import Records, Rollout


def _report(*values, name="heldout"):
  metrics = {
    f"pass@{2**i}": {"value": v, "low": v - 0.1, "high": v + 0.05} for i, v in enumerate(values)
  }
  metrics["maj@2"] = {"value": 9.0, "low": 9.0, "high": 9.0}
  return {"sets": {name: {"all": {"metrics": metrics}}}}


def test_pass_at_k_draws_each_set_of_each_report(tmp_path, monkeypatch):
  drawn = []
  save = matplotlib.figure.Figure.savefig
  monkeypatch.setattr(
    matplotlib.figure.Figure,
    "savefig",
    lambda self, *a, **k: drawn.append(self) or save(self, *a, **k),
  )
  reports = {"a": _report(0.2, 0.3, 0.5), "b": _report(0.4, 0.6), "c": _report(0.7, name="other")}
  png = plots.pass_at_k(reports, tmp_path / "new" / "pass.png", title="t")
  assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
  (axes,) = drawn[0].axes
  lines = {line.get_label(): line.get_xydata().tolist() for line in axes.get_lines()}
  assert lines == {
    "a: heldout": [[1, 0.2], [2, 0.3], [4, 0.5]],
    "b: heldout": [[1, 0.4], [2, 0.6]],
    "c: other": [[1, 0.7]],
  }
  band = axes.collections[0].get_paths()[0].vertices
  assert band[:, 1].min() == pytest.approx(0.1) and band[:, 1].max() == pytest.approx(0.55)
  assert len({line.get_color() for line in axes.get_lines()}) == 3
  assert [text.get_text() for text in axes.get_legend().get_texts()] == list(lines)


def test_nothing_to_draw(tmp_path):
  with pytest.raises(ValueError, match="no evaluation to draw"):
    plots.pass_at_k({}, tmp_path / "x.png")


ROWS = [
  {"step": 0, "tokens/generated": 10, "time/step_seconds": 2.0, "r": 1.0, "eval/t/pass@1": 0.1},
  {"step": 1, "tokens/generated": 30, "time/step_seconds": 3.0, "r": None, "eval/t/pass@1": 0.2},
  {"step": 2, "tokens/generated": 60, "time/step_seconds": 4.0, "r": float("nan")},
  {"step": 3, "tokens/generated": 60, "eval/t/pass@1": 0.3},  # the last evaluation
  {"step": 4, "tokens/generated": 80, "time/step_seconds": 1.0, "r": 5.0},
]


@pytest.mark.parametrize(
  ("along", "ended", "began"),
  [
    ("steps", [0, 4], [0, 1, 3]),
    ("tokens", [10, 80], [0, 10, 60]),
    ("seconds", [2, 10], [0, 2, 9]),
  ],
)
def test_a_step_lies_where_it_ended_and_its_evaluation_where_it_began(along, ended, began):
  x, y = plots.curve(ROWS, "r", along)
  assert x.tolist() == ended and y.tolist() == [1.0, 5.0]
  x, y = plots.curve(ROWS, "eval/t/pass@1", along)
  assert x.tolist() == began and y.tolist() == [0.1, 0.2, 0.3]
  assert len(plots.curve([], "r", along)[0]) == 0


def test_the_stack_is_all_that_came_in():
  went = {"batched": 70, "rejected": 20, "surplus": 15, "banked": 5, "pruned": 6, "probed": 4}
  entries = went | {"generated": 100, "reused": 20, "trained": 140}
  row = {"step": 3} | {f"tokens/{name}": n for name, n in entries.items()}
  steps, parts = plots.ledger_stack([{"step": 0}, row])
  assert steps.tolist() == [3]
  assert sum(parts[name][0] for name in plots.FATES) == 120  # generated + reused
  assert parts["trained"] == 70 and parts["in the batch, without weight"] == 0  # two updates
  books = ledger.new(0) | {name: np.array([entries.get(name, 0)]) for name in ledger.ENTRIES}
  assert ledger.balance(books) == 0  # these are the fates that the ledger knows


def test_bins_hold_every_value():
  for values in (
    np.array([3, 3, 9, 100]),
    np.array([0.0, 1.0, 0.5]),
    np.array([2.0, np.nan]),
    np.array([7]),
  ):
    edges = plots.bin_edges(values, bins=10)
    assert len(edges) <= 11 and len(set(np.round(np.diff(edges), 9))) == 1
    finite = values[np.isfinite(values)]
    assert np.histogram(finite, edges)[0].sum() == len(finite)
  assert plots.bin_edges(np.array([0, 3])).tolist() == [-0.5, 0.5, 1.5, 2.5, 3.5]
  assert len(plots.bin_edges(np.zeros(0))) == 2


def _run(**columns):
  size = len(columns["step"])
  blank = {"reward": np.zeros(size), "length": np.zeros(size, int), "correct": np.zeros(size)}
  made = blank | {"prompt": np.zeros(size, int)} | {k: np.asarray(v) for k, v in columns.items()}
  return plots.Run("r", {}, [], made)


def test_histograms_are_of_quarters():
  run = _run(step=[0, 1, 2, 3, 3], length=[1, 1, 2, 2, 1])
  counts = plots.histogram(run, "length", np.array([0.5, 1.5, 2.5]))
  assert counts.tolist() == [[1, 0], [1, 0], [0, 1], [1, 1]]
  run = _run(step=[5], reward=[np.nan])
  assert plots.histogram(run, "reward", np.array([0.0, 1.0])).sum() == 0


def test_solve_rates_by_plain_python():
  rng = np.random.default_rng(0)
  step, prompt = rng.integers(10, 50, 300), rng.integers(0, 12, 300) * 7
  correct = (rng.random(300) < prompt / 80).astype(float)
  heat = plots.solve_rates(_run(step=step, prompt=prompt, correct=correct), prompts=5, columns=8)
  width = heat.edges[1] - heat.edges[0]
  assert heat.edges[0] == step.min() and heat.edges[-1] > step.max() and len(heat.edges) <= 9
  visits = {p: len({s for s, q in zip(step, prompt) if q == p}) for p in set(prompt.tolist())}
  often = sorted(visits, key=lambda p: (-visits[p], p))[:5]
  mean = lambda p: correct[prompt == p].mean()
  assert heat.labels.tolist() == sorted(often, key=lambda p: -mean(p)) and heat.total == len(visits)
  for i, p in enumerate(heat.labels):
    for j in range(len(heat.edges) - 1):
      mine = correct[(prompt == p) & ((step - step.min()) // width == j)]
      expected = mine.mean() if len(mine) else np.nan
      np.testing.assert_allclose(heat.values[i, j], expected, equal_nan=True)


def test_shares_of_prompts_by_hand():
  # Step 0: one prompt solved once in two rows, one never. Step 1: nothing. Step 2: one always.
  run = _run(step=[0, 0, 0, 0, 2, 2], prompt=[4, 4, 9, 9, 4, 4], correct=[1, 0, 0, 0, 1, 1])
  heat = plots.solve_shares(run)
  assert heat.labels.tolist() == [1.0, 0.5, 0.0]  # groups of two
  np.testing.assert_array_equal(heat.values, [[0, np.nan, 1], [0.5, np.nan, 0], [0.5, np.nan, 0]])


def _workdir(path, steps, seed):
  with Writers(path, ["jsonl"]) as writers, Records(path) as records:
    for step in range(steps):
      row = {
        "reward/mean": step / 10,
        "tokens/generated": 40 * (step + 1),
        "tokens/batched": 40 * (step + 1),
      }
      writers.write(step, row | {"time/step_seconds": 1.0})
      records.write(
        step,
        [
          Rollout(i % 3, "p", "c", float(i > seed), float(i > seed), 3 + i, "eos") for i in range(6)
        ],
      )
  return path


def test_pictures_of_runs(tmp_path, monkeypatch):
  drawn = {}
  save = matplotlib.figure.Figure.savefig
  monkeypatch.setattr(
    matplotlib.figure.Figure,
    "savefig",
    lambda self, path, **k: (
      drawn.update({path.name: self}) or save(self, path, **(k | {"dpi": 20}))
    ),
  )
  runs = [plots.read_run(_workdir(tmp_path / name, 12, i)) for i, name in enumerate(("_a$", "b"))]
  runs[1].rows[3]["of/another/version"] = 1.0
  paths = plots.save_pictures(runs, tmp_path / "png", along="tokens")
  assert {path.name for path in paths} == {
    "reward_mean.png", "of_another_version.png", "histogram_length.png", "histogram_reward.png",
    *(f"{kind}_{run}.png" for kind in ("ledger", "solve_rates", "shares") for run in ("_a_", "b")),
  }  # fmt: skip
  assert all(path.read_bytes()[:4] == b"\x89PNG" for path in paths)
  (axes,) = drawn["reward_mean.png"].axes
  assert axes.get_xlabel() == "response tokens generated" and axes.get_ylabel() == "reward"
  raw = axes.get_lines()[0].get_xydata()
  np.testing.assert_allclose(raw, [[40 * (i + 1), i / 10] for i in range(12)])
  assert [t.get_text() for t in axes.get_legend().get_texts()] == [r"a\$", "b"]
  with pytest.raises(ValueError, match="unknown axis 'token'; did you mean tokens"):
    plots.save_pictures(runs, tmp_path, along="token")


def test_reading_what_is_no_run(tmp_path):
  with pytest.raises(ValueError, match=r"has no metrics\.jsonl"):
    plots.read_run(tmp_path)
  (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "x": 1}) + "\n" + '{"st')
  assert plots.read_run(tmp_path).rows == [{"step": 0, "x": 1}]
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"cannot read .*config\.json"):
    plots.read_run(tmp_path)
