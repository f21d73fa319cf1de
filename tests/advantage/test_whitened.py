"""REINFORCE++ and GAE as advantages of rows, against the numbers worked by hand and published formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.gae import gae
from rlvr_jax.advantage.whitened import reinforce_pp, reinforce_pp_baseline
from tests import toy

REWARD = [1, 0, 0, 0.5, 0.2, 0.2, 0.2, 1]
LENGTH = [2, 1, 3, 2, 1, 1, 2, 3]
ROWS = toy.rows([0] * 4 + [1] * 4, REWARD, [[t < n for t in range(3)] for n in LENGTH])


@pytest.mark.parametrize(
  ("advantage", "expect"),
  [
    (
      reinforce_pp(),
      [1.27409, -1.05657, -1.05657, 0.10876, -0.59043, -0.59043, -0.59043, 1.27409],
    ),
    (
      reinforce_pp_baseline(),
      [1.30867, -1.03521, -1.03521, 0.13673, -0.62504, -0.62504, -0.62504, 1.25007],
    ),
  ],
)
def test_worked_example(advantage, expect):
  out = np.asarray(jax.jit(advantage)(ROWS))
  np.testing.assert_allclose(out[:, 1], expect, atol=1e-5)
  mask = np.asarray(ROWS.loss_mask)
  # Without a discount all tokens of a response get the same.
  np.testing.assert_array_equal(out, np.where(mask, out[:, 1:2], 0))
  assert out[mask].mean() == pytest.approx(0, abs=1e-6)
  assert out[mask].var(ddof=1) == pytest.approx(1, abs=1e-5)


def test_a_discount_and_rewards_of_tokens_skip_observations():
  """The turns before an observation keep the final reward: it is not cut off at the gap."""
  mask = [[True, False, True], [True, True, False]]
  bonus = jnp.array([[9, 0.5, 9, 0], [9, 0, 0.25, 9]], jnp.float32)
  rows = toy.rows([0, 1], [1.0, 2.0], mask, extras={"bonus": bonus})
  out = np.asarray(reinforce_pp(gamma=0.5, token_reward="bonus")(rows))
  togo = np.array([0.5 + 0.5 * 1, 1, 0 + 0.5 * 2.25, 2.25])
  got = out[np.asarray(rows.loss_mask)]
  np.testing.assert_allclose(got, (togo - togo.mean()) / togo.std(ddof=1), atol=1e-5)


def test_gae_with_lambda_1_is_reward_less_value():
  values = jnp.asarray(np.random.default_rng(0).random((8, 4)), jnp.float32)
  rows = ROWS.replace(extras={"values": values})
  out = gae(whiten=False)(rows)
  np.testing.assert_allclose(
    out, np.where(rows.loss_mask, np.array(REWARD)[:, None] - values, 0), atol=1e-6
  )
  white = np.asarray(gae()(rows))
  mask = np.asarray(rows.loss_mask)
  expect = (np.asarray(out)[mask] - np.asarray(out)[mask].mean()) / np.asarray(out)[mask].std(
    ddof=1
  )
  np.testing.assert_allclose(white[mask], expect, atol=1e-5)
  # Without a critic and with its own name for the values: REINFORCE++.
  none = ROWS.replace(extras={"zero": jnp.zeros((8, 4), jnp.float32)})
  np.testing.assert_array_equal(gae(values="zero")(none), reinforce_pp()(ROWS))


def test_gae_of_a_multi_turn_row_with_its_own_lambda():
  mask = [[True, True, False, False, True, True]]
  values = jnp.array([[9, 0.3, 0.4, 9, 9, 0.5, 0.7]], jnp.float32)
  rows = toy.rows([0], [1.0], mask, extras={"values": values})
  out = gae(alpha=1.5, whiten=False)(rows)
  np.testing.assert_allclose(out[0, 1:], [0.49583, 0.475, 0, 0, 0.45, 0.3], atol=1e-5)
  fixed = gae(lam=1 - 1 / 6, whiten=False)(rows)
  np.testing.assert_allclose(out, fixed, atol=1e-6)


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    (reinforce_pp, {"gamma": 0}, "gamma must lie"),
    (gae, {"gamma": 1.5}, "gamma must lie"),
    (gae, {"lam": -1}, "lam must lie"),
    (gae, {"alpha": 0.5}, "alpha must be"),
  ],
)
def test_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    make(**args)
