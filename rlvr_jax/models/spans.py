"""Attention under `Spans` in blocks: pairs of blocks in which no token sees another are skipped.

Tokens of a packed bin see the path from the root of their tree, so that most of a long bin is hidden from
most of its tokens. The pairs that are needed are listed at run time, forwards and backwards walk the list,
and a softmax is summed up block by block: no [T,T] array exists, and no shape depends on the batch.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array

BLOCK = 128
HIDDEN = -1e30  # finite, so that a row that sees nothing yields numbers and not NaN


class Rules(NamedTuple):
  """What a score is, and who sees whom; static."""

  scale: float
  window: int | None
  softcap: float | None


class Pairs(NamedTuple):
  """Block pairs (query, key) to be computed, the needed ones first."""

  query: Array  # int32 [P]
  key: Array  # int32 [P]
  num: Array  # int32 []


def attend_in_blocks(
  q: Array, k: Array, v: Array, stop: Array, positions: Array, *,
  scale: float, window: int | None = None, softcap: float | None = None,
) -> Array:  # fmt: skip
  """What `models.attention.attend` says of `Spans`: u sees v iff v <= u < stop[v], within the window.

  Args:
    q: [N,T,K,G,D].
    k, v: [N,T,K,D].
    stop, positions: int32 [N,T].

  Returns:
    float32 [N,T,K,G,D]. Memory grows with T, time with the pairs of blocks that see each other.

  Source: the running softmax is that of FlashAttention, arXiv 2205.14135, algorithm 1.
  """
  length = q.shape[1]
  pad = lambda x: jnp.pad(x, ((0, 0), (0, -length % BLOCK)) + ((0, 0),) * (x.ndim - 2))
  # [N,K,G,T,D] and [N,K,T,D]: blocks are slices of the last axis but one.
  q, k, v = (
    pad(q).transpose(0, 2, 3, 1, 4),
    pad(k).transpose(0, 2, 1, 3),
    pad(v).transpose(0, 2, 1, 3),
  )
  y: Any = _attend(Rules(scale, window, softcap), q, k, v, pad(stop), pad(positions))
  return y.transpose(0, 3, 1, 2, 4)[:, :length]


def needed_pairs(stop: Array, positions: Array, window: int | None) -> Pairs:
  """The pairs of blocks with a token that sees another, in any row, and each block with itself.

  Args:
    stop, positions: int32 [N,T]; T is a multiple of BLOCK.
  """
  blocks = stop.shape[1] // BLOCK
  per_block = lambda x: x.reshape(len(x), blocks, BLOCK)
  first = jnp.arange(blocks, dtype=jnp.int32) * BLOCK
  seen = (
    per_block(stop).max(2)[:, None, :] > first[None, :, None]
  )  # some key reaches the query block
  if window is not None:
    nearest = per_block(positions).min(2)[:, :, None] - per_block(positions).max(2)[:, None, :]
    seen &= nearest < window
  order = first[:, None] - first[None]
  needed = (seen.any(0) & (order > 0)) | (order == 0)
  listed = jnp.argsort(~needed.reshape(-1), stable=True).astype(jnp.int32)
  return Pairs(listed // blocks, listed % blocks, needed.sum(dtype=jnp.int32))


def _cut(x: Array, block: Array) -> Array:
  """The block of the last axis but one."""
  return jax.lax.dynamic_slice_in_dim(x, block * BLOCK, BLOCK, x.ndim - 2)


def _put(x: Array, y: Array, block: Array) -> Array:
  return jax.lax.dynamic_update_slice_in_dim(x, y.astype(x.dtype), block * BLOCK, x.ndim - 2)


def _product(spec: str, a: Array, b: Array) -> Array:
  """In the dtype of the model, summed in float32."""
  return jnp.einsum(spec, a, b.astype(a.dtype), preferred_element_type=jnp.float32)


def _scores(rules: Rules, q: Array, k: Array, stop: Array, positions: Array, i: Array, j: Array):
  """Capped scores of query block i and key block j [N,K,G,B,B], their slope by the raw ones, and who sees."""
  column = lambda x, block: jax.lax.dynamic_slice_in_dim(x, block * BLOCK, BLOCK, 1)
  raw = _product("nkgud,nkvd->nkguv", _cut(q, i), _cut(k, j)) * rules.scale
  slope = rules.scale
  if rules.softcap is not None:
    bent = jnp.tanh(raw / rules.softcap)
    raw, slope = rules.softcap * bent, rules.scale * (1 - bent * bent)
  u = (i * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32))[None, :, None]
  own = (j * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32))[None, None, :]
  sees = (own <= u) & (u < column(stop, j)[:, None, :])
  if rules.window is not None:
    sees &= column(positions, i)[:, :, None] - column(positions, j)[:, None, :] < rules.window
  return raw, slope, sees[:, None, None]


def _run(rules: Rules, q, k, v, stop, positions):
  """y float32 [N,K,G,T,D] and the log-normalisers [N,K,G,T,1]."""
  pairs = needed_pairs(stop, positions, rules.window)

  def body(p, carry):
    top, total, y = carry
    i, j = pairs.query[p], pairs.key[p]
    scores, _, sees = _scores(rules, q, k, stop, positions, i, j)
    scores = jnp.where(sees, scores, HIDDEN)
    old = _cut(top, i)
    new = jnp.maximum(old, scores.max(-1, keepdims=True))
    weights, fade = jnp.exp(scores - new), jnp.exp(old - new)
    part = _product("nkguv,nkvd->nkgud", weights.astype(v.dtype), _cut(v, j))
    return (
      _put(top, new, i),
      _put(total, _cut(total, i) * fade + weights.sum(-1, keepdims=True), i),
      _put(y, _cut(y, i) * fade + part, i),
    )

  one = jnp.zeros((*q.shape[:-1], 1), jnp.float32)
  start = one + HIDDEN, one, jnp.zeros(q.shape, jnp.float32)
  top, total, y = jax.lax.fori_loop(0, pairs.num, body, start)
  return y / total, top + jnp.log(total)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(rules: Rules, q, k, v, stop, positions):
  return _run(rules, q, k, v, stop, positions)[0]


def _forward(rules, q, k, v, stop, positions):
  y, normaliser = _run(rules, q, k, v, stop, positions)
  return y, (q, k, v, stop, positions, y, normaliser)


def _backward(rules, saved, to_y):
  q, k, v, stop, positions, y, normaliser = saved
  pairs = needed_pairs(stop, positions, rules.window)
  along = (to_y * y).sum(-1, keepdims=True)
  to_y = to_y.astype(q.dtype)

  def body(p, carry):
    to_q, to_k, to_v = carry
    i, j = pairs.query[p], pairs.key[p]
    scores, slope, sees = _scores(rules, q, k, stop, positions, i, j)
    weights = jnp.where(sees, jnp.exp(scores - _cut(normaliser, i)), 0.0)
    out = _cut(to_y, i)
    more_v = _product("nkguv,nkgud->nkvd", weights.astype(q.dtype), out)
    to_weights = _product("nkgud,nkvd->nkguv", out, _cut(v, j))
    to_scores = (weights * (to_weights - _cut(along, i)) * slope).astype(q.dtype)
    more_q = _product("nkguv,nkvd->nkgud", to_scores, _cut(k, j))
    more_k = _product("nkguv,nkgud->nkvd", to_scores, _cut(q, i))
    return (
      _put(to_q, _cut(to_q, i) + more_q, i),
      _put(to_k, _cut(to_k, j) + more_k, j),
      _put(to_v, _cut(to_v, j) + more_v, j),
    )

  zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
  to_q, to_k, to_v = jax.lax.fori_loop(0, pairs.num, body, (zeros(q), zeros(k), zeros(v)))
  return to_q.astype(q.dtype), to_k.astype(k.dtype), to_v.astype(v.dtype), None, None


_attend.defvjp(_forward, _backward)
