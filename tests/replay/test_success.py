"""Borrowed successes, against a list in Python."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import plain_table
from rlvr_jax.replay.success import BORROWED, success
from tests import toy

M, N = 7, 12
KEY = jax.random.key(0)


def a_step(rng, step):
  """Eight generated rows of four prompts, and four of padding."""
  prompts = rng.choice(M, 4, replace=False)
  group = np.repeat(np.arange(4), 2)
  pad = lambda x: np.concatenate([x, np.zeros(4, x.dtype)])
  return toy.rows(
    pad(group), pad(rng.integers(0, 2, 8)), np.ones((N, 3)), valid=pad(np.ones(8, int)),
    tokens=rng.integers(0, 9, (N, 4)), prompt_id=pad(prompts[group]),
    behavior_logprobs=-rng.exponential(size=(N, 4)), version=np.full((N, 4), step),
    uid=rng.integers(0, 2**31, (N, 2)), prior=pad(rng.random(4)[group]),
  )  # fmt: skip


@pytest.mark.parametrize("most, max_age", [(100, 0), (6, 0), (100, 2)])
def test_against_a_list(most, max_age):
  """Buckets of two: one a prompt, three that prompts share, and rows that get too old."""
  replay = success(ways=2, most=most, max_age=max_age)
  buckets = min(M, most // 2)
  state = replay.init(plain_table(M), 4)
  merge, add = jax.jit(replay.merge), jax.jit(replay.add)
  kept = collections.defaultdict(lambda: collections.deque(maxlen=2))
  rng, borrowed = np.random.default_rng(0), 0
  for step in range(12):
    rows = a_step(rng, step)
    merged, reused = merge(state, rows, jax.random.key(step), step)
    for name in ("tokens", "uid", "correct", "wave"):  # what was generated stays
      np.testing.assert_array_equal(getattr(merged, name)[:8], getattr(rows, name)[:8])
    needs = []
    for g in range(4):
      m = int(rows.prompt_id[2 * g])
      fits = [r for r in kept[m % buckets] if r[0] == m and (not max_age or step - r[1] <= max_age)]
      if not rows.correct[2 * g : 2 * g + 2].any() and fits:
        needs.append((g, fits))
    assert merged.valid.tolist() == [True] * (8 + len(needs)) + [False] * (4 - len(needs))
    assert reused.tolist() == [0] * 8 + [3] * len(needs) + [0] * (4 - len(needs))
    for i, (g, fits) in enumerate(needs, 8):
      found = [r for r in fits if r[2] == merged.uid[i].tolist()]
      assert len(found) == 1 and merged.group[i] == merged.context[i] == g
      m, version, _, logprobs = found[0]
      assert merged.prompt_id[i] == m and (merged.version[i] == version).all()
      np.testing.assert_array_equal(merged.behavior_logprobs[i], logprobs)
      assert merged.wave[i] == BORROWED and merged.correct[i] == 1
      assert merged.prior[i] == rows.prior[2 * g]
      borrowed += 1
    state, banked = add(state, merged, merged.valid, step)
    assert not banked.any()
    for i in range(8):  # borrowed rows are not kept again
      if rows.correct[i] > 0.5:
        m = int(rows.prompt_id[i])
        row = m, step, rows.uid[i].tolist(), np.asarray(rows.behavior_logprobs[i])
        kept[m % buckets].append(row)
    stored = sorted(state.rows.uid[state.rows.valid].tolist())
    assert stored == sorted(row[2] for bucket in kept.values() for row in bucket)
    assert toy.kinds(state) == toy.kinds(replay.init(plain_table(M), 4))
  assert borrowed > 3
  assert (state.rows.correct[state.rows.valid] > 0.5).all()


def test_no_room_and_nothing_kept():
  replay = success(ways=1)
  state = replay.init(plain_table(3), 3)
  wrong = toy.rows([0, 1, 2, 0], [0] * 4, [[1, 1]] * 4, prompt_id=[0, 1, 2, 0], valid=[1, 1, 1, 0])
  merged, reused = replay.merge(state, wrong, KEY, 0)
  jax.tree.map(np.testing.assert_array_equal, merged, wrong)
  assert not reused.any()
  state, _ = replay.add(state, wrong.replace(correct=jnp.ones(4)), wrong.valid, 0)
  merged, reused = replay.merge(state, wrong.replace(extras={"x": jnp.full(4, jnp.nan)}), KEY, 1)
  # One row of padding for three groups: the first has it.
  assert (
    merged.group.tolist() == [0, 1, 2, 0] and merged.valid.all() and reused.tolist() == [0, 0, 0, 2]
  )
  assert merged.extras["x"][3] == 0
  full = merged.replace(wave=jnp.zeros(4, jnp.int32), correct=jnp.zeros(4))
  assert not replay.merge(state, full, KEY, 1)[1].any()


def test_draws_evenly_among_what_is_kept():
  replay = success(ways=4)
  state = replay.init(plain_table(1), 2)
  rows = toy.rows([0] * 4, [1] * 4)
  state, _ = replay.add(state, rows, rows.valid, 0)
  wrong = toy.rows([0, 0], [0, 0], valid=[True, False])
  lent = jax.vmap(lambda key: replay.merge(state, wrong, key, 1)[0].uid[1, 0])
  count = np.bincount(lent(jax.random.split(KEY, 2000)), minlength=4)
  assert (np.abs(count - 500) < 4 * 20).all()


@pytest.mark.parametrize("wrong", [{"room": -1}, {"ways": 0}, {"most": 3}, {"max_age": -1}])
def test_errors(wrong):
  with pytest.raises(ValueError, match="need room >= 0"):
    success(**wrong)
