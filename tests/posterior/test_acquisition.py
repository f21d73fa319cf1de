import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Belief, BeliefModel
from rlvr_jax.posterior import acquisition

# Beliefs that are the state itself.
MODEL = BeliefModel(
  init=lambda num: jnp.arange(num, dtype=jnp.float32),
  update=lambda state, tally: state + tally,
  belief=lambda state, i: Belief(mean=state[i], variance=2 * state[i], evidence=3 * state[i]),
)
ID = jnp.array([3, 1])


def test_scored_hands_key_belief_and_knobs_to_the_acquisition():
  seen = lambda key, belief, knobs: (
    belief.mean + belief.variance + belief.evidence + knobs["add"] + jax.random.uniform(key, (2,))
  )
  posterior = acquisition.scored(MODEL, seen)
  state = posterior.update(posterior.init(4), 1.0)  # 1 2 3 4
  key = jax.random.key(3)
  expect = np.array([24.0, 12.0]) + 0.5 + np.asarray(jax.random.uniform(key, (2,)))
  np.testing.assert_allclose(posterior.score(state, key, ID, {"add": 0.5}), expect, rtol=1e-6)
  np.testing.assert_array_equal(posterior.belief(state, ID).mean, [4, 2])


def test_uniform():
  posterior = acquisition.scored(MODEL, acquisition.uniform())
  out = posterior.score(posterior.init(4), jax.random.key(0), ID, {})
  np.testing.assert_array_equal(out, [1, 1])


def beta_belief(*pairs):
  a, b = jnp.array(pairs, jnp.float32).T
  n = a + b
  return Belief(mean=a / n, variance=a * b / (n * n * (n + 1)), evidence=n)


def of(acquire, *pairs, key=0):
  return np.asarray(acquire(jax.random.key(key), beta_belief(*pairs), {}))


def test_worked_insight():
  counts = (1, 1), (5, 5), (41, 41), (2, 7), (9, 1)
  one, eight = acquisition.information(rollouts=1), acquisition.information()
  np.testing.assert_allclose(
    of(one, *counts), [0.193147, 0.047512, 0.006060, 0.050738, 0.042186], rtol=2e-3
  )
  np.testing.assert_allclose(
    of(eight, *counts), [0.766390, 0.293033, 0.046543, 0.307733, 0.263367], rtol=1e-3
  )
  score = of(acquisition.insight(), *counts)
  np.testing.assert_allclose(score, [0.169932, 0.064974, 0.010320, 0.052232, 0.008049], rtol=1e-3)
  np.testing.assert_array_equal(np.argsort(-score), [0, 1, 3, 2, 4])
  even = [(100 * m, 100 * (1 - m)) for m in np.linspace(0.3, 0.55, 251)]
  assert abs(even[of(acquisition.insight(), *even).argmax()][0] / 100 - 0.416) < 0.003


def test_powers_of_the_mean():
  at = lambda acquire, *p: acquire(
    None, Belief(jnp.array(p), jnp.zeros(len(p)), jnp.ones(len(p))), {}
  )
  gain = at(acquisition.variance(wrong=2), 0.8, 0.3, 0.35, 0.1)
  np.testing.assert_allclose(gain, [0.032, 0.147, 0.147875, 0.081], atol=1e-6)
  grid = np.linspace(0, 1, 301)
  assert grid[np.argmax(at(acquisition.variance(wrong=2), *grid))] == pytest.approx(1 / 3)
  np.testing.assert_allclose(at(acquisition.variance(right=0.5, wrong=0.5), 0.2), [0.4], rtol=1e-6)
  # One group of eight that is mixed, for certain rates.
  rates = 0, 0.05, 0.3, 0.5, 0.9, 1
  expect = [0, 0.336580, 0.942286, 0.992188, 0.569533, 0]
  np.testing.assert_allclose(at(acquisition.mixed(), *rates), expect, atol=1e-4)


def test_expectations_by_quadrature():
  p = (np.arange(100_000) + 0.5) / 100_000
  for a, b in ((1, 1), (2, 7), (5, 3)):
    weight = p ** (a - 1) * (1 - p) ** (b - 1)
    mean = lambda x, weight=weight: (weight * x).sum() / weight.sum()
    np.testing.assert_allclose(of(acquisition.learnability(), (a, b)), mean(p * (1 - p)), rtol=1e-4)
    expect = mean(1 - p**4 - (1 - p) ** 4)
    np.testing.assert_allclose(of(acquisition.mixed(rollouts=4), (a, b)), expect, rtol=1e-4)


def test_ucb_and_band():
  sd = (0.25 * 0.75 / 4) ** 0.5
  belief = beta_belief((0.75, 2.25))  # variance 0.1875 / 4
  ucb = lambda **args: float(acquisition.ucb(**args)(None, belief, {})[0])
  assert ucb(width=0) == pytest.approx(0.75) and ucb(width=5) == 1
  assert ucb(width=0.5) == pytest.approx(1 - (0.25 - sd / 2), rel=1e-5)
  assert ucb(width=0, target=0.25) == 1
  out = of(acquisition.band(low=0.3, high=0.6), (1, 9), (5, 5), (9, 1))
  np.testing.assert_allclose(out, [-0.2, 0, -0.3], atol=1e-6)


def test_thompson_tries_what_is_not_known():
  pairs = (331, 671), (901, 101), (21, 981), (1, 1)
  acquire = acquisition.thompson(of=acquisition.variance(wrong=2))
  belief = beta_belief(*pairs)
  best = jax.jit(jax.vmap(lambda key: acquire(key, belief, {}).argmax()))
  share = np.bincount(best(jax.random.split(jax.random.key(0), 5_000)), minlength=4) / 5_000
  assert share[1] == share[2] == 0 and share[3] == pytest.approx(0.025, abs=0.01)


def test_prompts_without_evidence_count_as_not_known():
  unsaid = BeliefModel(
    init=lambda table: (),
    update=lambda state, tally: state,
    belief=lambda state, i: Belief(jnp.full(2, jnp.nan), jnp.full(2, jnp.nan), jnp.zeros(2)),
  )
  score = acquisition.scored(unsaid, acquisition.learnability()).score
  np.testing.assert_allclose(score((), jax.random.key(0), ID, {}), 1 / 6, rtol=1e-6)


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    ("variance", {"right": -1}, "powers"),
    ("mixed", {"rollouts": 0}, "rollouts"),
    ("information", {"rollouts": -1}, "rollouts"),
    ("insight", {"mu": 3.0}, "mu"),
    ("ucb", {"width": -1}, "width"),
    ("band", {"low": 0.9}, "low <= high"),
  ],
)
def test_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    getattr(acquisition, make)(**args)
