"""Row filters against sets of verdicts."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.keep import choose
from tests import toy

KEY = jax.random.key(0)
N = 6
flat = lambda elements: st.lists(elements, min_size=N, max_size=N)


@given(flat(st.integers(0, 2)), flat(st.sampled_from([0.0, 0.5, 1.0])), flat(st.booleans()))
def test_mixed_keeps_groups_with_two_different_verdicts(groups, correct, valid):
  rows = toy.rows(groups=groups, correct=correct, valid=valid)
  verdicts = lambda g: {c for h, c, v in zip(groups, correct, valid) if h == g and v}
  expect = [v and len(verdicts(g)) > 1 for g, v in zip(groups, valid)]
  np.testing.assert_array_equal(choose.mixed()(KEY, rows, {}), expect)


def test_T16_a_row_that_is_not_valid_does_not_make_a_group_mixed():
  rows = toy.rows(groups=[0, 0, 0], correct=[1, 1, 0], valid=[True, True, False])
  assert not choose.mixed()(KEY, rows, {}).any()


def test_T56_filters_read_the_verdict_not_the_reward():
  # All right, with a length penalty in the reward: still nothing to learn from.
  rows = toy.rows(groups=[0, 0, 1, 1], correct=[1, 1, 1, 0], reward=[1.0, 0.8, 0.3, 0.3])
  np.testing.assert_array_equal(choose.mixed()(KEY, rows, {}), [False, False, True, True])


def test_everything_is_every_valid_row():
  rows = toy.rows(groups=[0, 0, 1], correct=[1, 1, 0], valid=[True, False, True])
  np.testing.assert_array_equal(choose.everything()(KEY, rows, {}), [True, False, True])


# --------------------------------------------------------------------------------------------------
# Resample on correct


def picked(correct, mess, **options):
  rows = toy.rows(groups=[0] * len(correct), correct=correct, prior=mess)
  choose_ = choose.resample_on_correct(penalty=lambda rows: rows.prior, **options)
  return np.flatnonzero(choose_(KEY, rows, {})).tolist()


def test_worked_resample_on_correct():
  # Errors/calls 1/4, 0/2, 0/0 and 3/4; the last has two more answers than one.
  counts = {"errors": [1, 0, 0, 3], "calls": [4, 2, 0, 4], "opened": [1, 1, 1, 3],
            "closed": [1, 1, 1, 3], "pairs": [1, 1, 1, 3], "turns": [3, 2, 1, 4]}  # fmt: skip
  penalty = choose.tool_penalty(**{k: np.array(v, np.float32) for k, v in counts.items()})
  np.testing.assert_allclose(penalty, [0.25, 0, 0.5, 1.25])
  missing = {k: np.array(v[:1]) for k, v in counts.items()} | {"closed": np.array([0])}
  np.testing.assert_allclose(choose.tool_penalty(**missing), [1.25])
  correct, mess = [1, 0, 1, 1, 0, 0, 1, 0], [0.25, 9, 0, 0.5, 9, 9, 1.25, 9]
  assert picked(correct, mess, size=4, min_right=1, min_wrong=1) == [0, 1, 2, 4]
  # What wrong rows look like changes nothing.
  other = [m if c else 0 for c, m in zip(correct, mess)]
  assert picked(correct, other, size=4, min_right=1, min_wrong=1) == [0, 1, 2, 4]


def test_worked_quotas():
  for right, wrong, expect in ((31, 1, (15, 1)), (1, 31, (1, 15)), (17, 15, (8, 8))):
    correct = [1] * right + [0] * wrong
    kept = picked(correct, [0.0] * 32, size=16)
    assert (sum(i < right for i in kept), sum(i >= right for i in kept)) == expect
  assert picked([1, 0, 0], [0.0] * 3, size=4) == []  # fewer than are kept
  assert picked([1, 0, 0, 0], [0.0] * 4, size=4) == [0, 1, 2, 3]
  assert picked([1] * 4, [0.0] * 4, size=2) == []  # nothing to compare
  assert picked([1, 1, 1, 0], [3.0, 1.0, 2.0, 0.0]) == [1, 3]  # half of the group


def test_sampling_prefers_clean_rows():
  rows = toy.rows(
    groups=[0] * 8, correct=[1, 0, 1, 1, 0, 0, 1, 0], prior=[0.25, 9, 0, 0.5, 9, 9, 1.25, 9]
  )
  one = choose.resample_on_correct(
    size=2, min_right=1, min_wrong=1, sample=True, penalty=lambda rows: rows.prior
  )
  keys = jax.random.split(KEY, 2000)
  share = np.asarray(jax.jit(jax.vmap(lambda key: one(key, rows, {})))(keys)).mean(0)
  np.testing.assert_allclose(share[[0, 2, 3, 6]], [0.0040, 0.9933, 0.0020, 0.0008], atol=0.006)


def test_untidiness():
  rows = toy.rows(
    tokens=[[9, 1, 2, 3, 1, 2, 3, 1], [9, 1, 2, 3, 4, 5, 6, 7], [9, 0, 0, 0, 0, 0, 0, 0]],
    status=[1, 2, 1], length=[8, 8, 3],
  )  # fmt: skip
  np.testing.assert_allclose(choose.untidiness(rows), [2 / 5, 1.0, 0.0])


@pytest.mark.parametrize("options", [{"size": -1}, {"min_right": -1}])
def test_errors(options):
  with pytest.raises(ValueError, match="at least 0"):
    choose.resample_on_correct(**options)
