"""Returns, advantages over time and losses of values, on float32 [N,T] arrays.

`mask` bool [N,T] marks the tokens that count. Places outside of it are skipped, not zeroed: what follows a
counted token is the next counted token of its row, however many observation tokens lie between. Results
are 0 off the mask, whatever stands there.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked
from rlvr_jax.core.types import Array


def at_end(per_row, mask):
  """float32 [N,T]: per_row [N] on the last counted token of each row, 0 elsewhere."""
  left = jnp.cumsum(mask[:, ::-1].astype(jnp.int32), axis=1)[:, ::-1]
  return jnp.where(mask & (left == 1), per_row[:, None].astype(jnp.float32), 0.0)


def gae(reward, values, mask, *, gamma: float = 1.0, lam: float | Array = 1.0):
  """Generalised advantage estimation, backwards over the counted tokens of each row.

      delta_t = r_t + gamma V_next - V_t
      A_t     = delta_t + gamma lam A_next          next: the counted token after t; 0 after the last

  Args:
    reward, values: float32 [N,T]; the value of a token is read before the token is drawn.
    gamma: float.
    lam: float, or float32 [N].

  Returns:
    advantage, returns = advantage + values, float32 [N,T] each. With values of 0 and lam 1 both are the
    discounted reward to go.

  Source: arXiv 1506.02438.
  """
  reward, values = masked.select(reward, mask), masked.select(values, mask)
  decay = gamma * jnp.broadcast_to(jnp.asarray(lam, jnp.float32), (mask.shape[0],))

  def back(after, now):
    next_value, next_advantage = after
    r, v, counts = now
    a = r + gamma * next_value - v + decay * next_advantage
    return (jnp.where(counts, v, next_value), jnp.where(counts, a, next_advantage)), a

  zero = jnp.zeros(mask.shape[0], jnp.float32)
  columns = reward.astype(jnp.float32).T, values.astype(jnp.float32).T, mask.T
  _, advantage = jax.lax.scan(back, (zero, zero), columns, reverse=True)
  advantage = masked.select(advantage.T, mask)
  return advantage, masked.select(advantage + values, mask)


def length_lambda(mask, alpha):
  """float32 [N]: 1 - 1 / (alpha l), l the counted tokens of the row (0 for a row without any).

  Source: SAO, arXiv 2607.07508.
  """
  length = mask.sum(1).astype(jnp.float32)
  return jnp.where(length > 0, 1 - 1 / (alpha * jnp.maximum(length, 1.0)), 0.0)


def whiten(x, mask, *, epsilon=1e-8):
  """(x - mean) / sqrt(variance + epsilon) over the counted places of the WHOLE array, ddof 1.

  Fewer than two places, or equal numbers in all of them: 0.
  """
  lowest = -masked.highest(-x, mask)
  d = masked.select(x.astype(jnp.float32) - lowest, mask)  # equal numbers stay exactly equal
  d = masked.select(d - masked.mean(d, mask), mask)
  return jnp.where(mask.sum() > 1, d / jnp.sqrt(masked.variance(d, mask, ddof=1) + epsilon), 0.0)


def squared(values, returns):
  """Loss of each value: half the squared distance to its return."""
  return 0.5 * (values - returns) ** 2


def clipped_squared(values, old, returns, *, clip):
  """The larger of `squared` at the value and at the value held within `clip` of the old one.

  Source: PPO's value loss, arXiv 1707.06347 (as in its published code).
  """
  held = jnp.clip(values, old - clip, old + clip)
  return jnp.maximum(squared(values, returns), squared(held, returns))


def project(y, p, atoms):
  """float32 [...,K]: the law that puts p [...,J] on y [...,J], moved onto the atoms [K], ascending.

  Each y (clipped to the atoms' range) is shared between its two neighbours so that the mean stays.

  Source: C51, arXiv 1707.06887.
  """
  y = jnp.clip(y, atoms[0], atoms[-1])[..., None]
  lift = lambda x: x.reshape((1,) * (y.ndim - 1) + x.shape)
  gap = jnp.diff(atoms)
  below = jnp.append(gap[:1], gap)  # distance to the neighbour on the left; unused at the ends
  above = jnp.append(gap, gap[-1:])
  d = y - lift(atoms)
  weight = jnp.clip(1 - jnp.abs(d) / jnp.where(d < 0, lift(below), lift(above)), 0.0, 1.0)
  return (p[..., None] * weight).sum(-2)


def cross_entropy(logits, target):
  """[...]: - sum_k target_k log softmax_k over the last axis."""
  return -(target * jax.nn.log_softmax(logits.astype(jnp.float32))).sum(-1)


def quantile_loss(theta, y, *, kappa=0.0):
  """[...]: quantile regression of theta [...,K], at the levels (k + 0.5) / K, on samples y [...,J].

      sum_k mean_j |tau_k - [y_j < theta_k]| H(y_j - theta_k),   H(u) = |u|, or Huber's of width kappa / kappa

  A kappa as wide as the rewards turns quantiles into expectiles.

  Source: QR-DQN, arXiv 1710.10044.
  """
  num = theta.shape[-1]
  u = y[..., None, :] - theta[..., :, None]
  size = jnp.abs(u)
  if kappa > 0:
    size = jnp.where(size <= kappa, 0.5 * u * u, kappa * (size - 0.5 * kappa)) / kappa
  tau = ((jnp.arange(num, dtype=jnp.float32) + 0.5) / num)[:, None]
  tau = tau.reshape((1,) * (u.ndim - 2) + tau.shape)
  return (jnp.abs(tau - (u < 0)) * size).mean(-1).sum(-1)
