"""Acquisitions: what makes a prompt worth a rollout, given the belief. Any belief with any of them.

An acquisition is (key, belief, knobs) -> float32 [C]. Where it needs a law it takes the Beta law with the
belief's mean and variance, which for Beta beliefs is the belief itself.
"""

from functools import reduce

import jax
import jax.numpy as jnp

from rlvr_jax.core import beta_laws as laws
from rlvr_jax.core.types import Array, Belief, BeliefModel, PromptPosterior


def scored(model: BeliefModel, acquisition) -> PromptPosterior:
  """A belief model whose prompts are scored by an acquisition.

  A prompt without evidence, of which the model says nothing, is scored as if by the uniform law.
  """

  def score(state, key, prompt_id, knobs):
    return acquisition(key, _known(model.belief(state, prompt_id)), knobs)

  return PromptPosterior(model.init, model.update, model.belief, score)


def uniform():
  """Every prompt scores 1."""
  return lambda key, belief, knobs: jnp.ones_like(belief.mean)


def variance(*, right: float = 1.0, wrong: float = 1.0):
  """p^right (1 - p)^wrong at the mean belief p. With 1 and 1 it is the variance of a verdict, and what
  GRPO's gradient grows with; with 1/2 and 1/2 its standard deviation (CurES, arXiv 2510.01037); wrong=2
  prefers hard prompts (VADE, arXiv 2511.18902).

  Args:
    right, wrong: at least 0.
  """
  if right < 0 or wrong < 0:
    raise ValueError(f"powers must be at least 0, got right={right} and wrong={wrong}")

  def acquisition(key, belief, knobs):
    del key, knobs
    return _power(belief.mean, right) * _power(1 - belief.mean, wrong)

  return acquisition


def learnability():
  """The expected p (1 - p): mean (1 - mean) - variance. Unlike `variance` it does not take a prompt of which
  nothing is known for one of rate 1/2."""

  def acquisition(key, belief, knobs):
    del key, knobs
    return jnp.maximum(belief.mean * (1 - belief.mean) - belief.variance, 0.0)

  return acquisition


def mixed(*, rollouts: int = 8):
  """The chance that a group has both right and wrong rollouts: 1 - E p^K - E (1 - p)^K.

  Args:
    rollouts: K, at least 1.
  """
  if rollouts < 1:
    raise ValueError(f"rollouts must be at least 1, got {rollouts}")

  def acquisition(key, belief, knobs):
    del key, knobs
    a, b = laws.as_beta(belief)
    all_of = lambda x: reduce(jnp.multiply, [(x + i) / (a + b + i) for i in range(rollouts)])
    return jnp.maximum(1 - all_of(a) - all_of(b), 0.0)

  return acquisition


def per_token(*, of=None):
  """Another acquisition for each response token that a rollout is expected to take.

  Args:
    of: an acquisition that is not negative; default `mixed()`. A belief that does not predict tokens takes
      all rollouts for equally long.
  """
  of = of or mixed()

  def acquisition(key, belief, knobs):
    value = of(key, belief, knobs)
    return value if belief.tokens is None else value / belief.tokens

  return acquisition


def information(*, rollouts: int = 8):
  """What the verdicts of K rollouts say about the solve rate: their mutual information, in nats.

      I = sum_s P(s) KL_s,   P(s) = C(K,s) exp(l_s),   l_s = ln B(a + s, b + K - s) / B(a, b)
      KL_s = -l_s + s psi(a + s) + (K - s) psi(b + K - s) - K psi(a + b + K)

  A difference of entropies of Beta laws would be the same, but for rounding: in float32 this form is right
  to 0.3 % for a + b up to 500, beyond which it is noise of about 1e-5. It falls with the evidence.

  Args:
    rollouts: K, at least 0.

  Source: INSIGHT, arXiv 2603.01907; this form of it is ours.
  """
  if rollouts < 0:
    raise ValueError(f"rollouts must be at least 0, got {rollouts}")

  def acquisition(key, belief, knobs):
    del key, knobs
    return laws.verdict_information(*laws.as_beta(belief), rollouts)

  return acquisition


def insight(*, rollouts: int = 8, eta: float = 3.0, mu: float = 0.3):
  """Information, weighted towards prompts that are learnable and rather hard.

      m (1 - m) exp(-eta (m - mu)^2) I,   m: the mean belief, never a draw

  Args:
    rollouts: of `information`.
    eta: at least 0.
    mu: in [0, 1].

  Source: INSIGHT, arXiv 2603.01907.
  """
  if eta < 0 or not 0 <= mu <= 1:
    raise ValueError(f"eta must be at least 0 and mu in [0, 1], got eta={eta} and mu={mu}")
  gain = information(rollouts=rollouts)

  def acquisition(key, belief, knobs):
    m = belief.mean
    return m * (1 - m) * jnp.exp(-eta * jnp.square(m - mu)) * gain(key, belief, knobs)

  return acquisition


def thompson(*, of=None):
  """Another acquisition, at a solve rate drawn from the belief: what is not known gets its chance.

  Args:
    of: an acquisition that reads the mean; default `variance()`. The belief it is given is a certain one.

  Source: W. R. Thompson, Biometrika 25 (1933); the draws: core.beta_laws.draw_beta.
  """
  of = of or variance()

  def acquisition(key, belief, knobs):
    draw, inner = jax.random.split(key)
    rate = laws.draw_beta(draw, *laws.as_beta(belief))
    return of(inner, belief.replace(mean=rate, variance=jnp.zeros_like(rate)), knobs)

  return acquisition


def ucb(*, width: float = 1.0, target: float = 0.5):
  """Optimism: 1 less the distance to `target` of the rate nearest to it among those within `width` standard
  deviations of the mean.

  Args:
    width: at least 0; 0 ranks by the mean alone.
    target: the solve rate wished for, in [0, 1].
  """
  if width < 0 or not 0 <= target <= 1:
    raise ValueError(f"width must be at least 0, target in [0, 1]: got {width} and {target}")

  def acquisition(key, belief, knobs):
    del key, knobs
    reach = width * jnp.sqrt(belief.variance)
    return 1 - jnp.maximum(jnp.abs(belief.mean - target) - reach, 0.0)

  return acquisition


def band(*, low: float = 0.2, high: float = 0.8):
  """0 for a mean belief within [low, high], less the further outside it is."""
  if not 0 <= low <= high <= 1:
    raise ValueError(f"0 <= low <= high <= 1 must hold, got {low} and {high}")

  def acquisition(key, belief, knobs):
    del key, knobs
    return -jnp.maximum(jnp.maximum(low - belief.mean, belief.mean - high), 0.0)

  return acquisition


def _known(belief: Belief) -> Belief:
  known = belief.evidence > 0
  return belief.replace(
    mean=jnp.where(known, belief.mean, 1 / 2), variance=jnp.where(known, belief.variance, 1 / 12)
  )


def _power(x: Array, power: float) -> Array:
  return x ** int(power) if power == int(power) else x**power
