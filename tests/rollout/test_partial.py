"""Rollouts that leave off and go on, against the simulator and against rollouts that never left off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, LENGTH, OPEN
from rlvr_jax.rollout.partial import partial
from rlvr_jax.schedule import simulate
from tests import toy

VOCAB, PROMPT, PLACES, SIZE, NUM_GROUPS, SLOTS = 4, 2, 50, 4, 6, 8
N = SIZE * NUM_GROUPS
GROUP = np.repeat(np.arange(NUM_GROUPS), SIZE)
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = POLICY.init(jax.random.key(0))


def _rows(seed):
  """Open rows whose limits are log-normal: no token ends a row, so that these are their lengths."""
  lengths = simulate.lengths(N, median=8, sigma=0.9, cap=PLACES - PROMPT, seed=seed)
  group = jnp.asarray(GROUP, jnp.int32)
  rows = rows_lib.fresh(
    jnp.asarray([[g % 3, g // 3] for g in range(NUM_GROUPS)], jnp.int32),
    jnp.full(NUM_GROUPS, PROMPT, jnp.int32),
    group=group,
    valid=jnp.ones(N, bool),
    uid=keys.row_uids(jax.random.key(seed), 0, group, jnp.arange(N)),
    num_places=PLACES,
    max_new_tokens=jnp.asarray(lengths, jnp.int32),
    temperature=1.0,
  )
  return rows, lengths


def _roll(rows, version=0, **options):
  roll = partial(**{"slots": SLOTS, **options})
  return jax.device_get(
    roll(
      POLICY, PARAMS, rows, jnp.int32(version), jnp.array([-1]), num_contexts=NUM_GROUPS,
      prompt_places=PROMPT,
    )
  )  # fmt: skip


@pytest.mark.parametrize("seed", [3, 7, 8, 11])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_the_engine_does_what_the_simulator_says(seed, groups):
  before, lengths = _rows(seed)
  rows, counts = _roll(before, groups=groups)
  spent, got = simulate.until_groups(lengths, GROUP.tolist(), SLOTS, groups)
  assert counts.ticks == spent.ticks and counts.slot_ticks == SLOTS * spent.ticks
  np.testing.assert_array_equal(rows.response_length, got)
  np.testing.assert_array_equal(rows.status, np.where(got == lengths, LENGTH, OPEN))
  np.testing.assert_array_equal(counts.generated, got)
  np.testing.assert_allclose(spent.use, got.sum() / counts.slot_ticks)


@pytest.mark.parametrize("seed", [3, 11])
def test_leaving_off_and_going_on_changes_no_token(seed):
  """The longest responses go on first; each step's ticks are the simulator's on what is left."""
  before, lengths = _rows(seed)
  whole, _ = _roll(before, groups=NUM_GROUPS)
  rows, kept, calls = before, np.zeros(N, int), 0
  done = 0
  while done < NUM_GROUPS:
    order = np.argsort(-kept, kind="stable")
    done += 1
    rows, counts = _roll(rows, groups=done)
    new = lengths - kept
    work = simulate.resumed_work(new, kept)
    spent, _ = simulate.until_groups(work[order], GROUP[order].tolist(), SLOTS, done)
    assert counts.ticks == spent.ticks
    kept = np.asarray(rows.response_length)
    done, calls = len(set(GROUP) - set(GROUP[rows.status == OPEN])), calls + 1
  assert calls > 2
  for name in (*rows_lib.BY_PLACE, "length", "status"):
    np.testing.assert_array_equal(getattr(rows, name), getattr(whole, name))


def test_what_is_too_old_is_rolled_out_to_its_end():
  before, lengths = _rows(3)
  first, _ = _roll(before, version=4, groups=1)
  begun = np.asarray(first.response_length) > 0
  late = np.isin(GROUP, GROUP[begun & (first.status == OPEN)])
  assert late.any() and not late.all()
  # The parameters are two versions on: one group is done as it comes in, so that the rest would wait.
  again, _ = _roll(first, version=6, groups=1, patience=3)
  np.testing.assert_array_equal(again.length, first.length)
  again, _ = _roll(first, version=6, groups=1, patience=2)
  assert (again.status[late] == LENGTH).all()
  np.testing.assert_array_equal(again.response_length[late], lengths[late])
  np.testing.assert_array_equal(again.length[~late], first.length[~late])
  assert set(again.version[again.response_mask].tolist()) == {4, 6}
  assert again.valid.all()


def test_closed_rows_are_left_alone_and_count_as_done():
  before, _ = _rows(3)
  closed = before.replace(status=jnp.where(jnp.asarray(GROUP) < 2, EOS, before.status))
  rows, counts = _roll(closed, groups=2)
  assert counts.ticks == 0 and not counts.generated.any()
  np.testing.assert_array_equal(rows.length, before.length)


def test_numbers_below_zero_are_refused():
  for name in ("groups", "slots", "patience"):
    with pytest.raises(ValueError, match="at least 0"):
      partial(**{name: -1})
