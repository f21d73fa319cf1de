"""How a loss is made of a ratio and an advantage: mode(terms) -> (loss [N,T], log of the bounded ratio)."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.core import traits
from rlvr_jax.core.types import Array
from rlvr_jax.objective import anchors


class Terms(NamedTuple):
  """What a mode makes a loss of; all [N,T], 0 outside the mask."""

  logprobs: Array
  d: Array  # log ratio of each token, with its gradient
  u: Array  # log weight of each token over the scope, with its gradient
  advantage: Array
  mask: Array
  low: Array | float  # bounds of the ratio
  high: Array | float
  scope: Callable


def ppo(*, dual: float = 0.0):
  """max(-A rho, -A clip(rho, low, high)), and at most -A dual where A < 0 if dual is given.

  The gradient is 0 where the ratio has already left the interval in the direction A asks for, and where
  the dual clip acts.

  Args:
    dual: 0 for none, else above 1.

  Source: PPO, arXiv 1707.06347; dual clip: arXiv 1912.09729.
  """
  if dual and dual <= 1:
    raise ValueError(f"dual must be 0 or above 1, got {dual}")

  def mode(terms):
    a, ratio = terms.advantage, jnp.exp(terms.u)
    free, held = -a * ratio, -a * jnp.clip(ratio, terms.low, terms.high)
    # Not jnp.maximum: on a bound, where both are equal, it would mix in the gradient of the clip.
    loss = jnp.where(held > free, held, free)
    if dual:
      loss = jnp.where((a < 0) & (loss > -a * dual), -a * dual, loss)
    return loss, terms.u

  return mode


def cispo():
  """-stopgrad(clip(rho, low, high)) A log pi: every token keeps its gradient, its weight is capped.

  The value is that of a score function, not of a surrogate: it is not -A on policy.

  Source: CISPO (MiniMax-M1), arXiv 2506.13585.
  """

  def mode(terms):
    weight = jnp.clip(jnp.exp(terms.u), terms.low, terms.high)
    return -jax.lax.stop_gradient(weight) * terms.advantage * terms.logprobs, terms.u

  return mode


def filtered():
  """-stopgrad(rho [low < rho < high]) A log pi: outside the interval no gradient, whatever the sign of A.

  Source: DIS of SAO, arXiv 2607.07508.
  """

  def mode(terms):
    u = jax.lax.stop_gradient(terms.u)
    inside = (jnp.exp(u) > terms.low) & (jnp.exp(u) < terms.high)
    weight = jnp.where(inside, jnp.exp(u), 0.0)
    return -weight * terms.advantage * terms.logprobs, terms.u

  return traits.declare(mode, two_sided=True)


def gmpo():
  """-A exp(scope(d clipped token by token)), the pessimistic clip of PPO in log space before the mean.

      g = sign(A) min(sign(A) d, sign(A) clip(d, log low, log high))

  The paper's is with scopes.sequence(own=False) and the mean over rows of means over tokens. A correction
  enters as its geometric mean over the row.

  Source: GMPO, arXiv 2507.20673.
  """

  def mode(terms):
    d, sign = terms.d, jnp.sign(terms.advantage)
    held = jnp.clip(d, jnp.log(terms.low), jnp.log(terms.high))
    clipped = jnp.where(sign * held < sign * d, held, d)
    return -terms.advantage * jnp.exp(terms.scope(clipped, terms.mask)), d

  return traits.declare(mode, joins=anchors.geometric_mean, reads="row")


def reinforce():
  """-A log pi: on-policy data only, the ratio is not in it.

  Source: Williams, 1992.
  """
  return lambda terms: (-terms.advantage * terms.logprobs, terms.u)
