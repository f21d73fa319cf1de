"""Attention under a view: causal spans without a cache, or keys and values held in one."""

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array, KVCache, Spans, View, places

HIDDEN = -1e30  # finite, so that a row that sees nothing yields numbers and not NaN


def attend(
  view: View,
  layer: int,
  q: Array,
  k: Array,
  v: Array,
  positions: Array,
  valid: Array,
  *,
  scale: float,
  window: int | None = None,
  softcap: float | None = None,
) -> tuple[Array, View]:
  """Grouped-query attention of N rows.

      y_u = sum_v softmax_v(cap(scale * q_u . k_v)) v_v   over the v that u sees

  Under `Spans`, token u sees v iff v <= u < stop[v]. Under `KVCache`, k and v of valid tokens are
  first written at their positions (those beyond the cache are dropped), and a token sees every
  place up to its own position. A window further asks that position[u] - position[v] < window. A
  token that sees nothing gets the mean of all values: finite, to be ignored.

  Args:
    view: what a token may attend to.
    layer: which leaf of a cache is this layer's.
    q: [N,T,H,D], rotated.
    k: [N,T,K,D], rotated; H is a multiple of K.
    v: [N,T,K,D].
    positions: int32 [N,T], not negative.
    valid: bool [N,T]; Spans does not read it, as `stop` already says what is seen.
    scale: what scores are multiplied by.
    window: keys seen, counted back from the token's own; None: all.
    softcap: scores become softcap * tanh(scores / softcap).

  Returns:
    y [N,T,H*D] in the dtype of q, and the view with the layer's keys and values written.
  """
  rows, length, heads, size = q.shape
  groups = heads // k.shape[2]
  q = q.reshape(rows, length, k.shape[2], groups, size)
  if isinstance(view, KVCache):
    view = _write(view, layer, k, v, jnp.where(valid, positions, view.places))
    back = positions[:, :, None] - jnp.arange(view.places, dtype=jnp.int32)[None, None]
    sees = back >= 0
    k, v = view.k[layer], view.v[layer]
  elif isinstance(view, Spans):
    own = places(q)
    sees = (own[:, None, :] <= own[:, :, None]) & (own[:, :, None] < view.stop[:, None, :])
    back = positions[:, :, None] - positions[:, None, :]
    k, v = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3)
  else:
    raise TypeError(f"attend knows KVCache and Spans, not {type(view).__name__}")
  if window is not None:
    sees &= back < window
  y = _attend(q, k, v, sees, scale, softcap)
  return y.reshape(rows, length, heads * size).astype(q.dtype), view


def _write(cache: KVCache, layer: int, k: Array, v: Array, place: Array) -> KVCache:
  """The cache with k and v [N,T,K,D] at place [N,T]; places beyond the cache are dropped."""
  row, head = jnp.arange(k.shape[0])[:, None, None], jnp.arange(k.shape[2])[None, None]
  at = place[:, :, None]
  new_k = cache.k[layer].at[row, head, :, at].set(k.astype(cache.k[layer].dtype), mode="drop")
  new_v = cache.v[layer].at[row, head, at].set(v.astype(cache.v[layer].dtype), mode="drop")
  return KVCache(
    k=(*cache.k[:layer], new_k, *cache.k[layer + 1 :]),
    v=(*cache.v[:layer], new_v, *cache.v[layer + 1 :]),
  )


def _attend(q: Array, k: Array, v: Array, sees: Array, scale: float, softcap: float | None):
  """q [N,T,K,G,D], k [N,K,D,C], v [N,K,C,D], sees [N,T,C] -> [N,T,K,G,D]. Softmax in float32."""
  rows, length, kv_heads, groups, size = q.shape
  flat = q.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, groups * length, size)
  scores = jnp.matmul(flat, k, preferred_element_type=jnp.float32) * scale
  if softcap is not None:
    scores = softcap * jnp.tanh(scores / softcap)
  scores = scores.reshape(rows, kv_heads, groups, length, -1)
  weights = jax.nn.softmax(jnp.where(sees[:, None, None], scores, HIDDEN), axis=-1)
  weights = weights.astype(v.dtype).reshape(rows, kv_heads, groups * length, -1)
  y = jnp.matmul(weights, v).reshape(rows, kv_heads, groups, length, size)
  return y.transpose(0, 3, 1, 2, 4)
