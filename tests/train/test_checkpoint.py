"""Checkpoints: what is restored is what was saved, bit for bit, or an error that names the leaf."""

import contextlib
import dataclasses
import errno
import resource
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core.types import plain_table
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train import checkpoint as checkpoint_lib
from rlvr_jax.train.checkpoint import Checkpointer, Due
from rlvr_jax.train.config import Config
from rlvr_jax.train.state import init_state

RECIPE = grpo()


def _state(step=3, num_prompts=5, width=4, dtype=jnp.float32, optimizer=None, seed=0):
  """A state whose numbers are all different from what a fresh one holds."""
  key = jax.random.key(seed)
  params = {"a": jax.random.normal(key, (width, 2), dtype), "b": {"c": jnp.arange(3.0)}}
  state = init_state(
    RECIPE,
    optimizer or optax.adam(1e-3),
    params,
    table=plain_table(num_prompts),
    num_places=8,
    seed=seed,
  )
  learner = state.learner.replace(
    step=jnp.asarray(step, jnp.int32),
    skipped=jnp.asarray(2, jnp.int32),
    opt_state=jax.tree.map(lambda x: x + 1, state.learner.opt_state),
  )
  books = {k: v + 2**40 + i for i, (k, v) in enumerate(state.ledger.items())}
  collector = state.collector.replace(
    visited=state.collector.visited.at[1].set(True), epoch=jnp.asarray(7, jnp.int32)
  )
  return state.replace(learner=learner, collector=collector, ledger=books)


def _same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
    assert type(x) is type(y) and x.dtype == y.dtype and x.shape == y.shape
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_round_trip(tmp_path, dtype):
  """Into a fresh state: parameters, moments, step, beliefs, and a ledger past 2**31 tokens."""
  saved = _state(dtype=dtype)
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    assert checkpoints.latest() is None
    checkpoints.save(saved)
    assert checkpoints.latest() == 3
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    restored = checkpoints.restore(_state(step=0, dtype=dtype, seed=1))
  _same(restored, saved)
  assert restored.ledger["generated"].dtype == np.int64
  assert restored.ledger["generated"].min() > 2**31


def test_nothing_to_restore(tmp_path):
  with (
    Checkpointer(tmp_path, keep=1) as checkpoints,
    pytest.raises(ValueError, match="no checkpoint"),
  ):
    checkpoints.restore(_state())


def test_the_newest_are_kept(tmp_path):
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    for step in (1, 2, 3, 4):
      checkpoints.save(_state(step=step, seed=step))
    checkpoints.save(_state(step=4, seed=9))  # that step is saved already: left as it is
    assert checkpoints.latest() == 4
    _same(checkpoints.restore(_state(step=0)), _state(step=4, seed=4))
  names = sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
  assert names == ["3", "4"]


def test_t43_an_unfinished_checkpoint_does_not_count(tmp_path):
  """A kill while saving leaves a temporary folder; the complete one before it is restored."""
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state(step=1))
  (tmp_path / "checkpoints" / "2.orbax-checkpoint-tmp").mkdir()
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    assert checkpoints.latest() == 1
    _same(checkpoints.restore(_state(step=0, seed=1)), _state(step=1))


@pytest.mark.parametrize(
  ("other", "match"),
  [
    ({"width": 6}, r"learner/params/a is float32\[4, 2\], this run needs float32\[6, 2\]"),
    ({"dtype": jnp.bfloat16}, r"learner/params/a is float32\[4, 2\], this run needs bfloat16"),
    ({"num_prompts": 6}, r"collector/.*\[5\], this run needs .*\[6\]"),
    ({"optimizer": optax.sgd(1e-3)}, "other contents than this run, e.g. learner/opt_state"),
  ],
  ids=["shape", "dtype", "table", "structure"],
)
def test_t46_a_state_of_another_kind_is_refused_by_name(tmp_path, other, match):
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state())
    with pytest.raises(ValueError, match=match):
      checkpoints.restore(_state(**other))


