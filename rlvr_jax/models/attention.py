"""Attention under a view: causal spans without a cache, or keys and values held in one."""

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array, KVCache, Shared, Spans, View, places
from rlvr_jax.models import kernels
from rlvr_jax.models.spans import BLOCK, HIDDEN, attend_in_blocks


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

  Under `Spans`, token u sees v iff v <= u < stop[v]. Under a cache, k and v of valid tokens are
  first written at their positions (those beyond the cache are dropped), and a token sees every
  place up to its own position; under `Shared` the first places are those of a prompt held once. A
  window further asks that position[u] - position[v] < window. A token that sees nothing gets
  finite numbers, to be ignored.

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
  q = q.reshape(rows, length, k.shape[2], heads // k.shape[2], size)

  def near(sees: Array, back: Array) -> Array:
    return sees if window is None else sees & (back < window)

  if isinstance(view, Spans):
    kernel = kernels.choose(q.dtype, size, length, softcap)
    if kernel is None and length > BLOCK:
      rule = {"scale": scale, "window": window, "softcap": softcap}
      y = attend_in_blocks(q, k, v, view.stop, positions, **rule)
    else:
      own = places(q)
      sees = (own[:, None, :] <= own[:, :, None]) & (own[:, :, None] < view.stop[:, None, :])
      sees = near(sees, positions[:, :, None] - positions[:, None, :])
      if kernel is None:
        leaf = k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3), None, None
        y = _mean(_sums(q, leaf, sees, scale, softcap))
      else:
        y = kernels.attend(q, k, v, sees, scale=scale, implementation=kernel)
  elif isinstance(view, KVCache):
    view = write(view, layer, k, v, jnp.where(valid, positions, view.places))
    back = positions[:, :, None] - _row(view.places)
    y = _mean(_sums(q, _leaf(view, layer), near(back >= 0, back), scale, softcap))
  elif isinstance(view, Shared):
    place = positions - view.start[:, None]
    own = write(view.own, layer, k, v, jnp.where(valid, place, view.own.places))
    view = view.replace(own=own)
    back = place[:, :, None] - _row(own.places)
    mine = _sums(q, _leaf(own, layer), near(back >= 0, back), scale, softcap)
    y = _mean(_merge(mine, _prompt_sums(view, layer, q, positions, near, scale, softcap)))
  else:
    raise TypeError(f"attend knows KVCache, Shared and Spans, not {type(view).__name__}")
  return y.reshape(rows, length, heads * size).astype(q.dtype), view


def _row(num: int) -> Array:
  return jnp.arange(num, dtype=jnp.int32)[None, None]


def write(cache: KVCache, layer: int, k: Array, v: Array, place: Array) -> KVCache:
  """The cache with k and v [N,T,K,D] at place [N,T]; places beyond the cache are dropped."""
  row, head = jnp.arange(k.shape[0])[:, None, None], jnp.arange(k.shape[2])[None, None]
  at = place[:, :, None]

  def put(leaves, new):
    return (*leaves[:layer], new, *leaves[layer + 1 :])

  if cache.k_scale:
    (k, k_scale), (v, v_scale) = _quantise(k), _quantise(v)
    cache = cache.replace(
      k_scale=put(cache.k_scale, cache.k_scale[layer].at[row, head, at].set(k_scale, mode="drop")),
      v_scale=put(cache.v_scale, cache.v_scale[layer].at[row, head, at].set(v_scale, mode="drop")),
    )
  new_k = cache.k[layer].at[row, head, :, at].set(k.astype(cache.k[layer].dtype), mode="drop")
  new_v = cache.v[layer].at[row, head, at].set(v.astype(cache.v[layer].dtype), mode="drop")
  return cache.replace(k=put(cache.k, new_k), v=put(cache.v, new_v))


def _quantise(x: Array) -> tuple[Array, Array]:
  """Codes in [-127,127] like x, and float32 scales without the last axis; zeros have scale 1."""
  x = x.astype(jnp.float32)
  top = jnp.abs(x).max(-1)
  scale = jnp.where(top > 0, top / 127, 1.0)
  return jnp.round(x / scale[..., None]), scale


