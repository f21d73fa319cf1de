"""The KL divergence to a reference policy, in the loss or in the reward.

With d = log pi - log pi_ref of a token that pi sampled, the estimators and what they are in expectation:

             value                        gradient, when differentiated as a loss
  k1         d                            0: it teaches nothing in a loss, but is unbiased in a reward
  k2         d^2 / 2                      that of KL(pi, ref); the value is biased
  k3         exp(-d) + d - 1              that of KL(ref, pi), the other direction; the value is KL(pi, ref)
  corrected  that of the estimator        that of KL(pi, ref), from k2

(gradients under pi itself: off policy all of them are biased alike). d is clamped to +-20, k3 to at most
10. Source: Schulman, Approximating KL divergence; Tang and Munos, arXiv 2506.09477.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits
from rlvr_jax.core.types import Objective
from rlvr_jax.objective import anchors

MAX_K3 = 10.0


def k1(d):
  return d


def k2(d):
  return d * d / 2


def k3(d):
  return jnp.minimum(jnp.exp(-d) + d - 1, MAX_K3)


def corrected(estimate):
  """The value of an estimator with the gradient of k2."""
  return lambda d: jax.lax.stop_gradient(estimate(d) - k2(d)) + k2(d)


def corrected_k3(d):
  return corrected(k3)(d)


def in_loss(
  *,
  base: Objective,
  coefficient: float = 0.001,
  estimate=corrected_k3,
  reference: str = "reference",
) -> Objective:
  """base + coefficient * estimate(log pi - log pi_ref), on each token.

  Args:
    base: the objective it is added to.
    coefficient: at least 0; 0 is the base itself.
    estimate: k2, k3 or corrected_k3. k1 is refused: its gradient is 0 in expectation.
    reference: the annotated policy.
  """
  if coefficient < 0:
    raise ValueError(f"coefficient must be at least 0, got {coefficient}")
  if estimate is k1:
    raise ValueError("k1 in a loss has no gradient in expectation; take k2 or corrected_k3")
  if coefficient == 0:
    return base

  def loss(stats, rows, advantage, knobs):
    per_token, metrics = base.loss(stats, rows, advantage, knobs)
    mask = rows.loss_mask
    d = anchors.difference(stats.logprobs, traits.logprobs_of(rows, reference), mask)
    metrics = metrics | {"policy/kl_ref": masked.mean(k3(d), mask)}
    return per_token + coefficient * masked.select(estimate(d), mask), metrics

  needs = tuple(dict.fromkeys((*base.needs, reference)))
  return base._replace(loss=loss, needs_advantage=False, needs=needs)


def in_reward(*, advantage, coefficient: float = 0.001, reference: str = "reference"):
  """The advantage of rewards less coefficient * (sum over the row's tokens of k1), at the old policy.

  Args:
    advantage: the advantage function that sees the lowered rewards.
    coefficient: at least 0.
    reference: the annotated policy.

  Returns:
    advantage(rows) -> float32 [N,T].
  """
  if coefficient < 0:
    raise ValueError(f"coefficient must be at least 0, got {coefficient}")

  def lowered(rows):
    mask = rows.loss_mask
    d = anchors.difference(rows.full_logprobs, traits.logprobs_of(rows, reference), mask)
    return advantage(rows.replace(reward=rows.reward - coefficient * masked.total(k1(d), mask, 1)))

  return traits.declare(lowered, needs=(*traits.needs(advantage), reference))
