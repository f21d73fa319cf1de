"""Attention in blocks against one dense softmax over random trees, whose paths say who sees whom."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.models import spans

N, T, K, G, D = 2, 300, 1, 2, 4  # three blocks, the last one short


def _forest(length, seed):
  """(sees bool [T,T], stop, positions int32 [T]) of a depth-first walk; sees from the paths themselves."""
  rng = np.random.default_rng(seed)
  path, sees = [], np.zeros((length, length), bool)
  stop, positions = np.zeros(length, np.int32), np.zeros(length, np.int32)
  for u in range(length):
    if rng.random() < 0.05:
      path = path[: rng.integers(0, len(path) + 1)]
    positions[u] = len(path)
    path.append(u)
    sees[u, path] = True
    stop[path] = u + 1
  return sees, stop, positions


@pytest.fixture(scope="module")
def walk():
  return [np.stack(x) for x in zip(*(_forest(T, seed) for seed in range(N)))]


def _dense(q, k, v, sees, scale, softcap):
  scores = jnp.einsum("nukgd,nvkd->nkguv", q, k) * scale
  scores = scores if softcap is None else softcap * jnp.tanh(scores / softcap)
  weights = jax.nn.softmax(jnp.where(sees[:, None, None], scores, -jnp.inf))
  return jnp.einsum("nkguv,nvkd->nukgd", weights, v)


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, 0.5)])
def test_equals_the_dense_form_with_gradients(walk, window, softcap):
  sees, stop, positions = walk
  near = positions[:, :, None] - positions[:, None] < (window or T)
  rng = np.random.default_rng(0)
  shapes = [(N, T, K, G, D), (N, T, K, D), (N, T, K, D)]
  *qkv, to_y = [rng.normal(size=s).astype(np.float32) for s in (*shapes, shapes[0])]
  assert (sees & near).any(2).all()

  blocks = lambda q, k, v: spans.attend_in_blocks(
    q, k, v, jnp.asarray(stop), jnp.asarray(positions), scale=0.7, window=window, softcap=softcap
  )
  dense = lambda q, k, v: _dense(q, k, v, sees & near, 0.7, softcap)
  with_gradients = lambda attend: jax.jit(
    lambda *x: (lambda y, pull: (y, pull(to_y)))(*jax.vjp(attend, *x))
  )
  y, gradients = with_gradients(blocks)(*qkv)
  expected, expected_gradients = with_gradients(dense)(*qkv)
  np.testing.assert_allclose(y, expected, atol=1e-5)
  for a, b in zip(gradients, expected_gradients):
    np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(b).max())


@pytest.mark.parametrize("window", [None, 20])
def test_the_pairs_are_those_with_a_token_that_sees_another(window):
  """None is missing, and of a long bin of short rows most are left out."""
  sees, stop, positions = _forest(8 * spans.BLOCK, 3)
  seen = sees & (positions[:, None] - positions[None] < (window or len(stop)))
  blocks = seen.reshape(8, spans.BLOCK, 8, spans.BLOCK).any((1, 3))
  pairs = spans.needed_pairs(jnp.asarray(stop[None]), jnp.asarray(positions[None]), window)
  num = int(pairs.num)
  listed = set(zip(pairs.query[:num].tolist(), pairs.key[:num].tolist()))
  assert len(listed) == num
  assert set(zip(*(x.tolist() for x in np.nonzero(blocks)))) <= listed
  if window is None:
    assert len(listed) == blocks.sum() < 36  # of 36 that lie in the past


def test_a_token_that_sees_nothing_is_finite():
  x = jnp.ones((1, 256, 1, 1, 2), jnp.float32)
  nothing = jnp.zeros((1, 256), jnp.int32)
  attend = lambda q: spans.attend_in_blocks(q, q[:, :, 0], q[:, :, 0], nothing, nothing, scale=1.0)
  y, pull = jax.vjp(attend, x)
  assert np.isfinite(y).all() and np.isfinite(pull(y)[0]).all()


def test_memory_grows_with_the_bin_and_not_with_its_square():
  def compiled(length):
    shapes = [(1, length, 1, 4, 8), (1, length, 1, 8), (1, length, 1, 8)]
    qkv = [jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes]
    ints = [jax.ShapeDtypeStruct((1, length), jnp.int32)] * 2
    loss = lambda *x: spans.attend_in_blocks(*x, scale=1.0).sum()
    return jax.jit(jax.grad(loss, (0, 1, 2))).lower(*qkv, *ints).compile().memory_analysis()

  short, long = (compiled(length).temp_size_in_bytes for length in (1024, 4096))
  assert long < 5 * short
  assert long < 4 * 4096 * 4096  # less than the scores of one head
