"""Whole runs on a table of logits: kills, interrupts, extensions and numbers that are not finite."""

import itertools
import json
import os
import re
import signal
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.schedule.bounded_staleness import bounded_staleness
from rlvr_jax.tasks.arithmetic import CharTokenizer, arithmetic
from rlvr_jax.tasks.worker import descendants
from rlvr_jax.train import debug, loop
from rlvr_jax.train.config import METRICS_FILE, Config
from rlvr_jax.train.metrics import find, read_metrics
from tests import toy

pytestmark = pytest.mark.usefixtures("compiled_once")
PLACES, NEW = 16, 3  # of a prompt, of a response
POLICY = toy.table_policy(CharTokenizer().vocab_size, PLACES + NEW)
TASK = arithmetic(operations=["copy"], train_size=11, eval_size=5)
# Something to learn: the task itself is beyond a table of logits, and its rewards are all 0.
RECIPE = grpo()._replace(
  reward=lambda rows, knobs: (rows.tokens.sum(1) % 3 == 0).astype(jnp.float32)
)
PER_STEP = 16  # calls of the tokenizer's decode: one a row


def _config(**changes):
  return Config(
    **{
      "steps": 6, "prompts": 4, "budget": 16, "max_prompt_length": PLACES, "max_new_tokens": NEW,
      "learning_rate": 0.05, "eval_every": 3, "eval_prompts": 5, "checkpoint_every": 2,
      "sample_every": 0, "loggers": ("jsonl",), "verifier_workers": 1, **changes,
    }
  )  # fmt: skip


class Tripwire(CharTokenizer):
  """Calls `action` when the training completion number `at` is read: in the middle of a step."""

  def __init__(self, at, action):
    super().__init__()
    self.left, self.action = at, action

  def decode(self, ids):
    self.left -= 1
    if self.left == 0:
      self.action()
    return super().decode(ids)


def _train(
  workdir,
  *,
  tokenizer=None,
  recipe=RECIPE,
  task=TASK,
  scale=1.0,
  dump=None,
  profile=range(0),
  **changes,
):
  params = {k: v * scale for k, v in POLICY.init(jax.random.key(0)).items()}
  tokenizer = tokenizer or task.tokenizer
  return loop.train(
    _config(**changes), POLICY, params, tokenizer, recipe, task, workdir, dump=dump, profile=profile
  )


def _replay(workdir, step, *, recipe=RECIPE, **options):
  params = POLICY.init(jax.random.key(1))  # not those of the run
  return loop.replay(
    _config(), POLICY, params, TASK.tokenizer, recipe, TASK, workdir, step, **options
  )


def _rows(workdir):
  """What metrics.jsonl holds, without what depends on the clock or the process."""
  rows = [json.loads(line) for line in (workdir / METRICS_FILE).read_text().splitlines()]
  return [{k: v for k, v in row.items() if k.split("/")[0] not in ("time", "perf")} for row in rows]


def _same(a, b):
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """(outcome, workdir) of six steps at a stretch."""
  workdir = tmp_path_factory.mktemp("whole")
  return _train(workdir), workdir


def _die():
  raise RuntimeError("killed")


# --------------------------------------------------------------------------------------------------
# What a run leaves behind


def test_metrics_of_a_run(whole):
  outcome, workdir = whole
  rows = read_metrics(workdir / METRICS_FILE, merge=False)
  assert [row["step"] for row in rows] == list(range(7))  # the last is the final evaluation
  for row in rows:
    for name, value in row.items():
      if name != "step":
        find(name)
        assert value is not None, name
  steps = rows[:-1]
  total = ledger.totals(outcome.state.ledger)
  assert {k: steps[-1][f"tokens/{k}"] for k in total if k != "evaluated"} == {
    k: v for k, v in total.items() if k != "evaluated"
  }
  assert not ledger.balance(outcome.state.ledger).any()
  for a, b in itertools.pairwise(steps):
    for k in total:
      assert a[f"tokens/{k}"] <= b[f"tokens/{k}"]
  assert int(outcome.state.learner.step) == 6
  # T34: sampler and learner agree at every step.
  assert max(row["mismatch/logp_diff_max"] for row in steps) < 1e-5
  # Of 5 prompts before steps 0 and 3, of 16 rows in every step; of 5 in the end.
  assert [row["verifier/verified"] for row in rows] == [21, 37, 53, 74, 90, 106, 111]
  # 24 prompts of a table of 11.
  assert [row["train/epoch"] for row in steps] == [0, 0, 1, 1, 1, 2]


