"""What every belief and every acquisition must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import posterior as package
from rlvr_jax.core.types import BeliefModel, Tally, plain_table
from rlvr_jax.posterior import acquisition, emission
from tests import toy

VARIANTS = {
  "beta": [{"prior": 0.5, "keep": 0.9}, {"fade_own": 0.5, "fade_all": 0.1}],
  "tracker": [{"keep": 1.0, "initial": 0.2}],
  "anchor": [{"refresh": 2}],
  "hidden_markov": [{"states": 4, "emission": emission.binomial(states=4)}],
}
OTHERS = acquisition, emission
BELIEFS = toy.factories(*(m for m in toy.modules(package) if m not in OTHERS), variants=VARIANTS)
LEARNING = [p for p in BELIEFS if "anchor" not in str(p.id)]  # an anchor stays on purpose
# These read of one prompt in the verdicts of others, or in there being none.
SPREADING = ("hierarchical", "hidden_markov", "logit_normal", "fade_all")
LOCAL = [p for p in LEARNING if not any(name in str(p.id) for name in SPREADING)]
ACQUISITIONS = toy.factories(acquisition)
M = 5
ALL = jnp.arange(M)
TABLE = plain_table(M, source=[0, 0, 1, 1, 1])


def tally(trials, successes):
  drawn = jnp.array(trials, jnp.int32)
  return Tally(jnp.array(trials, jnp.float32), jnp.array(successes, jnp.float32), drawn, 3 * drawn)


@pytest.fixture(params=BELIEFS)
def model(request) -> BeliefModel:
  return request.param()


def test_the_state_keeps_its_type(model):
  state = model.init(TABLE)
  update = jax.jit(model.update)
  for _ in range(2):
    new = update(state, tally([4, 0, 2, 8, 1], [4, 0, 1, 0, 1]))
    assert toy.kinds(new) == toy.kinds(state)
    state = new


def test_beliefs_are_means_and_variances_of_a_rate(model):
  state = model.init(TABLE)
  for _ in range(3):
    state = model.update(state, tally([4, 0, 2, 8, 1], [4, 0, 1, 0, 1]))
  belief = model.belief(state, ALL)
  for x in (belief.mean, belief.variance, belief.evidence):
    assert x.shape == (M,) and x.dtype == jnp.float32
  known = belief.evidence > 0  # of the rest nothing need be believed: it may be NaN
  belief = jax.tree.map(lambda x: x[known], belief)
  assert len(belief.mean) >= 4 and (belief.mean >= 0).all() and (belief.mean <= 1).all()
  # No law on [0, 1] spreads further than this.
  assert (belief.variance >= 0).all()
  assert (belief.variance <= belief.mean * (1 - belief.mean) + 1e-6).all()


# What a prompt is next may be the same after any one visit: not so where it is what it was.
@pytest.mark.parametrize(
  "model", [p for p in LEARNING if "hidden_markov" not in str(p.id)], indirect=True
)
def test_verdicts_move_the_belief_of_their_prompt(model):
  before = model.update(model.init(TABLE), tally([2] * M, [1] * M))
  state = model.update(before, tally([8, 0, 8, 0, 0], [8, 0, 0, 0, 0]))
  old, new = model.belief(before, ALL), model.belief(state, ALL)
  assert new.mean[0] > old.mean[0] and new.mean[2] < old.mean[2]


@pytest.mark.parametrize("model", LOCAL, indirect=True)
def test_verdicts_move_the_belief_of_their_own_prompt_only(model):
  before = model.update(model.init(TABLE), tally([2] * M, [1] * M))
  state = model.update(before, tally([8, 0, 8, 0, 0], [8, 0, 0, 0, 0]))
  old, new = model.belief(before, ALL), model.belief(state, ALL)
  assert new.mean[0] > old.mean[0] and new.mean[2] < old.mean[2]
  assert (new.evidence[jnp.array([0, 2])] > old.evidence[jnp.array([0, 2])]).all()
  for i in (1, 3, 4):
    assert new.mean[i] == old.mean[i] and new.evidence[i] == old.evidence[i]


def test_beliefs_are_gathered_by_id(model):
  state = model.update(model.init(TABLE), tally([4, 0, 2, 8, 1], [4, 0, 1, 0, 1]))
  i = jnp.array([3, 0, 3])
  whole = model.belief(state, ALL)
  jax.tree.map(np.testing.assert_array_equal, model.belief(state, i), toy.take(whole, i))


@jax.jit
def every_score(key, belief):
  """float32 [acquisitions,M], of beliefs that are the state itself; compiled once for all models."""
  model = BeliefModel(init=lambda table: (), update=lambda s, t: s, belief=lambda s, i: s)
  scores = [acquisition.scored(model, p.values[0]()).score for p in ACQUISITIONS]
  return jnp.stack([score(belief, key, ALL, {}) for score in scores])


def test_any_belief_is_scored_by_any_acquisition(model):
  state = model.update(model.init(TABLE), tally([4, 0, 2, 8, 1], [4, 0, 1, 0, 1]))
  belief, key = model.belief(state, ALL), jax.random.key(0)
  out = every_score(key, belief)
  assert out.shape == (len(ACQUISITIONS), M) and out.dtype == jnp.float32
  assert np.isfinite(out).all()
  np.testing.assert_array_equal(out, every_score(key, belief))
