"""The bank of unfinished rows against a plain list."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, OPEN, plain_table
from rlvr_jax.replay.partials import COUNTED, partials
from tests import toy

TABLE, SIZE, PLACES = 12, 2, 6
FOUR = [4, 5, 6, 7]  # always as many, so that little is compiled
NONE = jnp.zeros(8, bool)


@functools.cache
def _parts(**options) -> Any:
  replay: Any = partials(**options)
  return replay, jax.jit(replay.resume), jax.jit(replay.add)


def _seeds(prompts, step):
  """Open rows without a response, SIZE for each prompt; the prompt's own token is its only one."""
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


def _grown(rows, step, rng):
  """Open rows get up to two tokens, whose id, log-prob and version tell the step; some end."""
  t, v, lp, mask, length, status = (
    np.array(x)
    for x in (
      rows.tokens, rows.version, rows.full_logprobs, rows.response_mask, rows.length, rows.status
    )
  )  # fmt: skip
  for i in np.flatnonzero(status == OPEN):
    for _ in range(rng.integers(0, 3)):
      if length[i] < PLACES:
        at = i, length[i]
        t[at], v[at], lp[at], mask[at] = 100 + step, step, -step, True
        length[i] += 1
    if length[i] == PLACES or rng.random() < 0.3:
      status[i] = EOS
  fields = {"tokens": t, "version": v, "full_logprobs": lp, "response_mask": mask}
  fields |= {"length": length, "status": status}
  return rows.replace(**{k: jnp.asarray(x) for k, x in fields.items()})


def _what(rows, i):
  """What a row has that has to come back."""
  names = ("tokens", "version", "full_logprobs", "response_mask", "length", "status", "uid")
  return [np.asarray(getattr(rows, name)[i]).tolist() for name in names]


@pytest.mark.parametrize("seed", range(4))
def test_contents_against_a_list(seed):
  rng = np.random.default_rng(seed)
  replay, resume, add = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  waiting: list[tuple[int, list]] = []  # (prompt, what its rows have), the longest waiting first
  came_back = 0
  for step in range(8):
    # The first two that wait are drawn, and others that do not wait: the round has four prompts.
    order = np.argsort(-np.asarray(state.waits), kind="stable")
    held = [int(m) for m in order if state.waits[m] > 0]
    assert held == [prompt for prompt, _ in waiting]
    new = [m for m in rng.permutation(TABLE).tolist() if m not in held]
    prompts = (held[:2] + new)[:4]
    seeds = _seeds(prompts, step)
    rows, reused = resume(state, seeds)
    known = dict(waiting)
    for g, prompt in enumerate(prompts):
      for i in (g * SIZE, g * SIZE + 1):
        expected = known[prompt][i % SIZE] if prompt in known else _what(seeds, i)
        assert _what(rows, i) == expected
        assert reused[i] == sum(expected[3])
        assert (rows.wave[i] == COUNTED) == (expected[5] != OPEN)
        came_back += prompt in known
    rows = _grown(rows, step, rng)
    done = [not (np.asarray(rows.status[g * SIZE :][:SIZE]) == OPEN).any() for g in range(4)]
    chosen = np.repeat([d and rng.random() < 0.7 for d in done], SIZE)
    state, banked = add(state, rows, jnp.asarray(chosen), step)
    np.testing.assert_array_equal(banked, ~chosen)
    waiting = [(p, x) for p, x in waiting if p not in prompts]
    for g, prompt in enumerate(prompts):
      if not chosen[g * SIZE]:
        waiting.append((prompt, [_what(rows, g * SIZE + i) for i in range(SIZE)]))
    waiting, lost = waiting[:8], len(waiting[8:]) * SIZE
    assert int(state.over) == lost
    if lost:
      break
    replay.check(state)
  assert came_back


def test_a_bank_that_is_too_small_says_what_to_raise():
  replay, _, add = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  for step in range(3):
    replay.check(state)
    state, _ = add(state, _seeds(list(range(4 * step, 4 * step + 4)), step), NONE, step)
  with pytest.raises(ValueError, match="raise `most` of partials from 16 to at least 24"):
    replay.check(state)


@pytest.mark.parametrize("change", ["prompt", "size"])
def test_rows_that_cannot_go_on_are_an_error(change):
  replay, resume, add = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  state, _ = add(state, _grown(_seeds(FOUR, 0), 0, np.random.default_rng(0)), NONE, 0)
  seeds = _seeds(FOUR, 1)
  if change == "prompt":
    seeds = seeds.replace(tokens=seeds.tokens.at[:2, 0].set(9))
    expected = 2
  else:
    seeds = seeds.replace(valid=jnp.arange(8) < 7)
    expected = 1
  rows, reused = resume(state, seeds)
  if change == "prompt":  # begins as the table has it now
    assert _what(rows, 0) == _what(seeds, 0) and not reused[:2].any()
  state, _ = add(state, rows, NONE, 1)
  with pytest.raises(ValueError, match=f"{expected} rows of earlier steps could not go on"):
    replay.check(state)


def test_rows_that_get_too_old_begin_anew():
  replay, _, add = _parts(most=16, max_age=2)
  _, resume, _ = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  rng = np.random.default_rng(1)
  seeds = _seeds(FOUR, 0)
  rows = seeds
  for step in range(4):
    rows = _grown(rows, step, rng) if step != 1 else rows
    state, _ = add(state, rows, NONE, step)
    before, (rows, reused) = rows, resume(state, _seeds(FOUR, step + 1))
    for i in range(8):
      versions = np.asarray(before.version[i])
      old = (versions >= 0).any() and step + 1 - versions[versions >= 0].min() > 2
      assert _what(rows, i) == _what(seeds if old else before, i)
      assert reused[i] == (0 if old else before.response_length[i])
    ages = step + 1 - np.asarray(rows.version)[np.asarray(rows.version) >= 0]
    assert ages.max(initial=0) <= 2
  replay.check(state)


def test_only_the_first_wave_goes_on():
  """A second one would bring the same rows back again."""
  replay, resume, add = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  rows = _grown(_seeds(FOUR, 0), 0, np.random.default_rng(0))
  state, _ = add(state, rows, NONE, 0)
  seeds = _seeds(FOUR, 1)
  seeds = seeds.replace(wave=jnp.ones(8, jnp.int32))
  again, reused = resume(state, seeds)
  jax.tree.map(np.testing.assert_array_equal, again, seeds)
  assert not reused.any()


def test_types_stay():
  replay, _, add = _parts(most=16)
  state = replay.init(plain_table(TABLE), PLACES)
  after, _ = add(state, _seeds(FOUR, 0), NONE, 0)
  assert toy.kinds(after) == toy.kinds(state)


def test_sizes_that_make_no_sense_are_refused():
  with pytest.raises(ValueError, match="most >= 1"):
    partials(most=0)