def test_t66_evaluations_happen_when_asked(whole):
  outcome, workdir = whole
  evaluated = [row["step"] for row in _rows(workdir) if "eval/heldout/pass@1" in row]
  assert evaluated == [0, 3, 6]
  first, *_, last = _rows(workdir)
  assert outcome.before["eval/heldout/pass@1"] == first["eval/heldout/pass@1"]
  assert outcome.after["eval/heldout/pass@1"] == last["eval/heldout/pass@1"]
  spent = outcome.state.ledger["evaluated"]
  assert spent[:-1].sum() == 0 < spent[-1] <= 3 * 5 * NEW  # of no training prompt
  assert set(first) - set(last) > {"reward/mean"}


def test_no_evaluation_when_none_is_wanted(tmp_path, whole):
  outcome = _train(tmp_path, eval_every=0)
  assert outcome.before == outcome.after == {}
  _same(outcome.state.learner, whole[0].state.learner)
  assert outcome.state.ledger["evaluated"].sum() == 0
  assert [row["step"] for row in _rows(tmp_path)] == list(range(6))


def test_a_run_ends_with_the_step_that_reaches_its_tokens(tmp_path, whole):
  spent = [row["tokens/generated"] for row in _rows(whole[1])]
  outcome = _train(tmp_path, max_generated_tokens=spent[1] + 1)
  assert int(outcome.state.learner.step) == 3
  assert [row["step"] for row in _rows(tmp_path)] == [0, 1, 2, 3]
  assert outcome.after
  _same(_train(tmp_path).state, whole[0].state)


def test_every_second_of_a_step_belongs_to_a_phase(whole):
  rows = read_metrics(whole[1] / METRICS_FILE)[:-1]
  own = {"rollout", "verify", "learn", "records"}
  for step, row in enumerate(rows):
    phases = {
      name.removeprefix("time/").removesuffix("_seconds"): value
      for name, value in row.items()
      if name.startswith("time/") and name != "time/step_seconds"
    }
    # Writing and saving come after the row of their step, so they are in the next.
    expected = own | {"checkpoint"} if step else own - {"records"}
    assert phases.keys() - {"eval"} == expected
    assert sum(v for k, v in phases.items() if k != "eval") == pytest.approx(
      row["time/step_seconds"]
    )


