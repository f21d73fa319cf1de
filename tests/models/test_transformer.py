"""The decoder as a Policy: caches, packing, masks, dtypes. Parity is in test_convert.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Spans
from rlvr_jax.models.configs import RopeScaling, tiny
from rlvr_jax.models.transformer import decoder, frequencies, rotate

# Everything that a family may have, at once.
RICH = tiny(
  31, num_tokens=29, tied=False, qkv_bias=True, qk_norm=True, sandwich=True, unit_offset=True,
  scale_embedding=True, activation="gelu_tanh", attn_softcap=5.0, final_softcap=3.0,
  query_scalar=9.0, sliding=(True, False), sliding_window=3, rope_local_theta=100.0,
  rope_scaling=RopeScaling("linear", 2.0),
)  # fmt: skip


def _run(config, tokens, positions, stop, params=None):
  policy = decoder(config)
  params = policy.init(jax.random.key(0)) if params is None else params
  hidden, _ = policy.hidden(params, tokens, positions, positions >= 0, Spans(stop))
  return policy.logits(params, hidden)


def _rows(num=2, length=7, vocab=29):
  tokens = jax.random.randint(jax.random.key(1), (num, length), 0, vocab)
  return tokens, jnp.tile(jnp.arange(length)[None], (num, 1)), jnp.full((num, length), length)


@pytest.mark.parametrize("config", [tiny(29), RICH], ids=["plain", "rich"])
def test_cache_equals_no_cache(config):
  policy = decoder(config)
  params = policy.init(jax.random.key(0))
  tokens, positions, stop = _rows()
  whole, _ = policy.hidden(params, tokens, positions, positions >= 0, Spans(stop))

  # Prompts of three and five tokens, padded to five, then token by token.
  start = jnp.array([3, 5])
  step = jax.jit(policy.hidden)
  head, cache = step(
    params, tokens[:, :5], positions[:, :5], positions[:, :5] < start[:, None],
    policy.init_cache(2, 7),
  )  # fmt: skip
  np.testing.assert_allclose(head[0, :3], whole[0, :3], atol=2e-5)
  np.testing.assert_allclose(head[1, :5], whole[1, :5], atol=2e-5)
  for tick in range(4):
    at = jnp.minimum(start + tick, 6)[:, None]
    tail, cache = step(params, jnp.take_along_axis(tokens, at, 1), at, at >= 0, cache)
    expected = jnp.take_along_axis(whole, at[:, :, None], 1)
    np.testing.assert_allclose(tail, expected, atol=2e-5)


@pytest.mark.parametrize("config", [tiny(29), RICH], ids=["plain", "rich"])
def test_a_shared_prefix_equals_separate_rows(config):
  tokens, positions, stop = _rows(2, 6)
  tokens = tokens.at[1, :3].set(tokens[0, :3])
  apart = _run(config, tokens, positions, stop)
  # One bin: the prefix of three, the rest of row 0, the rest of row 1.
  packed = jnp.concatenate([tokens[0], tokens[1, 3:]])[None]
  places = jnp.array([[0, 1, 2, 3, 4, 5, 3, 4, 5]])
  stops = jnp.array([[9, 9, 9, 6, 6, 6, 9, 9, 9]])
  together = _run(config, packed, places, stops)[0]
  np.testing.assert_allclose(together[:6], apart[0], atol=2e-5)
  np.testing.assert_allclose(together[6:], apart[1, 3:], atol=2e-5)


def test_padding_is_finite_and_leaves_the_rest_alone():
  tokens, positions, stop = _rows(1, 6)
  full = _run(RICH, tokens, positions, stop)
  padded = jnp.where(positions < 4, tokens, 0)
  cut = _run(RICH, padded, positions, jnp.where(positions < 4, 4, 0))
  np.testing.assert_allclose(cut[:, :4], full[:, :4], atol=2e-5)
  assert np.all(np.isfinite(cut))


def test_ids_beyond_the_tokenizer_are_never_sampled():
  tokens, positions, stop = _rows()
  logits = _run(RICH, tokens, positions, stop)
  assert logits.shape == (2, 7, 31) and logits.dtype == jnp.float32
  assert np.all(logits[..., 29:] == -1e30)
  assert np.all(np.abs(logits[..., :29]) <= 3.0)  # the soft-cap
  assert np.all(jax.nn.softmax(logits)[..., 29:] == 0)


def test_axes_name_each_dimension_of_each_leaf():
  policy = decoder(RICH)
  shapes = jax.eval_shape(policy.init, jax.random.key(0))
  sizes = {"vocab": 31, "embed": 64, "heads": 64, "kv_heads": 32, "mlp": 192, None: 16}

  def check(shape, axes):
    assert shape.shape == tuple(sizes[axis] for axis in axes)

  jax.tree.map(check, shapes, policy.axes)
  assert policy.vocab_size == 31


def test_init_is_scaled_by_what_a_matrix_reads():
  params = decoder(tiny(512)).init(jax.random.key(0))
  assert np.std(params["embedding"]) == pytest.approx(0.02, rel=0.05)
  assert np.std(params["layers_0"]["down"]) == pytest.approx(192**-0.5, rel=0.05)
  assert np.all(params["final_norm"] == 1)
  again = decoder(tiny(512)).init(jax.random.key(1))
  assert np.any(again["embedding"] != params["embedding"])


def test_bfloat16():
  config = dataclasses.replace(RICH, dtype="bfloat16", param_dtype="bfloat16")
  policy = decoder(config)
  params = policy.init(jax.random.key(0))
  assert {leaf.dtype.name for leaf in jax.tree.leaves(params)} == {"bfloat16"}
  tokens, positions, stop = _rows()
  hidden, cache = policy.hidden(params, tokens, positions, positions >= 0, policy.init_cache(2, 7))
  assert hidden.dtype == jnp.bfloat16 and cache.k[0].dtype == jnp.bfloat16
  logits = policy.logits(params, hidden)
  assert logits.dtype == jnp.float32
  exact = _run(RICH, tokens, positions, stop, jax.tree.map(lambda x: x.astype("float32"), params))
  assert np.abs(logits - exact)[..., :29].mean() < 0.05


def test_remat_changes_no_gradient_and_does_recompute():
  tokens, positions, stop = _rows()
  params = decoder(RICH).init(jax.random.key(0))

  def loss(config):
    return lambda p: jnp.mean(jnp.square(_run(config, tokens, positions, stop, p)[..., :29]))

  remat = loss(dataclasses.replace(RICH, remat="full"))
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
    jax.grad(remat)(params), jax.grad(loss(RICH))(params),
  )  # fmt: skip
  assert "remat" in str(jax.make_jaxpr(jax.grad(remat))(params))
  assert "remat" not in str(jax.make_jaxpr(jax.grad(loss(RICH)))(params))


def test_rotation_by_hand():
  x = jnp.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 1, 1, 4)
  angle = jnp.array([np.pi / 2, np.pi]).reshape(1, 1, 1, 2)
  y = rotate(x, jnp.cos(angle), jnp.sin(angle))
  # The pair (1,3) turns by a quarter, the pair (2,4) by a half.
  np.testing.assert_allclose(y[0, 0, 0], [-3, -2, 1, -4], atol=1e-6)


def test_frequencies_by_hand():
  np.testing.assert_allclose(frequencies(100.0, 4, None), [1.0, 0.1], rtol=1e-6)
  np.testing.assert_allclose(
    frequencies(100.0, 4, RopeScaling("linear", 4.0)), [0.25, 0.025], rtol=1e-6
  )
  # Over 64 positions: 10.2 turns (kept, > 4), 1.02 turns (between 1 and 4: interpolated by
  # 0.0062), 0.1 turns (< 1: divided by 8).
  freq = frequencies(1000.0, 6, RopeScaling("llama3", 8.0, 1.0, 4.0, 64))
  smooth = (64 * 0.1 / (2 * np.pi) - 1) / 3
  middle = smooth * 0.1 + (1 - smooth) * 0.1 / 8
  np.testing.assert_allclose(freq, [1.0, middle, 0.01 / 8], rtol=1e-5)
