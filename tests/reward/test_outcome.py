import numpy as np

from rlvr_jax.reward.outcome import outcome
from tests import toy


def test_outcome_is_the_verdict():
  rows = toy.rows(correct=[1.0, 0.0, 0.25], reward=[7.0, 7.0, 7.0])
  np.testing.assert_array_equal(outcome()(rows, {}), [1.0, 0.0, 0.25])
