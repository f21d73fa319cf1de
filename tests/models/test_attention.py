"""Attention against loops in plain Python."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import KVCache, Spans
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


def test_unknown_view():
  with pytest.raises(TypeError, match="knows KVCache and Spans, not dict"):
    attend({}, 0, *_qkv(), None, None, scale=1.0)
