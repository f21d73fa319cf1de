"""How likely a prompt's verdicts are in each hidden state: emission(trials, successes) -> float32 [K,M].

State 0 is a prompt that is never solved, state K - 1 one that always is; the K - 2 between them share the
rates in (0, 1) evenly. Only ratios within a prompt matter.
"""

import jax.numpy as jnp
import numpy as np


def rates(states: int) -> np.ndarray:
  """float32 [K]: the solve rate of each state: 0, the middles of the K - 2 equal parts, 1."""
  middle = (np.arange(1, states - 1) - 0.5) / (states - 2)
  return np.concatenate([[0.0], middle, [1.0]]).astype(np.float32)


def exact(*, states: int = 3):
  """The share of right rollouts IS the state: none, all, or the part of (0, 1) it lies in.

  Source: DPS, arXiv 2603.10887.
  """

  def emission(trials, successes):
    share = successes / jnp.maximum(trials, 1e-6)
    part = 1 + jnp.minimum(jnp.floor(share * (states - 2)).astype(jnp.int32), states - 3)
    state = jnp.where(successes <= 0, 0, jnp.where(successes >= trials, states - 1, part))
    return (state[None] == jnp.arange(states)[:, None]).astype(jnp.float32)

  return emission


def binomial(*, states: int = 3, slip: float = 0.01):
  """Rollouts are right with the state's rate, each by itself: a few verdicts leave the state open.

  Args:
    slip: the chance that a rollout belies its state; rates are held within [slip, 1 - slip]. In (0, 1/2).
  """
  if not 0 < slip < 0.5:
    raise ValueError(f"slip must lie in (0, 1/2), got {slip}")
  rate = np.clip(rates(states), slip, 1 - slip)

  def emission(trials, successes):
    right, wrong = np.log(rate)[:, None], np.log1p(-rate)[:, None]
    log = successes[None] * right + (trials - successes)[None] * wrong
    return jnp.exp(log - log.max(0)[None])

  return emission