def test_an_int64_ledger_is_not_read_into_int32(tmp_path):
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state())
    like = _state()
    narrow = like.replace(ledger={k: v.astype(np.int32) for k, v in like.ledger.items()})
    with pytest.raises(ValueError, match=r"ledger/\w+ is int64\[6\], this run needs int32"):
      checkpoints.restore(narrow)


def test_what_was_saved_is_what_was_there_when_it_was(tmp_path):
  """The next update writes over the state's memory while it is still being written to disk."""
  state = _state(width=512)
  want = jax.tree.map(np.array, state)  # a view would keep the memory from being given away
  update = jax.jit(lambda learner: jax.tree.map(lambda x: x * 0, learner), donate_argnums=0)
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state)
    learner = jax.block_until_ready(update(state.learner))
    checkpoints.finish()
    assert not learner.params["a"].any()
    restored = checkpoints.restore(_state(step=0, width=512, seed=1))
  for x, y in zip(jax.tree.leaves(restored), jax.tree.leaves(want)):
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_a_save_goes_on_behind_the_caller(tmp_path, monkeypatch):
  """save() returns before the checkpoint is there; the next one waits for it."""
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    waited = []
    wait = checkpoints._manager.wait_until_finished
    monkeypatch.setattr(
      checkpoints._manager, "wait_until_finished", lambda: (waited.append(1), wait())
    )
    checkpoints.save(_state(step=1))
    before = len(waited)
    checkpoints.save(_state(step=2))
    assert len(waited) > before
    assert (tmp_path / "checkpoints" / "1").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # orbax's threads
@pytest.mark.parametrize(
  ("file", "how"),
  [
    ("default/_METADATA", "cut"),
    ("default/manifest.ocdbt", "gone"),
    ("default/d/*", "cut"),
    ("default/d/*", "changed"),
  ],
)
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path, capsys, file, how):
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    checkpoints.save(_state(step=1, seed=1))
    checkpoints.save(_state(step=2, seed=2))
  for path in (tmp_path / "checkpoints" / "2").glob(file):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    if how == "gone":
      path.unlink()
    else:
      path.write_bytes(bytes(data[: len(data) // 2] if how == "cut" else data))
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    _same(checkpoints.restore(_state(step=0)), _state(step=1, seed=1))
    assert "WARNING: checkpoint 2 is damaged" in capsys.readouterr().out
    assert checkpoints.latest() == 1
    checkpoints.save(_state(step=2, seed=3))  # the run comes to that step again
  with Checkpointer(tmp_path, keep=2) as checkpoints:
    _same(checkpoints.restore(_state(step=0)), _state(step=2, seed=3))
  assert (tmp_path / "checkpoints" / "2.damaged").exists()


def test_when_all_are_damaged_the_run_does_not_begin_anew(tmp_path):
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state(step=1))
  (tmp_path / "checkpoints" / "1" / "default" / "_METADATA").unlink()
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    assert checkpoints.latest() == 1
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read"):
      checkpoints.restore(_state(step=0))
  assert (tmp_path / "checkpoints" / "1").exists()


def test_a_checkpoint_of_another_config_is_refused_with_the_difference(tmp_path):
  """Also when config.json is gone, or was copied from another run."""
  with Checkpointer(tmp_path, keep=1, config=Config(seed=1)) as checkpoints:
    checkpoints.save(_state())
  with (
    Checkpointer(tmp_path, keep=1, config=Config(seed=2, steps=7)) as checkpoints,
    pytest.raises(
      ValueError, match=r"checkpoint 3 holds a run with another config:\n  seed: 1 -> 2"
    ),
  ):
    checkpoints.restore(_state(step=0))
  longer = dataclasses.replace(Config(seed=1), steps=7)
  with Checkpointer(tmp_path, keep=1, config=longer) as checkpoints:
    _same(checkpoints.restore(_state(step=0)), _state())


def test_the_best_is_kept_beside_the_newest(tmp_path):
  scores = {1: 0.2, 2: 0.9, 3: 0.9, 4: 0.5, 5: 0.1}
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    for step, score in scores.items():
      checkpoints.offer(_state(step=step), "eval/a", score)
      checkpoints.save(_state(step=step))
  names = lambda: sorted(p.name for p in (tmp_path / "checkpoints").iterdir())
  assert names() == ["2", "5", "best.json"]
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    assert checkpoints.best() == {"step": 2, "metric": "eval/a", "value": 0.9}
    checkpoints.offer(_state(step=6), "eval/a", 0.91)
  assert names() == ["6", "best.json"]
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state(step=7))
    checkpoints.offer(_state(step=7), "eval/a", 0.95)  # saved already, as after the last step
  assert names() == ["7", "best.json"]
  shutil.rmtree(tmp_path / "checkpoints" / "7")  # a kill while it was written: the record is void
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    assert checkpoints.best() is None
  (tmp_path / "checkpoints" / "best.json").write_text('{"step": 7, "me')
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    assert checkpoints.best() is None
    checkpoints.offer(_state(step=8), "eval/a", 0.1)
    checkpoints.finish()
    assert checkpoints.best() == {"step": 8, "metric": "eval/a", "value": 0.1}


@contextlib.contextmanager
def _small_files(limit: int):
  """Files may not grow over the limit: what a full disk does, without one."""
  old = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old[1]))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_checkpoint_that_cannot_be_written_is_reported_and_the_last_one_stays(tmp_path, capsys):
  state = lambda step, seed=0: _state(step=step, seed=seed, width=2**16)
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(state(1))
    checkpoints.finish()
    with _small_files(2**14):
      checkpoints.save(state(2))
      with pytest.raises(
        OSError, match="checkpoint of step 2 could not be written; the newest is of"
      ):
        checkpoints.finish()
    assert "WARNING: the checkpoint of step 2" in capsys.readouterr().out
    assert checkpoints.latest() == 1
    checkpoints.save(state(2, seed=5))  # there is room again
    checkpoints.finish()
    _same(checkpoints.restore(state(0)), state(2, seed=5))
  assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["2"]


