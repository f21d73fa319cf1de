"""KL estimators: worked numbers, and their expectations by sums over three symbols."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import TokenStats
from rlvr_jax.objective import kl, ratio
from tests import toy

P, REF = jnp.array([0.7, 0.1, 0.4]), jnp.array([0.6, 0.2, 0.3])
LOGITS, OTHER = jnp.array([0.3, -1.0, 0.5]), jnp.array([-0.4, 0.1, 0.2])


@pytest.mark.parametrize(
  ("estimate", "expect"),
  [
    (kl.k1, [0.15415, -0.69315, 0.28768]),
    (kl.k2, [0.01188, 0.24023, 0.04138]),
    (kl.k3, [0.01129, 0.30685, 0.03768]),
    (kl.corrected_k3, [0.01129, 0.30685, 0.03768]),
  ],
)
def test_worked_values(estimate, expect):
  np.testing.assert_allclose(estimate(jnp.log(P / REF)), expect, atol=1e-5)


def divergence(p, q):
  """Of the logits p from the logits q."""
  a, b = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
  return (jnp.exp(a) * (a - b)).sum()


def expected(estimate, logits):
  """Sum over symbols drawn from the policy, whose chances have no gradient."""
  d = jax.nn.log_softmax(logits) - jax.nn.log_softmax(OTHER)
  return (jax.lax.stop_gradient(jax.nn.softmax(logits)) * estimate(d)).sum()


def test_values_in_expectation():
  exact = float(divergence(LOGITS, OTHER))
  for estimate in (kl.k1, kl.k3, kl.corrected_k3):
    assert float(expected(estimate, LOGITS)) == pytest.approx(exact, rel=1e-5)
  d = jnp.linspace(-30, 30, 41)
  assert (kl.k2(d) >= 0).all() and (kl.k3(d) >= -1e-6).all() and (kl.k3(d) <= 10).all()


def test_T19_gradients_in_expectation():
  slope = lambda estimate: jax.grad(lambda x: expected(estimate, x))(LOGITS)
  exact = jax.grad(lambda x: divergence(x, OTHER))(LOGITS)
  backwards = jax.grad(lambda x: divergence(OTHER, x))(LOGITS)
  assert float(jnp.abs(exact).max()) > 0.05 and not np.allclose(exact, backwards, atol=1e-2)
  for estimate in (kl.k2, kl.corrected_k3, kl.corrected(kl.k1)):
    np.testing.assert_allclose(slope(estimate), exact, atol=1e-6)
  np.testing.assert_allclose(slope(kl.k3), backwards, atol=1e-6)
  np.testing.assert_allclose(slope(kl.k1), 0, atol=1e-6)


def example():
  pad = lambda x: jnp.pad(jnp.log(x)[None], ((0, 0), (1, 0)))
  rows = toy.rows(
    [0], [1.0], [[True, True, False]], full_logprobs=pad(P),
    extras={"reference_logprobs": pad(REF).at[0, 3].set(jnp.nan)},
  )  # fmt: skip
  return TokenStats(pad(P)), rows, jnp.where(rows.loss_mask, 1.0, 0.0)


def test_in_the_loss():
  stats, rows, advantage = example()
  base = ratio.clipped()
  objective = kl.in_loss(base=base, coefficient=0.5, estimate=kl.k3)
  loss, metrics = objective.loss(stats, rows, advantage, {})
  np.testing.assert_allclose(loss[0, 1:], [-1 + 0.5 * 0.01129, -1 + 0.5 * 0.30685, 0], atol=1e-5)
  assert float(metrics["policy/kl_ref"]) == pytest.approx((0.01129 + 0.30685) / 2, abs=1e-5)
  assert objective.needs == ("reference",) and not objective.needs_advantage
  assert kl.in_loss(base=base, coefficient=0.0) is base


def test_in_the_reward():
  _, rows, _ = example()
  seen = lambda rows: jnp.where(rows.loss_mask, rows.reward[:, None], 0.0)
  lowered = kl.in_reward(advantage=seen, coefficient=0.1)
  expect = 1 - 0.1 * (0.15415 - 0.69315)
  np.testing.assert_allclose(lowered(rows)[0, 1:], [expect, expect, 0], atol=1e-5)
  assert lowered.needs == ("reference",)
  np.testing.assert_array_equal(kl.in_reward(advantage=seen, coefficient=0.0)(rows), seen(rows))


def test_errors():
  with pytest.raises(ValueError, match="no gradient in expectation"):
    kl.in_loss(base=ratio.clipped(), estimate=kl.k1)
  with pytest.raises(ValueError, match="at least 0"):
    kl.in_loss(base=ratio.clipped(), coefficient=-1.0)
  with pytest.raises(ValueError, match="at least 0"):
    kl.in_reward(advantage=len, coefficient=-1.0)
