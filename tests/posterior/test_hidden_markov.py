"""Hidden Markov beliefs: worked numbers, every path enumerated, and what they tend to."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior import emission
from rlvr_jax.posterior.hidden_markov import STARTS, hidden_markov

G = 4


def observe(model, state, *steps):
  """State after steps of one observation a prompt: -1 none, else how many of G were right."""
  update = jax.jit(model.update)
  for step in steps:
    right = np.array(step, np.float32)
    n = jnp.array(np.where(right < 0, 0, G), jnp.float32)
    zeros = jnp.zeros(len(right), jnp.int32)
    state = update(state, Tally(n, jnp.array(np.maximum(right, 0)), zeros, zeros))
  return state


def test_worked_example():
  model = hidden_markov()
  state = model.init(plain_table(3))
  state = observe(model, state, [2, 0, -1])
  np.testing.assert_allclose(
    state.prior.T, [[0.3, 0.4, 0.3], [0.4, 0.3, 0.3], [1 / 3] * 3], atol=1e-6
  )
  state = observe(model, state, [1, -1, -1])
  np.testing.assert_allclose(
    state.prior.T,
    [[0.236220, 0.527559, 0.236220], [0.381443, 0.309278, 0.309278], [1 / 3] * 3],
    atol=1e-6,
  )
  state = observe(model, state, [-1, 0, G])
  np.testing.assert_allclose(
    state.prior.T,
    [[0.285904, 0.428191, 0.285904], [0.438728, 0.280636, 0.280636], [0.3, 0.3, 0.4]],
    atol=1e-6,
  )
  moves = [[1, 1, 1], [1.163333, 1.863333, 1.163333], [1, 1, 1]]
  np.testing.assert_allclose(state.moves[:, :, 0], moves, atol=1e-6)
  belief = model.belief(state, jnp.arange(3))
  np.testing.assert_allclose(belief.mean, [0.5, 0.280636 / 2 + 0.280636, 0.55], atol=1e-6)
  partial = 4 * (belief.mean * (1 - belief.mean) - belief.variance)
  np.testing.assert_allclose(partial, state.prior[1], atol=1e-6)


def test_moves_are_kept_to_from():
  model = hidden_markov(keep=1.0)
  steps = [[(0, 2, G)[t % 3]] for t in range(61)]
  state = observe(model, model.init(plain_table(1)), *steps)
  np.testing.assert_allclose(state.prior[:, 0], [0.0571, 0.9, 0.0429], atol=1e-4)
  assert float(state.moves.sum()) == pytest.approx(9 + 61, rel=1e-5)


def test_what_it_tends_to():
  for keep, reaches in ((1.0, True), (0.5, False)):
    model = hidden_markov(keep=keep)
    state, seen = model.init(plain_table(1)), []
    for _ in range(60):
      state = observe(model, state, [1])
      seen.append(float(state.prior[1, 0]))
    assert (np.diff(seen) > -1e-6).all() and (seen[-1] > 0.9) == reaches
  model = hidden_markov()
  state = observe(model, model.init(plain_table(2)), *[[G, -1]] * 5, *[[-1, -1]] * 200)
  np.testing.assert_allclose(state.prior, 1 / 3, atol=1e-3)


@pytest.mark.parametrize("start", STARTS)
def test_beliefs_stay_beliefs(start):
  model = hidden_markov(start=start)
  rng = np.random.default_rng(0)
  right = jnp.array(rng.integers(-1, G + 1, (1000, 5)), jnp.float32)
  zeros = jnp.zeros(5, jnp.int32)

  def step(state, k):
    tally = Tally(jnp.where(k < 0, 0.0, G), jnp.maximum(k, 0), zeros, zeros)
    return model.update(state, tally), None

  state, _ = jax.jit(lambda s: jax.lax.scan(step, s, right))(model.init(plain_table(5)))
  assert (state.prior >= 0).all() and (state.moves >= 0).all()
  np.testing.assert_allclose(state.prior.sum(0), 1, atol=1e-5)


def test_filter_against_every_path():
  """With moves that hardly learn, the belief is Bayes' rule over all paths of hidden states."""
  k, slip = 4, 0.1
  heavy = np.array([[5, 1, 1, 1], [3, 4, 1, 1], [1, 3, 5, 1], [1, 2, 3, 7]], np.float64) * 1e6
  model = hidden_markov(states=k, keep=1.0, emission=emission.binomial(states=k, slip=slip))
  state = model.init(plain_table(1)).replace(moves=jnp.array(heavy[:, :, None], jnp.float32))
  move = heavy / heavy.sum(0)
  rate = np.clip([0, 0.25, 0.75, 1], slip, 1 - slip)
  right = [1, -1, 3, 4]
  # The prior is about the first step itself.
  likely = lambda s, r: 1 if r < 0 else rate[s] ** r * (1 - rate[s]) ** (G - r)
  weight = np.zeros(k)
  for path in itertools.product(range(k), repeat=len(right) + 1):
    p = 1 / k
    for t, r in enumerate(right):
      p *= likely(path[t], r) * move[path[t + 1], path[t]]
    weight[path[-1]] += p
  state = observe(model, state, *[[r] for r in right])
  np.testing.assert_allclose(state.prior[:, 0], weight / weight.sum(), atol=1e-5)


def test_states_of_shares():
  at = lambda k: np.asarray(
    emission.exact(states=k)(jnp.full(5, 8.0), jnp.array([0.0, 1, 4, 7, 8]))
  )
  np.testing.assert_array_equal(at(3).argmax(0), [0, 1, 1, 1, 2])
  np.testing.assert_array_equal(at(4).argmax(0), [0, 1, 2, 2, 3])
  np.testing.assert_allclose(emission.rates(4), [0, 0.25, 0.75, 1])


def test_errors():
  with pytest.raises(ValueError, match="states must"):
    hidden_markov(states=2)
  with pytest.raises(ValueError, match="keep must"):
    hidden_markov(keep=1.1)
  with pytest.raises(ValueError, match="unknown start 'locl'; did you mean local"):
    hidden_markov(start="locl")
  with pytest.raises(ValueError, match="slip must"):
    emission.binomial(slip=0.5)
  other = hidden_markov(emission=emission.exact(states=5))
  with pytest.raises(ValueError, match="of 5 states, the belief of 3"):
    observe(other, other.init(plain_table(1)), [1])
