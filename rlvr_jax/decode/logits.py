"""The law a token is drawn from: temperature, then top-k, top-p and min-p; its log-probs; drawing from it.

`temper` is used by the sampler and by the learner alike, so that both speak of the same law.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import keys
from rlvr_jax.core.types import Array

MASKED = -1e30  # finite, so that no difference of two masked logits is NaN
BLOCK = 128


class Truncation(flax.struct.PyTreeNode):
  """Which tokens may be drawn. None: no such rule. Scalars, or one number a row."""

  top_k: Array | None = None  # int32, >= 1: the k most likely; ties with the k-th are kept
  top_p: Array | None = None  # float32 in (0,1]: the smallest set of at least this mass
  min_p: Array | None = None  # float32 in [0,1]: at least this share of the likeliest token
  allowed: Array | None = None  # bool [1,V] or [N,V]: no other token may be drawn


def truncation(*, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Truncation | None:
  """A Truncation from plain numbers, None if nothing is cut off.

  Raises:
    ValueError: if a number is out of range.
  """
  if top_k < 0:
    raise ValueError(f"top_k must be at least 0 (0: off), got {top_k}")
  if not 0.0 < top_p <= 1.0:
    raise ValueError(f"top_p must lie in (0, 1], got {top_p}")
  if not 0.0 <= min_p <= 1.0:
    raise ValueError(f"min_p must lie in [0, 1], got {min_p}")
  if not top_k and top_p == 1.0 and not min_p:
    return None
  return Truncation(
    top_k=jnp.asarray(min(top_k, 2**31 - 1), jnp.int32) if top_k else None,
    top_p=jnp.asarray(top_p, jnp.float32) if top_p < 1.0 else None,
    min_p=jnp.asarray(min_p, jnp.float32) if min_p else None,
  )


def temper(logits, temperature):
  """Logits [S,V] over temperature [S]. Temperature 0 stands for greedy: the law stays that of 1."""
  safe = jnp.where(temperature > 0, temperature, 1.0)
  # Ids that a model rules out lie at -1e30: a low temperature would take them to -inf.
  return jnp.maximum(logits.astype(jnp.float32) / safe[:, None], MASKED)


def _ordered(x):
  """float32 -> uint32 of the same order."""
  bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
  return jnp.where(bits >> 31, ~bits, bits | jnp.uint32(1 << 31))


def _threshold(order, enough):
  """uint32 [S]: the largest t for which enough(order >= t [S,V]) -> bool [S] holds.

  Bisection over the 32 bits: a whole sort of the vocabulary costs more.
  """

  def bit(i, t):
    higher = t | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    return jnp.where(enough(order >= higher[:, None]), higher, t)

  return jax.lax.fori_loop(0, 32, bit, jnp.zeros(order.shape[0], jnp.uint32))


def truncate(z, rule: Truncation | None):
  """Tempered logits z [S,V] with the tokens that may not be drawn at MASKED.

  Of the allowed tokens, top-k first; top-p then speaks of the distribution renormalised over what top-k
  kept, min-p of what both kept. All ties with the last token kept are kept.
  """
  if rule is None:
    return z
  rows = z.shape[0]
  per_row = lambda x: jnp.broadcast_to(x, (rows,))
  if rule.allowed is not None:
    z = jnp.where(rule.allowed, z, MASKED)
  order = _ordered(z)
  if rule.top_k is not None:
    k = per_row(rule.top_k)
    k = jnp.where(k < 1, z.shape[1], jnp.minimum(k, z.shape[1]))
    t = _threshold(order, lambda keep: keep.sum(1) >= k)
    z = jnp.where(order >= t[:, None], z, MASKED)
  if rule.top_p is not None:
    p = jax.nn.softmax(z, axis=1)
    # A sum in float32 may stop short of 1: never ask for more than the whole.
    mass = jnp.clip(per_row(rule.top_p), 1e-9, p.sum(1))  # at least the likeliest
    t = _threshold(order, lambda keep: jnp.where(keep, p, 0.0).sum(1) >= mass)
    z = jnp.where(order >= t[:, None], z, MASKED)
  if rule.min_p is not None:
    cut = z.max(1) + jnp.log(per_row(rule.min_p))
    z = jnp.where(z >= cut[:, None], z, MASKED)
  return z


def _masses(z):
  """Largest logit [S,1], and exp(z - largest) [S,V]. Written once, so that XLA computes it once."""
  top = jax.lax.stop_gradient(z.max(1, keepdims=True))
  return top, jnp.exp(z - top)


def log_normaliser(z):
  """float32 [S]: log of the sum of exp(z [S,V]); not finite if any logit is NaN or +inf."""
  top, mass = _masses(z)
  return jnp.log(mass.sum(1)) + top[:, 0]


def logprob(z, token):
  """float32 [S]: log-softmax of z [S,V] at token [S]."""
  return jnp.take_along_axis(z, token[:, None], 1)[:, 0] - log_normaliser(z)


def entropy(z):
  """float32 [S]: entropy of softmax(z [S,V]) in nats."""
  top, mass = _masses(z)
  total = mass.sum(1)
  return jnp.log(total) - (mass * (z - top)).sum(1) / total


def _invert(mass, u):
  """int32 [S]: first index of mass at which the running sum of mass [S,C] passes u * total.

  A running sum is made in parallel and may move, even fall, by rounding where there is no mass: an index of
  mass 0 is never taken, and the last one of mass stands for what rounding puts beyond it.
  """
  running = jnp.cumsum(mass, axis=1)
  total = running[:, -1]
  aim = jnp.minimum(u * total, jnp.nextafter(total, 0.0))  # u * total may round up to total
  hit = (running > aim[:, None]) & (mass > 0)
  last = mass.shape[1] - 1 - jnp.argmax(jnp.flip(mass > 0, 1), 1)
  return jnp.where(hit.any(1), jnp.argmax(hit, 1), last).astype(jnp.int32)


def draw(uid, position, z):
  """Tokens int32 [S] from softmax(z [S,V]), by the randomness of (uid [S,2], position [S]) alone.

  A two-level inverse of the distribution function: a block of 128 tokens, then the token in it. It needs
  two uniforms a row; Gumbel noise over the vocabulary needs V and takes a quarter of a decoding step on
  a CPU.
  """
  rows, vocab = z.shape
  u = keys.token_uniforms(uid, position)
  _, mass = _masses(z)
  mass = jnp.pad(mass, ((0, 0), (0, -vocab % BLOCK))).reshape(rows, -1, BLOCK)
  block = _invert(mass.sum(2), u[:, 0])
  inside = jnp.take_along_axis(mass, block[:, None, None], 1)[:, 0]
  return block * BLOCK + _invert(inside, u[:, 1])