def test_the_clock_leaves_nothing_out(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(loop.time, "perf_counter", lambda: now[0])
  clock = loop.Clock()
  for seconds, name, parts in (
    (2, "eval", {}),
    (10, "rollout", {"verify": 3, "rollout": 6}),
    (5, "eval", {}),
  ):
    now[0] += seconds
    clock.lap(name, **parts)
  assert clock.take() == {"eval": 7, "verify": 3, "rollout": 7}
  assert clock.take() == {} and clock.total() == 17


# --------------------------------------------------------------------------------------------------
# Looking for a fault


def test_a_step_is_run_again_from_its_dump_bit_for_bit(tmp_path, whole):
  outcome = _train(tmp_path, dump=4)
  _same(outcome.state, whole[0].state)  # a dump changes nothing
  row = _rows(tmp_path)[4]
  for learn_only in (False, True):
    metrics = _replay(tmp_path, 4, learn_only=learn_only)
    assert metrics["same_batch"] and metrics["same_update"]
    assert metrics["policy/grad_norm"] == row["policy/grad_norm"]
  assert "reward/mean" not in metrics
  twice = RECIPE._replace(advantage=lambda rows: 2 * RECIPE.advantage(rows))
  other = _replay(tmp_path, 4, recipe=twice, learn_only=True)
  assert other["same_batch"] and not other["same_update"]
  with pytest.raises(ValueError, match=r"no dump of step 3 .*--dump=3 writes one"):
    _replay(tmp_path, 3)
  file = tmp_path / "dumps" / "4" / "batch.npz"
  with np.load(file) as arrays:
    changed = dict(arrays)
  changed["rows/tokens"][0, 0] += 1
  np.savez(file, **changed)
  with pytest.raises(ValueError, match=r"is not the batch that after\.json speaks of"):
    _replay(tmp_path, 4)


def test_rollouts_without_learning(tmp_path, whole):
  outcome = _train(tmp_path, debug="rollout", steps=2, eval_every=0)
  start = POLICY.init(jax.random.key(0))
  _same(outcome.state.learner.params, start)
  assert int(outcome.state.learner.step) == 2
  total = ledger.totals(outcome.state.ledger)
  assert total["generated"] > 0 == total["trained"]
  assert _rows(tmp_path)[0]["reward/mean"] == _rows(whole[1])[0]["reward/mean"]
  assert "policy/loss" not in _rows(tmp_path)[0]


def test_learning_from_mock_rollouts(tmp_path):
  mock = RECIPE._replace(rollout=debug.mock_rollout(median=2, spread=0))
  outcome = _train(tmp_path, recipe=mock, steps=2, eval_every=0)
  rows = _rows(tmp_path)
  assert [row["completion/length_mean"] for row in rows] == [2.0, 2.0]
  assert ledger.totals(outcome.state.ledger)["generated"] == 2 * 16 * 2
  assert int(outcome.state.learner.step) == 2


def test_a_trace_of_some_steps(tmp_path, capsys):
  _train(tmp_path, steps=3, eval_every=0, profile=range(1, 2))
  assert list((tmp_path / "trace").rglob("*.xplane.pb"))
  assert "trace of steps 1 to 1" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------
# Resuming


def test_t41_t42_a_run_that_is_extended_equals_one_at_a_stretch(tmp_path, whole):
  """Three steps, to their end, and then six: bit for bit, each step once in the metrics."""
  first = _train(tmp_path, steps=3, checkpoint_every=1)
  assert int(first.state.learner.step) == 3
  outcome = _train(tmp_path, steps=6, checkpoint_every=1)
  _same(outcome.state, whole[0].state)
  assert _rows(tmp_path) == _rows(whole[1])
  assert outcome.before == whole[0].before
  for one in (first, outcome, whole[0]):  # else a run that is resumed would compile all it has anew
    arrays = [x for x in jax.tree.leaves(one.state) if isinstance(x, jax.Array)]
    assert all(x.committed for x in arrays)


@pytest.mark.parametrize(("step", "resumed"), [(0, None), (3, 2)])
def test_t40_t44_a_killed_run_resumes_bit_for_bit(tmp_path, whole, capsys, step, resumed):
  """In the middle of the first step, with no checkpoint; and of the fourth, one step after one."""
  evaluated = 5 if step < 3 else 10
  wire = Tripwire(evaluated + step * PER_STEP + 7, _die)
  with pytest.raises(RuntimeError, match="killed"):
    _train(tmp_path, tokenizer=wire)
  assert len(_rows(tmp_path)) == step
  capsys.readouterr()
  outcome = _train(tmp_path)
  out = capsys.readouterr().out
  assert f"resumed from step {resumed}\n" in out if resumed else "resumed" not in out
  _same(outcome.state, whole[0].state)
  assert _rows(tmp_path) == _rows(whole[1])


def test_a_run_on_a_stream_of_prompts_resumes_where_the_stream_was(tmp_path):
  options = {"candidates": 5, "source_weights": {TASK.sources[0]: 1.0}, "eval_every": 0}
  whole = _train(tmp_path / "whole", **options)
  drawn = int(whole.state.offered[0])
  assert drawn >= 6 * 5
  with pytest.raises(RuntimeError, match="killed"):
    _train(tmp_path / "killed", tokenizer=Tripwire(3 * PER_STEP + 7, _die), **options)
  again = _train(tmp_path / "killed", **options)
  _same(again.state, whole.state)
  rows = _rows(tmp_path / "whole")
  assert _rows(tmp_path / "killed") == rows
  assert rows[5]["train/epoch"] == drawn // 11


def test_a_finished_run_does_nothing_more(tmp_path, whole, capsys):
  first = _train(tmp_path, steps=2)
  again = _train(tmp_path, steps=2)
  _same(again.state.learner, first.state.learner)
  assert again.after == first.after and again.before == first.before
  assert [row["step"] for row in _rows(tmp_path)] == [0, 1, 2]
  rows = (tmp_path / METRICS_FILE).read_text().splitlines(keepends=True)
  (tmp_path / METRICS_FILE).write_text("".join(rows[1:]))  # lost with the machine, say
  assert "WARNING: metrics.jsonl lacks" not in capsys.readouterr().out
  _train(tmp_path, steps=2)
  assert "WARNING: metrics.jsonl lacks 1 of the 2 steps" in capsys.readouterr().out
  with pytest.raises(ValueError, match="the checkpoint is at step 2, past steps = 1"):
    _train(tmp_path, steps=1)


def test_t46_a_resume_with_other_prompts_is_refused(tmp_path):
  _train(tmp_path, steps=1, eval_every=0)
  other = arithmetic(operations=["copy"], train_size=12, eval_size=5)
  with pytest.raises(ValueError, match=r"checkpoint 1: .*\[11\], this run needs .*\[12\]"):
    _train(tmp_path, task=other, eval_every=0)


# --------------------------------------------------------------------------------------------------
# Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_after_the_step_and_resumes(tmp_path, whole, number, capsys):
  handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
  wire = Tripwire(5 + PER_STEP + 3, lambda: signal.raise_signal(number))  # in the second step
  with pytest.raises(loop.Interrupted, match="stopped after step 1; the same command resumes"):
    _train(tmp_path, tokenizer=wire, checkpoint_every=0)
  assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
  assert "stopping after this step" in capsys.readouterr().out
  assert [row["step"] for row in _rows(tmp_path)] == [0, 1]
  outcome = _train(tmp_path, checkpoint_every=0)
  assert "resumed from step 2" in capsys.readouterr().out
  _same(outcome.state, whole[0].state)
  assert _rows(tmp_path) == _rows(whole[1])


def test_a_signal_after_the_last_step_stops_too(tmp_path, monkeypatch):
  """Else a sweep would go on; what the run still had to do is done when it is started again."""
  offered, best = [], "eval/heldout/pass@1"
  monkeypatch.setattr(
    loop.Checkpointer, "offer", lambda self, state, *_: offered.append(int(state.learner.step))
  )
  wire = Tripwire(5 + PER_STEP + 2, lambda: signal.raise_signal(signal.SIGTERM))
  with pytest.raises(loop.Interrupted, match="after the last step; the same command ends the run"):
    _train(tmp_path, tokenizer=wire, steps=1, keep_best=best)
  assert _train(tmp_path, steps=1, keep_best=best).after
  assert [row["step"] for row in _rows(tmp_path)] == [0, 1]
  assert offered == [0, 1, 1]  # what the last evaluation says may be the best


def test_a_signal_in_the_middle_of_a_print_is_heard(monkeypatch):
  def write(text):
    raise RuntimeError("reentrant call")

  with loop._StopSignals() as stop:
    monkeypatch.setattr(sys.stdout, "write", write)
    signal.raise_signal(signal.SIGTERM)
  assert stop.requested


def test_a_second_ctrl_c_stops_at_once(tmp_path):
  def twice():
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)

  # A shell starts its background jobs with SIGINT ignored.
  old = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    with pytest.raises(KeyboardInterrupt):
      _train(tmp_path, tokenizer=Tripwire(8, twice))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
  finally:
    signal.signal(signal.SIGINT, old)