def test_a_save_that_fails_at_once_does_not_end_the_run(tmp_path, monkeypatch, capsys):
  def full(*args, **kwargs):
    raise OSError(errno.ENOSPC, "No space left on device")

  with Checkpointer(tmp_path, keep=1) as checkpoints:
    with monkeypatch.context() as patch:
      patch.setattr(checkpoints._manager, "save", full)
      checkpoints.save(_state(step=1))
    assert "there is none yet: [Errno 28] No space left on device" in capsys.readouterr().out
    checkpoints.save(_state(step=2))
    checkpoints.finish()
    assert checkpoints.latest() == 2


def test_what_a_kill_leaves_behind_is_cleared_away(tmp_path):
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(_state(step=1))
  for name in ("2.orbax-checkpoint-tmp", "0.removed"):
    (tmp_path / "checkpoints" / name / "default").mkdir(parents=True)
  (tmp_path / "checkpoints" / "best.json.orbax-checkpoint-tmp").write_text('{"st')
  Checkpointer(tmp_path, keep=1).close()
  assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["1"]


def test_when_a_checkpoint_is_due(monkeypatch):
  """Every third step, and two minutes after the last one."""
  now = [1000.0]
  monkeypatch.setattr(checkpoint_lib.time, "monotonic", lambda: now[0])
  due = Due(steps=3, minutes=2)
  said = []
  for done in range(1, 9):
    now[0] += 50
    said.append(due(done))
  # After 50, 100, 150 s; the third is due by both. Then 200 (50 later), 250 (100), 300 (150).
  assert said == [False, False, True, False, False, True, False, False]
  now[0] += 121
  assert due(10)
  assert not Due(steps=0, minutes=0)(10)
