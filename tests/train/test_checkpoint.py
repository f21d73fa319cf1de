"""Checkpoints: what is restored is what was saved, bit for bit, or an error that names the leaf."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core.types import plain_table
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.checkpoint import Checkpointer
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