# --------------------------------------------------------------------------------------------------
# Numbers that are not finite


def test_losses_that_are_not_finite_stop_the_run(tmp_path):
  """After three updates in a row; parameters stay, the batch is kept to be looked at."""
  broken = RECIPE._replace(advantage=lambda rows: jnp.where(rows.loss_mask, jnp.nan, 0.0))
  with pytest.raises(loop.NotFinite, match=r"3 updates in a row .*bad_batch_2\.npz") as error:
    _train(tmp_path, recipe=broken, eval_every=0)
  assert "learning_rate" in str(error.value)
  rows = _rows(tmp_path)
  assert [row["train/skipped_steps"] for row in rows] == [1, 2, 3]
  assert rows[0]["policy/loss"] is None  # JSON has no NaN
  with np.load(tmp_path / "bad_batch_2.npz") as batch:
    assert batch["tokens"].shape == (16, PLACES + NEW)
    assert batch["valid"].all()


def test_parameters_that_are_not_finite_stop_the_run(tmp_path, capsys):
  """Nothing can be sampled from them: rows are errors, and no loss would ever tell."""
  with pytest.raises(loop.NotFinite, match=r"2 updates in a row"):
    _train(tmp_path, scale=jnp.nan, max_bad_steps=2, eval_every=0)
  assert (tmp_path / "bad_batch_1.npz").exists()
  assert [row["completion/error_frac"] for row in _rows(tmp_path)] == [1.0, 1.0]
  assert "step 0: logits, loss or gradient are not finite" in capsys.readouterr().out


