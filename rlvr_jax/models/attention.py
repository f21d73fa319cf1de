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
  if isinstance(view, KVCache):
    row = jnp.arange(q.shape[0])[:, None]
    place = jnp.where(valid, positions, view.places)
    k = view.k[layer].at[row, place].set(k.astype(view.k[layer].dtype), mode="drop")
    v = view.v[layer].at[row, place].set(v.astype(view.v[layer].dtype), mode="drop")
    view = KVCache(
      k=(*view.k[:layer], k, *view.k[layer + 1 :]), v=(*view.v[:layer], v, *view.v[layer + 1 :])
    )
    back = positions[:, :, None] - places(k)[:, None, :]
    sees = back >= 0
  elif isinstance(view, Spans):
    own = places(q)
    sees = (own[:, None, :] <= own[:, :, None]) & (own[:, :, None] < view.stop[:, None, :])
    back = positions[:, :, None] - positions[:, None, :]
  else:
    raise TypeError(f"attend knows KVCache and Spans, not {type(view).__name__}")
  if window is not None:
    sees &= back < window
  return _attend(q, k, v, sees, scale, softcap), view


def _attend(q: Array, k: Array, v: Array, sees: Array, scale: float, softcap: float | None):
  """q [N,T,H,D], k and v [N,C,K,D], sees [N,T,C] -> [N,T,H*D]. Softmax in float32."""
  rows, length, heads, size = q.shape
  q = q.reshape(rows, length, k.shape[2], heads // k.shape[2], size)
  scores = jnp.einsum("ntkgd,nckd->nkgtc", q, k, preferred_element_type=jnp.float32) * scale
  if softcap is not None:
    scores = softcap * jnp.tanh(scores / softcap)
  weights = jax.nn.softmax(jnp.where(sees[:, None, None], scores, HIDDEN), axis=-1)
  y = jnp.einsum("nkgtc,nckd->ntkgd", weights.astype(v.dtype), v)
  return y.reshape(rows, length, heads * size).astype(q.dtype)
