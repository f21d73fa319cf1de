"""Attention against loops in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import KVCache, Shared, Spans
from rlvr_jax.models.attention import attend

N, T, H, K, D = 2, 6, 4, 2, 3


def _qkv(length=T, seed=0):
  rng = np.random.default_rng(seed)
  shapes = [(N, length, H, D), (N, length, K, D), (N, length, K, D)]
  return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def _by_hand(q, k, v, sees, scale, softcap=None):
  """One softmax at a time; sees(n, u, v) says which keys count."""
  y = np.zeros((N, q.shape[1], H, D))
  for n in range(N):
    for u in range(q.shape[1]):
      keys = [c for c in range(k.shape[1]) if sees(n, u, c)]
      for h in range(H):
        scores = np.array([q[n, u, h] @ k[n, c, h // (H // K)] * scale for c in keys])
        if softcap:
          scores = softcap * np.tanh(scores / softcap)
        weights = np.exp(scores) / np.exp(scores).sum()
        y[n, u, h] = sum(w * v[n, c, h // (H // K)] for w, c in zip(weights, keys))
  return y.reshape(N, q.shape[1], H * D)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (2, None), (None, 0.5), (3, 0.5)])
def test_spans(window, softcap):
  # Row 0 is plain; row 1 packs a prefix of two, a branch of two, and a second branch of two.
  stop = np.array([[6] * 6, [6, 6, 4, 4, 6, 6]])
  positions = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 2, 3]])
  q, k, v = _qkv()
  y, view = attend(
    Spans(jnp.array(stop)), 0, q, k, v, positions, positions >= 0,
    scale=0.7, window=window, softcap=softcap,
  )  # fmt: skip

  def sees(n, u, c):
    near = window is None or positions[n, u] - positions[n, c] < window
    return c <= u < stop[n, c] and near

  np.testing.assert_allclose(y, _by_hand(q, k, v, sees, 0.7, softcap), atol=1e-5)
  assert isinstance(view, Spans)


@pytest.mark.parametrize("window", [None, 2])
def test_cache_holds_what_was_written_and_sees_up_to_the_own_position(window):
  places = 8
  cache = KVCache(k=(jnp.zeros((N, K, D, places)),) * 2, v=(jnp.zeros((N, K, places, D)),) * 2)
  q, k, v = _qkv(length=3)
  start = np.array([[0], [4]])
  # Row 0 first fills places 0..2, row 1 places 4..6, of which the last token is not valid.
  positions = start + np.arange(3)
  valid = np.array([[True] * 3, [True, True, False]])
  y, cache = attend(cache, 1, q, k, v, positions, valid, scale=0.7, window=window)

  held_k, held_v = np.zeros((N, places, K, D)), np.zeros((N, places, K, D))
  for n in range(N):
    for t in range(3):
      if valid[n, t]:
        held_k[n, positions[n, t]], held_v[n, positions[n, t]] = k[n, t], v[n, t]
  np.testing.assert_array_equal(cache.k[1], held_k.transpose(0, 2, 3, 1))
  np.testing.assert_array_equal(cache.v[1], held_v.transpose(0, 2, 1, 3))
  assert not np.any(cache.k[0])  # the other layer's

  def sees(n, u, c):
    back = positions[n, u] - c
    return back >= 0 and (window is None or back < window)

  np.testing.assert_allclose(y, _by_hand(q, held_k, held_v, sees, 0.7), atol=1e-5)


def test_tokens_beyond_the_cache_are_dropped():
  cache = KVCache(k=(jnp.zeros((N, K, D, 2)),), v=(jnp.zeros((N, K, 2, D)),))
  q, k, v = _qkv(length=1)
  positions = np.array([[2], [1]])
  _, cache = attend(cache, 0, q, k, v, positions, positions >= 0, scale=1.0)
  assert not np.any(cache.k[0][0])
  np.testing.assert_array_equal(cache.k[0][1, :, :, 1], k[1, 0])


def test_a_token_that_sees_nothing_is_finite():
  q, k, v = _qkv()
  positions = np.tile(np.arange(T), (N, 1))
  stop = jnp.zeros((N, T), jnp.int32)
  y, _ = attend(Spans(stop), 0, q, k, v, positions, positions < 0, scale=1.0)
  assert np.all(np.isfinite(y))


PROMPTS = [5, 3, 4, 1, 2]  # tokens of each prompt
GROUPS = [0, 1, 0, 4, 0, 3, 1]  # the prompt of each slot; prompt 2 has none


@pytest.mark.parametrize(("side", "wide"), [(1, 1), (1, 2), (2, 2), (5, 3), (2, 4)])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, 0.5)])
def test_shared_prompts(side, wide, window, softcap):
  """Slots that attend to prompts held once, in tiles of any shape, against whole rows by hand."""
  rng = np.random.default_rng(3)
  slots, own_places = len(GROUPS), 4
  normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
  prompt_k, prompt_v = normal(5, K, D, 6), normal(5, K, 6, D)
  own_k, own_v = normal(slots, K, D, own_places), normal(slots, K, own_places, D)
  q, k, v = map(
    jnp.asarray, (normal(slots, 1, H, D), normal(slots, 1, K, D), normal(slots, 1, K, D))
  )
  start = np.array([PROMPTS[g] for g in GROUPS])
  used = np.array([0, 3, 1, 2, 3, 0, 2])  # places of the own cache before this token
  tiles = {}
  for slot, group in enumerate(GROUPS):
    first = min(group // side * side, 5 - side)
    rank = GROUPS[:slot].count(group)
    tile = tiles.setdefault((first, rank // wide), np.full((side, wide), slots))
    tile[group - first, rank % wide] = slot
  idle = [np.full((side, wide), slots)] * 2
  view = Shared(
    own=KVCache(k=(jnp.asarray(own_k),), v=(jnp.asarray(own_v),)),
    prompts=KVCache(k=(jnp.asarray(prompt_k),), v=(jnp.asarray(prompt_v),)),
    start=jnp.asarray(start),
    tile_slot=jnp.asarray([*tiles.values(), *idle]),
    tile_prompt=jnp.asarray([*(first for first, _ in tiles), 0, 0]),
    num_tiles=jnp.asarray(len(tiles)),
  )
  positions = jnp.asarray(start + used)[:, None]
  y, after = attend(
    view, 0, q, k, v, positions, positions >= 0, scale=0.7, window=window, softcap=softcap
  )
  for n, group in enumerate(GROUPS):
    keys = [*prompt_k[group].transpose(2, 0, 1)[: start[n]]]
    keys += [*own_k[n].transpose(2, 0, 1)[: used[n]], k[n, 0]]
    values = [*prompt_v[group].transpose(1, 0, 2)[: start[n]]]
    values += [*own_v[n].transpose(1, 0, 2)[: used[n]], v[n, 0]]
    if window:
      keys, values = keys[-window:], values[-window:]
    for h in range(H):
      scores = np.array([key[h // 2] @ q[n, 0, h] for key in keys]) * 0.7
      scores = softcap * np.tanh(scores / softcap) if softcap else scores
      weights = np.exp(scores) / np.exp(scores).sum()
      mean = sum(w * value[h // 2] for w, value in zip(weights, values, strict=True))
      np.testing.assert_allclose(y[n, 0, h * D : (h + 1) * D], mean, atol=1e-5)
  np.testing.assert_array_equal(after.own.v[0][1, :, 3], v[1, 0])
  np.testing.assert_array_equal(after.prompts.v[0], prompt_v)


def test_int8_codes_by_hand_and_what_they_cost():
  cache = KVCache(
    k=(jnp.zeros((1, 1, 4, 2), jnp.int8),),
    v=(jnp.zeros((1, 1, 2, 4), jnp.int8),),
    k_scale=(jnp.zeros((1, 1, 2)),),
    v_scale=(jnp.zeros((1, 1, 2)),),
  )
  x = np.array([[[[0.3, -1.2, 0.05, 0.9]], [[0.0] * 4]]], np.float32)  # zeros divide by nothing
  positions = np.array([[0, 1]])
  y, cache = attend(cache, 0, x, x, x, positions, positions >= 0, scale=1.0)
  assert cache.k[0][0, 0, :, 0].tolist() == [32, -127, 5, 95]
  assert cache.v[0][0, 0, 0].tolist() == [32, -127, 5, 95]
  np.testing.assert_allclose(cache.k_scale[0], [[[0.009449, 1.0]]], atol=1e-6)
  # One key is seen by the first token: its value comes back, to half a step.
  np.testing.assert_allclose(y[0, 0], x[0, 0, 0], atol=0.009449 / 2)
  assert np.all(np.isfinite(y))


def test_unknown_view():
  with pytest.raises(TypeError, match="knows KVCache, Shared and Spans, not dict"):
    attend({}, 0, *_qkv(), None, None, scale=1.0)
