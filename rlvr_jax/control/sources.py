"""How much each data source is drawn from."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import groups
from rlvr_jax.core.types import Array, Controller


class SourceState(flax.struct.PyTreeNode):
  window: Array  # float32 [sources,W], |advantage| of the latest rollouts, a ring
  count: Array  # int32 [sources], rollouts ever
  there: Array  # bool [sources], has prompts


def source_bandit(
  *,
  window: int = 300,
  tau: float = 0.1,
  bonus: float = 1.0,
  floor: float = 0.0,
) -> Controller:
  """The knob "source_weights": more for sources whose rollouts have large advantages, or were seldom seen.

      u_s = mean of |A| over the latest `window` rollouts + bonus sqrt(2 ln(n + 1) / (n_s + 1))
      weight = (1 - floor) softmax(u / tau) + floor / sources

  with n = max(1, sum n_s), where A of a rollout is the mean over its trained tokens. A group of equal
  rewards counts with zeros. The weights are even before the first rollout; a source without prompts has
  weight 0.

  Args:
    window: rollouts, at least 1.
    tau: positive.
    bonus: at least 0.
    floor: share that is spread evenly, in [0, 1].

  Source: DUMP, arXiv 2504.09710; the floor is ours.
  """
  if window < 1:
    raise ValueError(f"window must be at least 1, got {window}")
  if tau <= 0:
    raise ValueError(f"tau must be positive, got {tau}")
  if bonus < 0 or not 0 <= floor <= 1:
    raise ValueError(f"bonus must be at least 0, floor in [0, 1]: got {bonus} and {floor}")

  def init(table):
    there = np.bincount(np.asarray(table.source)) > 0
    num = len(there)
    return SourceState(
      window=jnp.zeros((num, window), jnp.float32),
      count=jnp.zeros(num, jnp.int32),
      there=jnp.asarray(there),
    )

  def value(state):
    weight = weights(
      state.window.sum(1) / jnp.clip(state.count, 1, window),
      state.count,
      state.there,
      tau=tau,
      bonus=bonus,
    )
    weight = (1 - floor) * weight + floor * state.there / state.there.sum()
    return {"source_weights": weight}

  def update(state, feedback):
    rows, mask = feedback.rows, feedback.rows.loss_mask
    tokens = mask.sum(1)
    size = jnp.abs(jnp.where(mask, feedback.advantage, 0.0).sum(1) / jnp.maximum(tokens, 1))
    pushed = rows.valid & (tokens > 0)
    num = len(state.count)
    new = groups.total(jnp.ones_like(rows.source), rows.source, pushed, num)
    rank = groups.rank(rows.source, pushed, num)
    # Of more rollouts than the ring holds, the last ones stay.
    stays = pushed & (rank >= new[rows.source] - window)
    at = jnp.where(stays, (state.count[rows.source] + rank) % window, window)
    ring = state.window.at[rows.source, at].set(size, mode="drop")
    return SourceState(ring, state.count + new, state.there)

  return Controller(init, value, update)


def weights(level: Array, count: Array, there: Array, *, tau: float, bonus: float) -> Array:
  """float32 [sources]: what `source_bandit` makes of mean |A| and the numbers of rollouts."""
  n = jnp.maximum(count.sum(), 1).astype(jnp.float32)
  u = level + bonus * jnp.sqrt(2 * jnp.log(n + 1) / (count + 1))
  return jax.nn.softmax(jnp.where(there, u / tau, -jnp.inf))