def _leaf(cache: KVCache, layer: int):
  """k [S,K,D,C], v [S,K,C,D] of a layer, and their scales [S,K,C] or None."""
  scales = (cache.k_scale[layer], cache.v_scale[layer]) if cache.k_scale else (None, None)
  return cache.k[layer], cache.v[layer], *scales


def _sums(q, leaf, sees, scale, softcap):
  """Softmax sums of q [N,T,K,G,D] over the C places of a leaf with N rows, where sees [N,T,C].

  Returns, in float32, the largest score and the sum of weights exp(score - largest), both
  [N,T,K,G,1], and the weighted sum of values [N,T,K,G,D].
  """
  k, v, k_scale, v_scale = leaf
  rows, length, kv_heads, groups, size = q.shape
  flat = q.transpose(0, 2, 3, 1, 4).reshape(rows, kv_heads, groups * length, size)
  scores = jnp.matmul(flat, k.astype(flat.dtype), preferred_element_type=jnp.float32) * scale
  if k_scale is not None:
    scores = scores * k_scale[:, :, None]
  if softcap is not None:
    scores = softcap * jnp.tanh(scores / softcap)
  scores = scores.reshape(rows, kv_heads, groups, length, -1)
  scores = jnp.where(sees[:, None, None], scores, HIDDEN)
  top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
  weights = jnp.exp(scores - top)
  total = weights.sum(-1, keepdims=True)
  weights = weights.reshape(rows, kv_heads, groups * length, -1)
  if v_scale is not None:
    weights = weights * v_scale[:, :, None]
  dtype = flat.dtype
  y = jnp.matmul(weights.astype(dtype), v.astype(dtype), preferred_element_type=jnp.float32)
  y = y.reshape(rows, kv_heads, groups, length, size)
  back = lambda x: x.transpose(0, 3, 1, 2, 4)
  return back(top), back(total), back(y)


def _mean(sums):
  return sums[2] / sums[1]


def _merge(a, b):
  """The sums over the keys of both, by the larger of the two largest scores."""
  top = jnp.maximum(a[0], b[0])
  left, right = jnp.exp(a[0] - top), jnp.exp(b[0] - top)
  return top, left * a[1] + right * b[1], left * a[2] + right * b[2]


def _prompt_sums(view: Shared, layer: int, q: Array, positions: Array, near, scale, softcap):
  """`_sums` of each slot over its prompt: one pass over a prompt for all the slots of a tile."""
  length = positions.shape[1]
  _, side, wide = view.tile_slot.shape
  place = _row(view.prompts.places)
  leaf = _leaf(view.prompts, layer)
  start = jnp.broadcast_to(view.start[:, None], positions.shape)

  def tile(carry):
    i, sums = carry
    slot, first = view.tile_slot[i], view.tile_prompt[i]
    together = lambda x: x.reshape(side, wide * length, *x.shape[3:])
    take = lambda x: together(x.at[slot].get(mode="fill", fill_value=0))
    put = lambda x, y: x.at[slot].set(y.reshape(side, wide, length, *y.shape[2:]), mode="drop")
    cut = lambda x: x if len(x) == side else jax.lax.dynamic_slice_in_dim(x, first, side)
    back = take(positions)[:, :, None] - place
    sees = near(place < take(start)[:, :, None], back)
    new = _sums(take(q), jax.tree.map(cut, leaf), sees, scale, softcap)
    return i + 1, jax.tree.map(put, sums, new)

  one_a_head = (*q.shape[:-1], 1)
  empty = (
    jnp.full(one_a_head, HIDDEN, jnp.float32),
    jnp.zeros(one_a_head, jnp.float32),
    jnp.zeros(q.shape, jnp.float32),
  )
  first = jnp.zeros((), jnp.int32), empty
  _, sums = jax.lax.while_loop(lambda c: c[0] < view.num_tiles, tile, first)
  return sums
