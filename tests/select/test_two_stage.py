"""Sources first: their frequencies, and what happens when they run out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rlvr_jax.select.skip import skip
from rlvr_jax.select.two_stage import by_source
from tests.select.test_top_k import candidates, draws

KNOBS = {"source_weights": jnp.array([0.6, 0.3, 0.1, 0.0], jnp.float32)}


def test_sources_come_as_they_weigh():
  source = np.arange(40) % 4
  got = draws(by_source(), candidates(np.arange(40), source=source), 1, 4000, KNOBS)[:, 0]
  number = np.bincount(source[got], minlength=4)
  assert number[3] == 0
  assert stats.chisquare(number[:3], 4000 * np.array([0.6, 0.3, 0.1])).pvalue > 1e-3
  assert (got >= 36).all()  # the best of its source


def test_sources_that_run_out_leave_their_places_to_the_others():
  these = candidates([1] * 8, source=[0, 0, 1, 1, 2, 3, 3, 3], taken=[1])
  got = draws(by_source(), these, 6, 50, KNOBS)
  for row in got.tolist():
    assert set(row[:4]) == {0, 2, 3, 4} and set(row[4:]) < {5, 6, 7}  # no weight: at the end
  out = by_source()(jax.random.key(0), these, 8, KNOBS)
  np.testing.assert_array_equal(out.valid, [True] * 7 + [False])
  assert int(out.consumed.sum()) == 7


def test_within_may_be_any_select():
  these = candidates([1, 0, 1, 0], source=[0, 0, 1, 1])
  out = by_source(within=skip())(jax.random.key(0), these, 3, KNOBS)
  np.testing.assert_array_equal(out.valid, [True, True, False])
  assert set(out.index[:2].tolist()) == {0, 2} and out.consumed.all()
  with pytest.raises(ValueError, match="knob 'source_weights'"):
    by_source()(jax.random.key(0), these, 3, {})
