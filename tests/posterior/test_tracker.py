"""Values of prompts: worked numbers, a stationary limit, and what is left alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior.tracker import anchor, average, forgetting, tracker

ALL = jnp.arange(3)


def tally(trials, successes):
  n = jnp.array(trials, jnp.float32)
  return Tally(n, jnp.array(successes, jnp.float32), n.astype(jnp.int32), n.astype(jnp.int32))


def test_worked_tracker():
  np.testing.assert_allclose(
    forgetting(jnp.array([0, 0.03, 0.06, 0.5])), [0.96, 0.9175, 0.875, 0.875], atol=1e-6
  )
  model = tracker(keep=0.9175)
  state = model.init(plain_table(3)).replace(
    successes=jnp.array([4.0, 6.0, 1.0]), failures=jnp.array([4.0, 2.0, 7.0])
  )
  np.testing.assert_allclose(model.belief(state, ALL).mean, [0.5, 0.75, 0.125])
  state = model.update(state, tally([1, 1, 1], [1, 0, 1]))
  np.testing.assert_allclose(state.successes, [4.67, 5.505, 1.9175], atol=1e-5)
  np.testing.assert_allclose(state.failures, [3.67, 2.835, 6.4225], atol=1e-5)
  np.testing.assert_allclose(model.belief(state, ALL).mean, [0.55995, 0.66007, 0.22992], atol=1e-5)


def test_prompts_that_are_not_drawn_keep_their_value_and_several_verdicts_are_several_updates():
  model = tracker(keep=0.9, initial=[0.0, 0.5, 1.0], strength=4)
  state = model.init(plain_table(3))
  np.testing.assert_allclose(model.belief(state, ALL).mean, [0.05, 0.5, 0.95])
  new = model.update(state, tally([0, 3, 0], [0, 3, 0]))
  for old, now in zip(jax.tree.leaves(state), jax.tree.leaves(new)):
    np.testing.assert_array_equal(now[jnp.array([0, 2])], old[jnp.array([0, 2])])
  one = state
  for _ in range(3):
    one = model.update(one, tally([0, 1, 0], [0, 1, 0]))
  np.testing.assert_allclose(new.successes, one.successes, rtol=1e-5)
  np.testing.assert_allclose(new.failures, one.failures, rtol=1e-5)
  still = tracker(keep=1.0)
  np.testing.assert_allclose(
    still.update(still.init(plain_table(3)), tally([2, 0, 0], [1, 0, 0])).successes, [5, 4, 4]
  )


def test_a_policy_that_stays_is_tracked_with_the_known_spread():
  m, p, keep = 2000, 0.5, 0.96
  model = tracker(keep=keep)
  right = jnp.asarray(np.random.default_rng(0).random((120, m)) < p, jnp.float32)
  step = lambda state, s: (model.update(state, tally(np.ones(m), s)), None)
  state, _ = jax.lax.scan(step, model.init(plain_table(m)), right)
  mean = np.asarray(model.belief(state, jnp.arange(m)).mean)
  assert mean.mean() == pytest.approx(p, abs=0.01)
  assert mean.std() == pytest.approx((p * (1 - p) * (1 - keep) / (1 + keep)) ** 0.5, rel=0.1)


def test_average():
  model = average(keep=0.5)
  state = model.init(plain_table(3))
  np.testing.assert_array_equal(model.belief(state, ALL).mean, 0)
  state = model.update(state, tally([4, 0, 2], [4, 0, 1]))
  np.testing.assert_allclose(model.belief(state, ALL).mean, [1, 0, 0.5])
  state = model.update(state, tally([4, 1, 0], [0, 1, 0]))
  np.testing.assert_allclose(model.belief(state, ALL).mean, [0.5, 1, 0.5])


def test_anchors_stay_until_they_are_old():
  model = anchor(refresh=2)
  state = model.init(plain_table(3))
  mean = lambda: np.asarray(model.belief(state, ALL).mean)
  assert np.isnan(mean()).all()
  seen = []
  for successes in (1, 4, 4, 3, 0):
    state = model.update(state, tally([4, 0, 0], [successes, 0, 0]))
    seen.append(mean()[0])
  assert seen == [0.25, 0.25, 0.25, 0.75, 0.75]
  assert np.isnan(mean()[1:]).all()
  forever = anchor(successes=[1, 2, 0], trials=[4, 2, 0])
  kept = forever.update(forever.init(plain_table(3)), tally([4, 4, 4], [4, 0, 3]))
  np.testing.assert_allclose(forever.belief(kept, ALL).mean, [0.25, 1, 0.75])


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    (tracker, {"keep": 0}, "keep"),
    (tracker, {"strength": 0}, "strength"),
    (average, {"keep": 1}, "keep"),
    (anchor, {"refresh": -1}, "refresh"),
    (anchor, {"trials": [1]}, "give both"),
    (anchor, {"successes": [2], "trials": [1]}, "between 0 and trials"),
  ],
)
def test_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    make(**args)


def test_a_profile_must_fit_the_table():
  with pytest.raises(ValueError, match="2 prompts, the table 3"):
    anchor(successes=[1, 1], trials=[2, 2]).init(plain_table(3))
  with pytest.raises(ValueError, match="2 values, the table 3"):
    tracker(initial=[0.5, 0.5]).init(plain_table(3))
