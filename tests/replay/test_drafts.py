"""Which draft each row gets, against a dictionary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, ERROR, OPEN, plain_table
from rlvr_jax.replay.drafts import drafts
from tests import toy

TABLE, SIZE, PLACES = 6, 3, 5
REPLAY = drafts(ways=2, most=8)  # four buckets for six prompts


def _jitted(replay):
  assert replay.resume and replay.add
  return jax.jit(replay.resume), jax.jit(replay.add)


RESUME, ADD = _jitted(REPLAY)


def _seeds(prompts, step):
  prompts = np.repeat(prompts, SIZE)
  n = len(prompts)
  rows = rows_lib.blank(n, PLACES)
  return rows.replace(
    tokens=rows.tokens.at[:, 0].set(jnp.asarray(prompts, jnp.int32)),
    length=jnp.ones(n, jnp.int32),
    response_start=jnp.ones(n, jnp.int32),
    status=jnp.full(n, OPEN, jnp.int32),
    uid=jnp.asarray([[step, i] for i in range(n)], jnp.uint32),
    group=jnp.asarray(np.arange(n) // SIZE, jnp.int32),
    prompt_id=jnp.asarray(prompts, jnp.int32),
    valid=jnp.ones(n, bool),
  )


def _done(seeds, step, rng):
  """Closed rows of one to four tokens, which tell step and row; some failed."""
  n = len(seeds.length)
  length = rng.integers(2, PLACES + 1, n)
  inside = (np.arange(PLACES) >= 1) & (np.arange(PLACES) < length[:, None])
  tokens = np.where(inside, 100 * step + np.arange(n)[:, None] + 10, np.asarray(seeds.tokens))
  return seeds.replace(
    tokens=jnp.asarray(tokens, jnp.int32),
    behavior_logprobs=jnp.asarray(np.where(inside, -step - 0.5, 0), jnp.float32),
    response_mask=jnp.asarray(inside),
    length=jnp.asarray(length, jnp.int32),
    status=jnp.asarray(np.where(rng.random(n) < 0.5, ERROR, EOS), jnp.int32),
  )


def test_contents_against_a_dictionary():
  rng = np.random.default_rng(0)
  state = REPLAY.init(plain_table(TABLE), PLACES)
  buckets = {}
  came = 0
  for step in range(12):
    prompts = rng.permutation(TABLE)[:2].tolist()
    seeds = _seeds(prompts, step)
    rows, reused = RESUME(state, seeds)
    assert not reused.any() and not rows.response_mask.any()
    for i in range(2 * SIZE):
      prompt = prompts[i // SIZE]
      kept = [r for p, r in buckets.get(prompt % 4, []) if p == prompt]
      if i % SIZE < len(kept):
        tokens, logprobs, length = kept[i % SIZE]
        came += 1
      else:
        tokens, logprobs, length = seeds.tokens[i], np.zeros(PLACES), 1
      np.testing.assert_array_equal(rows.tokens[i], tokens)
      np.testing.assert_array_equal(rows.behavior_logprobs[i], logprobs)
      assert rows.length[i] == length and (rows.uid[i] == seeds.uid[i]).all()
    made = _done(seeds, step, rng)
    state, banked = ADD(state, made, jnp.zeros(2 * SIZE, bool), step)
    assert not banked.any()
    fresh = {}
    for i in range(2 * SIZE):
      if made.status[i] == EOS:
        row = np.asarray(made.tokens[i]), np.asarray(made.behavior_logprobs[i]), made.length[i]
        fresh.setdefault(prompts[i // SIZE] % 4, []).append((prompts[i // SIZE], row))
    buckets |= {b: rows[:2] for b, rows in fresh.items()}
  assert came > 10


def test_rows_keep_their_numbers_only_if_asked_and_prompts_that_changed_get_none():
  made = _done(_seeds([0, 1], 0), 0, np.random.default_rng(1))
  made = made.replace(status=jnp.full(2 * SIZE, EOS, jnp.int32))
  replay = drafts(ways=SIZE, same_noise=True)
  state = replay.init(plain_table(TABLE), PLACES)
  resume, add = _jitted(replay)
  state, _ = add(state, made, made.valid, 0)
  seeds = _seeds([1, 0], 1)
  rows, _ = resume(state, seeds)
  swap = np.r_[SIZE : 2 * SIZE, :SIZE]
  np.testing.assert_array_equal(rows.uid, made.uid[swap])
  np.testing.assert_array_equal(rows.tokens, made.tokens[swap])
  other = seeds.replace(tokens=seeds.tokens.at[:SIZE, 0].set(7))
  rows, _ = resume(state, other)
  jax.tree.map(np.testing.assert_array_equal, *(toy.take(x, range(SIZE)) for x in (rows, other)))
  assert (rows.length[SIZE:] > 1).all()
  later, _ = resume(state, seeds.replace(wave=seeds.wave + 1))
  assert (later.length == 1).all()


def test_sizes_that_make_no_sense_are_refused():
  for ways, most in ((0, 8), (4, 3)):
    with pytest.raises(ValueError, match="ways >= 1"):
      drafts(ways=ways, most=most)
