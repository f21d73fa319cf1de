"""Row filters against sets of verdicts."""

import jax
import numpy as np
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
