"""The state space belief against grids and a joint Gaussian posterior."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior.logit_normal import logit_normal, observe, rate

GRID = np.linspace(-14.0, 14.0, 28_001)


def tally(trials, successes, tokens=None):
  drawn = jnp.array(trials, jnp.int32)
  spent = 3 * drawn if tokens is None else jnp.array(tokens, jnp.int32)
  return Tally(drawn.astype(jnp.float32), jnp.array(successes, jnp.float32), drawn, spent)


@pytest.mark.parametrize(
  ("mean", "variance", "n", "k"),
  [
    (0.0, 4.0, 8, 8), (0.0, 4.0, 8, 0), (2.0, 1.0, 8, 0),
    (-3.0, 4.0, 64, 60), (9.0, 9.0, 4, 0), (1.0, 2.0, 0, 0),
  ],
)  # fmt: skip
def test_mode_and_curvature(mean, variance, n, k):
  log = -np.square(GRID - mean) / (2 * variance) + k * GRID - n * np.logaddexp(0, GRID)
  top = log.argmax()
  curvature = -(log[top - 50] - 2 * log[top] + log[top + 50]) / (50 * (GRID[1] - GRID[0])) ** 2
  mode, left = observe(*(jnp.array([x], jnp.float32) for x in (mean, variance, n, k)))
  assert mode[0] == pytest.approx(GRID[top], abs=2e-3)
  assert left[0] == pytest.approx(1 / curvature, rel=2e-3)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 4.0), (2.0, 1.0), (-4.0, 2.0), (0.5, 1e-6)])
def test_the_rate_of_a_logit(mean, variance):
  weight = np.exp(-np.square(GRID - mean) / (2 * max(variance, 1e-4)))
  p = 1 / (1 + np.exp(-GRID))
  expected = (weight * p).sum() / weight.sum()
  spread = (weight * np.square(p - expected)).sum() / weight.sum()
  m, v = rate(jnp.array([mean], jnp.float32), jnp.array([variance], jnp.float32))
  assert m[0] == pytest.approx(expected, abs=1e-3)
  assert v[0] == pytest.approx(spread, rel=0.1, abs=1e-5)


def test_the_common_move_is_that_of_the_joint_posterior():
  """Given what each prompt's verdicts say (mode and curvature, as one Gaussian observation), the moves of all
  prompts are the mean of a joint Gaussian, solved here as one linear system with the common move in it."""
  common, walk = 0.3, 0.1
  model = logit_normal(common=common, walk=walk)
  state = model.init(plain_table(4))
  before = np.array([0.5, -1.0, 1.5, 0.2], np.float32)
  variance = np.array([0.8, 0.5, 1.2, 0.4], np.float32)
  state = state.replace(mean=jnp.asarray(before), variance=jnp.asarray(variance))
  n, k = [8, 16, 4, 0], [7, 9, 4, 0]
  after = model.update(state, tally(n, k))

  v = variance + walk
  mode, left = observe(*(jnp.asarray(x, jnp.float32) for x in (before, v, n, k)))
  mode, left = np.asarray(mode, np.float64), np.asarray(left, np.float64)
  # Unknown: deviations d_i ~ N(0, v_i) and l ~ N(0, common); seen: y_i = before_i + l + d_i + N(0, R_i).
  precision = np.diag([*(1 / v), 1 / common])
  right = np.zeros(5)
  for i in range(3):
    of_noise = 1 / left[i] - 1 / v[i]
    y = before[i] + (mode[i] - before[i]) / (1 - left[i] / v[i])
    row = np.zeros(5)
    row[i] = row[4] = 1
    precision += of_noise * np.outer(row, row)
    right += of_noise * row * (y - before[i])
  solved = np.linalg.solve(precision, right)
  np.testing.assert_allclose(after.mean, before + solved[4] + solved[:4], atol=1e-4)


def test_what_was_never_seen_has_the_law_of_its_source():
  model = logit_normal()
  state = model.init(plain_table(12, source=[0] * 6 + [1] * 6))
  belief = model.belief(state, jnp.arange(12))
  np.testing.assert_allclose(belief.mean, 0.5, atol=1e-6)
  np.testing.assert_array_equal(belief.tokens, 1.0)
  n = [8] * 5 + [0] + [8] * 5 + [0]
  k = [8, 7, 8, 8, 7, 0, 0, 1, 0, 0, 1, 0]
  spent = [80] * 5 + [0] + [400] * 5 + [0]
  for _ in range(3):
    state = model.update(state, tally(n, k, spent))
  mean, tokens = (
    np.asarray(x)
    for x in (model.belief(state, jnp.arange(12)).mean, model.belief(state, jnp.arange(12)).tokens)
  )
  assert mean[:5].min() > mean[5] > 0.6 and mean[6:11].max() < mean[11] < 0.4
  assert (
    10 < tokens[5] < 15 < 45 < tokens[11] < 50
  )  # 10 and 50 are the sources' own, borrowing from all
  seen = np.asarray(state.mean[:5], np.float64)
  assert state.centre[0] < seen.mean()  # drawn to the other source's


def test_uncertainty_grows_with_time_and_no_further_than_that_of_a_new_prompt():
  model = logit_normal(walk=0.5)
  state = model.update(model.init(plain_table(2)), tally([16, 0], [8, 0]))
  first = float(state.variance[0])
  state = model.update(state, tally([0, 0], [0, 0]))
  assert float(state.variance[0]) == pytest.approx(first + 0.5, rel=1e-6)
  for _ in range(40):
    state = model.update(state, tally([0, 0], [0, 0]))
  assert float(state.variance[0]) <= float(state.spread[0]) + 1e-5
  belief = model.belief(state, jnp.arange(2))
  assert belief.evidence[0] >= belief.evidence[1] > 0


def test_it_follows_a_policy_that_learns():
  """Prompts seen in turn, whose rates all rise: the belief of one not seen for long rises too."""
  num, rng = 40, np.random.default_rng(0)
  truth = rng.normal(-1.5, 0.7, num)
  model = logit_normal()
  update, state = jax.jit(model.update), model.init(plain_table(num))
  for step in range(60):
    truth += 0.05
    n = np.zeros(num, int)
    n[(step * 4 + np.arange(4)) % (num - 1) + 1] = 8
    n[0] = 8 * (step < 10)  # not seen for the last fifty steps, in which it gains 2.5
    k = rng.binomial(n, 1 / (1 + np.exp(-truth)))
    state = update(state, tally(n, k))
  predicted = np.asarray(model.belief(state, jnp.arange(num)).mean)
  assert abs(predicted[0] - 1 / (1 + np.exp(-truth[0]))) < 0.25
  assert np.abs(predicted[1:] - 1 / (1 + np.exp(-truth[1:]))).mean() < 0.12


@pytest.mark.parametrize(
  ("args", "match"),
  [
    ({"walk": -1.0}, "walk"), ({"common": 0.0}, "common"),
    ({"keep": 0.0}, "keep"), ({"borrow": 0.0}, "borrow"),
  ],
)  # fmt: skip
def test_arguments_out_of_range(args, match):
  with pytest.raises(ValueError, match=match):
    logit_normal(**args)
