"""The Beta belief against Bayes' rule on a grid of solve rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.posterior.beta import BetaState, beta


def tally(trials, successes):
  n = len(trials)
  zeros = jnp.zeros(n, jnp.int32)
  return Tally(jnp.array(trials, jnp.float32), jnp.array(successes, jnp.float32), zeros, zeros)


def by_bayes(prior, trials, successes):
  """Mean and variance of the solve rate: prior times likelihood, summed over a fine grid."""
  p = (np.arange(20_000) + 0.5) / 20_000
  log = (prior - 1 + successes) * np.log(p) + (prior - 1 + trials - successes) * np.log(1 - p)
  weight = np.exp(log - log.max())
  weight /= weight.sum()
  mean = (weight * p).sum()
  return mean, (weight * (p - mean) ** 2).sum()


@given(
  st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=4),
  st.sampled_from([1.0, 2.5]),
)
def test_conjugacy(steps, prior):
  model = beta(prior=prior)
  state = model.init(plain_table(2))
  for right, wrong in steps:
    state = model.update(state, tally([right + wrong, 0], [right, 0]))
  believed = model.belief(state, jnp.array([0, 1]))
  right, wrong = (sum(x) for x in zip(*steps))
  np.testing.assert_allclose(
    (believed.mean[0], believed.variance[0]), by_bayes(prior, right + wrong, right), rtol=2e-3
  )
  np.testing.assert_allclose(
    (believed.mean[1], believed.variance[1]), by_bayes(prior, 0, 0), rtol=2e-3
  )
  np.testing.assert_allclose(believed.evidence, [right + wrong + 2 * prior, 2 * prior])


def test_uniform_prior_by_hand():
  model = beta()
  state = model.update(model.init(plain_table(1)), tally([4], [3]))
  believed = model.belief(state, jnp.array([0]))  # Beta(4, 2)
  np.testing.assert_allclose(believed.mean, [4 / 6], rtol=1e-6)
  np.testing.assert_allclose(believed.variance, [8 / (36 * 7)], rtol=1e-6)


def test_old_verdicts_fade_only_when_a_prompt_is_rolled_out():
  model = beta(keep=0.5)
  state = model.init(plain_table(2))
  state = model.update(state, tally([4, 4], [3, 3]))
  state = model.update(state, tally([2, 0], [0, 0]))
  believed = model.belief(state, jnp.array([0, 1]))
  # Prompt 0: 0.5 * 3 right, 0.5 * 1 + 2 wrong. Prompt 1: as it was.
  np.testing.assert_allclose(believed.mean, [2.5 / 6, 4 / 6], rtol=1e-6)
  np.testing.assert_allclose(believed.evidence, [6, 6])


def test_belief_gathers_by_prompt():
  model = beta()
  state = model.update(model.init(plain_table(3)), tally([1, 0, 2], [1, 0, 0]))
  np.testing.assert_allclose(
    model.belief(state, jnp.array([2, 0, 0])).mean, [1 / 4, 2 / 3, 2 / 3], rtol=1e-6
  )


@pytest.mark.parametrize("args", [{"prior": 0}, {"prior": -1}, {"keep": 0}, {"keep": 1.1}])
def test_errors(args):
  with pytest.raises(ValueError, match=f"{next(iter(args))} must"):
    beta(**args)


def test_worked_decay_at_two_scales():
  model = beta(fade_own=0.5, fade_all=0.1)
  state = BetaState(jnp.array([6.0, 0, 2, 1]), jnp.array([2.0, 0, 6, 7]))
  state = model.update(state, tally([8, 0, 8, 0], [8, 0, 4, 0]))
  np.testing.assert_allclose(state.successes, [12.9725, 0, 5.755, 0.975], rtol=1e-5)
  np.testing.assert_allclose(state.failures, [1.6575, 0, 9.265, 6.825], rtol=1e-5)
  mean = model.belief(state, jnp.arange(4)).mean
  np.testing.assert_allclose(mean, [0.840198, 0.5, 0.396886, 0.201531], atol=1e-6)
  # Nobody was rolled out: nothing changes.
  still = model.update(state, tally([0] * 4, [0] * 4))
  np.testing.assert_array_equal(still.successes, state.successes)


def test_a_policy_that_jumps_is_followed_as_fast_as_evidence_fades():
  rng = np.random.default_rng(0)
  right = np.concatenate([rng.binomial(8, 0.1, (10, 200)), rng.binomial(8, 0.9, (3, 200))])
  off = {}
  for own, both in ((0.5, 0.1), (0.0, 0.0), (1.0, 0.1)):
    model = beta(fade_own=own, fade_all=both)
    # Two hundred runs of one prompt each: the mean over the prompts of a step is the prompt itself.
    update = jax.jit(jax.vmap(model.update))
    state = BetaState(jnp.zeros((200, 1)), jnp.zeros((200, 1)))
    for k in right:
      shape = (200, 1)
      counts = jnp.zeros(shape, jnp.int32)
      state = update(
        state, Tally(jnp.full(shape, 8.0), jnp.array(k[:, None], jnp.float32), counts, counts)
      )
    mean = (state.successes + 1) / (state.successes + state.failures + 2)
    off[own, both] = np.abs(np.asarray(mean) - 0.9).mean()
  np.testing.assert_allclose(list(off.values()), [0.38, 0.61, 0.15], atol=0.03)


def test_verdicts_off_the_scale_are_cut_to_it_and_those_that_are_no_numbers_left_out():
  model = beta()
  state = model.update(model.init(plain_table(4)), tally([4, 4, 4, 0], [7, -2, np.nan, 3]))
  np.testing.assert_array_equal(state.successes, [4, 0, 0, 0])
  np.testing.assert_array_equal(state.failures, [0, 4, 0, 0])
