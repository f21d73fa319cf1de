"""XRPO's allocation, arXiv 2510.06672: the published example, and its limits."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.allocate import confidence
from tests.allocate.rounds import a_round, counts

N, S = jnp.array([4.0, 4.0, 4.0]), jnp.array([0.5, 0.5774, 0.0])
QUANTILE = confidence._quantiles(64, 0.95)
THERE = jnp.ones(3, bool)


def given(explore, budget=6, n=N, s=S):
  return confidence.hand_out(n, s, budget, THERE, QUANTILE, explore).tolist()


def test_published_example():
  np.testing.assert_allclose(QUANTILE[4:6], [3.1824, 2.7764], atol=1e-4)
  h4, h5 = (confidence.halfwidth(n, S, QUANTILE) for n in (N, N + 1))
  np.testing.assert_allclose(h4, [0.7956, 0.9187, 0], atol=1e-4)
  np.testing.assert_allclose(h5, [0.6208, 0.7169, 0], atol=1e-4)
  np.testing.assert_allclose(h4 - h5, [0.1748, 0.2018, 0], atol=1e-4)
  assert given(0.1) == [3, 3, 0]
  assert given(0.5) == [2, 3, 1]


def test_limits():
  assert given(1e6) == [2, 2, 2]
  assert given(1e-9)[2] == 0
  assert given(0.1, budget=0) == [0, 0, 0]
  # One row has no interval: it comes first, whatever its verdict.
  assert given(0.1, budget=1, n=jnp.array([4.0, 4.0, 1.0])) == [0, 0, 1]
  assert sum(given(0.1, s=jnp.array([jnp.nan, 0.0, 0.0]))) == 6


def test_waves():
  allocator = confidence.confidence(start=4, phases=2)
  assert allocator.plan(3, 24) == (12, 6, 6)
  assert allocator.plan(3, 13) == (12, 1) and allocator.plan(3, 12) == (12,)
  assert counts(allocator, a_round([0.5] * 3), 12) == [4, 4, 4]
  # Sample deviations 0.5, 0.5774 and 0, as above.
  verdicts = [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]
  round = a_round([0.5] * 3, wave=1, verdicts=verdicts, room=12)
  assert counts(allocator, round, 6) == [3, 3, 0]
  gone = a_round([0.5] * 3, wave=1, verdicts=[*verdicts[:2], []], valid=[True, True, False])
  assert counts(allocator, gone, 6) == [3, 3, 0]
  none = a_round([0.5] * 3, wave=1, valid=[False] * 3)
  assert counts(allocator, none, 6) == [0, 0, 0]


def test_errors():
  with pytest.raises(ValueError, match="a budget of 11 rows is less than start=4"):
    confidence.confidence(start=4).plan(3, 11)
  for wrong in ({"start": 0}, {"phases": 0}, {"level": 1.0}, {"explore": 0.0}):
    with pytest.raises(ValueError):
      confidence.confidence(**wrong)
