import jax
import jax.numpy as jnp
import numpy as np

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