def test_good_steps_in_between_start_the_count_again(tmp_path):
  """Bad updates at steps 0, 1, 3 and 4 of 6: never three in a row."""
  bad = lambda rows: (rows.version.max() % 3) < 2
  broken = RECIPE._replace(
    advantage=lambda rows: RECIPE.advantage(rows) + jnp.where(bad(rows), jnp.nan, 0.0)
  )
  outcome = _train(tmp_path, recipe=broken, eval_every=0)
  assert int(outcome.state.learner.skipped) == 4
  assert int(outcome.state.learner.step) == 6
  assert np.isfinite(outcome.state.learner.params["table"]).all()


def test_a_verifier_that_dies_in_the_middle_of_a_run_changes_nothing(tmp_path, whole, capsys):
  def kill():
    for process in descendants(os.getpid()):
      os.kill(process, signal.SIGKILL)

  outcome = _train(tmp_path, tokenizer=Tripwire(5 + PER_STEP + 3, kill))
  assert "'restarts': 1" in capsys.readouterr().out
  assert [row["verifier/restarts"] for row in _rows(tmp_path)] == [0, *[1] * 6]
  counted = whole[0].state.verifier + np.eye(7, dtype=int)[-1]  # the last of COUNTERS
  _same(outcome.state, whole[0].state.replace(verifier=counted))


def test_no_clock_that_can_be_set_is_read():
  root = Path(loop.__file__).parents[2]
  files = [*(root / "rlvr_jax" / "train").rglob("*.py"), *(root / "launch").glob("*.py")]
  assert not [f for f in files if re.search(r"\b(time\.time|datetime\.now)\(", f.read_text())]


# --------------------------------------------------------------------------------------------------
# The screen, sizes


def test_responses_are_shown(tmp_path, capsys):
  _train(tmp_path, steps=2, sample_every=2, num_samples_shown=3, eval_every=0)
  out = capsys.readouterr().out
  assert out.count("--- step 0: reward") == 3 and "--- step 1" not in out
  assert out.count("response | ") >= 3
  shown = [line.removeprefix("prompt   | ") for line in out.splitlines() if "prompt   | " in line]
  answers = {e.prompt: e.answer for e in TASK.train}
  assert set(shown) <= set(answers)
  assert f"answer {answers[shown[0]]}" in out


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"prompts": 12, "budget": 16}, "a round needs 12 prompts, the table has 11"),
    ({"bin_tokens": 8}, "raise bin_tokens to at least 18"),
    ({"max_prompt_length": 2}, "more than max_length=2"),
    ({"eval_samples": 17, "budget": 16}, None),
  ],
)  # fmt: skip
def test_sizes_that_do_not_fit_are_refused_at_once(tmp_path, changes, match):
  if match is None:  # evaluation takes the room it needs
    outcome = _train(tmp_path, steps=1, **changes)
    assert "eval/heldout/maj@17" in outcome.after
  else:
    with pytest.raises(ValueError, match=match):
      _train(tmp_path, **changes)


# --------------------------------------------------------------------------------------------------
# Batches that are collected ahead

AHEAD = RECIPE._replace(schedule=bounded_staleness(bound=1))


def test_one_step_off(tmp_path, whole):
  """Batch b comes from the parameters of version b - 1: the first two from those of the start, and what is
  trained is one version old from the second on. A resumed run has the batch that lay ready."""
  at_once = _train(tmp_path / "once", recipe=AHEAD, eval_every=0)
  assert [row["rollout/staleness_max"] for row in _rows(tmp_path / "once")] == [0, 1, 1, 1, 1, 1]
  books = at_once.state.ledger
  assert len(at_once.state.queue) == 1
  # Six batches have been trained, seven generated.
  assert books["generated"].sum() > whole[0].state.ledger["generated"].sum()
  _train(tmp_path / "parts", recipe=AHEAD, eval_every=0, steps=2)
  resumed = _train(tmp_path / "parts", recipe=AHEAD, eval_every=0)
  _same(resumed.state, at_once.state)
  first, second = _rows(tmp_path / "once"), _rows(tmp_path / "parts")
  assert [row["policy/loss"] for row in first] == [row["policy/loss"] for row in second]


def test_what_cannot_be_collected_ahead(tmp_path):
  with pytest.raises(ValueError, match="collects nothing ahead"):
    _train(tmp_path, recipe=AHEAD, dump=1)
  with pytest.raises(ValueError, match="collects nothing ahead"):
    _train(tmp_path, recipe=AHEAD, debug="rollout")
