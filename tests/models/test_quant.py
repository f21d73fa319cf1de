"""Weights in 8 and 4 bits: rounding and packing by hand, the policy, decoding, what it costs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Spans
from rlvr_jax.decode.decode import decode
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.quant import pack, quantise, to_int4, to_int8, unpack
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train.metrics import CompileCounter

POLICY = decoder(tiny(31, num_layers=1, tied=False, qkv_bias=True))
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
BITS = (8, 4)


@functools.cache
def _params(seed=0):
  params = POLICY.init(jax.random.key(seed))
  biases = {"q_bias": jnp.linspace(-1.0, 1.0, 64)}
  return {**params, "layers_0": {**params["layers_0"], **biases}}


_quantised = functools.cache(lambda bits: quantise(POLICY, bits=bits))


def _rounded(w, bits):
  """What stands for w [out,in], a group of weights at a time, in float64."""
  w = np.asarray(w, np.float64)
  top, group = (127, w.shape[1]) if bits == 8 else (7, 32)
  out = np.zeros(w.shape)
  for o in range(w.shape[0]):
    for start in range(0, w.shape[1], group):
      part = w[o, start : start + group]
      scale = np.abs(part).max() / top
      out[o, start : start + group] = np.round(part / scale) * scale
  return jnp.asarray(out, jnp.float32)


@functools.cache
def _dense(bits, seed=0):
  """Params with the matrices of the layer as numpy rounds them."""
  params = _params(seed)
  new = {name: _rounded(params["layers_0"][name], bits) for name in MATRICES}
  return {**params, "layers_0": {**params["layers_0"], **new}}


@jax.jit
def _logits(params, tokens):
  """float32 [N,T,V] of whole rows."""
  position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
  view = Spans(jnp.full(tokens.shape, tokens.shape[1], jnp.int32))
  hidden, _ = POLICY.hidden(params, tokens, position, position >= 0, view)
  return POLICY.logits(params, hidden)


def _bytes(tree):
  return sum(x.nbytes for x in jax.tree.leaves(tree))


def test_int8_by_hand():
  w = jnp.array([[12.7, -6.3, 0.04, 0.06], [0.0, 0.0, 0.0, 0.0], [-254.0, 127.0, 3.0, 2.9]])
  q = to_int8(w)
  np.testing.assert_allclose(q.scale, [0.1, 1.0, 2.0], rtol=1e-6)
  # 63.5 and 1.5 are halfway, and go to the even neighbour.
  assert q.values.tolist() == [[127, -63, 0, 1], [0, 0, 0, 0], [-127, 64, 2, 1]]
  assert q.values.dtype == jnp.int8 and q.scale.dtype == jnp.float32


def test_int4_by_hand():
  q = to_int4(jnp.array([[7.0, -3.0, 1.4, 0.0, 70.0, -70.0, 4.0, 16.0]]), group=2)
  np.testing.assert_allclose(q.scale, [[1.0, 0.2, 10.0, 16 / 7]], rtol=1e-6)
  # Values 7 -3 7 0 | 7 -7 2 7: a byte has one of the first half below, one of the second above.
  assert q.packed.tolist() == [[0x77, 0x9D, 0x27, 0x70]]
  np.testing.assert_allclose(q.dense(), [[7, -3, 1.4, 0, 70, -70, 2 * 16 / 7, 16]], rtol=1e-6)


def test_packing_gives_every_pair_of_values_back():
  low, high = np.meshgrid(np.arange(-8, 8), np.arange(-8, 8))
  values = np.concatenate([low.reshape(1, -1), high.reshape(1, -1)], 1).astype(np.int8)
  packed = pack(jnp.asarray(values))
  assert packed.dtype == jnp.uint8
  assert sorted(packed[0].tolist()) == list(range(256))  # every byte, once
  np.testing.assert_array_equal(unpack(packed), values)


_both = jax.jit(lambda w: (to_int8(w), to_int4(w, 16)))


@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-12, 12))
def test_no_weight_is_off_by_more_than_half_a_scale(seed, exponent):
  rng = np.random.default_rng(seed)
  w = (rng.standard_t(2, (6, 64)) * 2.0**exponent).astype(np.float32)
  w[rng.integers(6)] = 0
  half = 0.5 * (1 + 1e-4)  # the quotient is rounded to float32
  eight, four = _both(jnp.asarray(w))
  assert np.all(np.abs(eight.dense() - w) <= half * eight.scale[:, None])
  error = np.abs(four.dense() - w).reshape(6, 4, 16)
  assert np.all(error <= half * four.scale[:, :, None])
  assert np.all(np.abs(unpack(four.packed)) <= 7)


def test_a_weight_that_is_not_finite_reaches_the_product():
  for bad in (np.nan, np.inf):
    w = np.ones((6, 64), np.float32)
    w[1, 3] = bad
    for q in _both(w):
      finite = np.isfinite(q.times(jnp.ones((1, 2, 64))))
      np.testing.assert_array_equal(finite[0, 0], [True, False, True, True, True, True])


@pytest.mark.parametrize("bits", BITS)
def test_whole_rows_are_those_of_the_rounded_matrices(bits):
  params = _quantised(bits).convert(_params())
  tokens = jax.random.randint(jax.random.key(1), (2, 6), 0, 31)
  exact = _logits(_params(), tokens)
  logits = _logits(params, tokens)
  np.testing.assert_allclose(logits, _logits(_dense(bits), tokens), atol=2e-5)
  # And so near the policy they were made of: 1/2 of 1/127 or 1/7 of a largest weight, or less.
  error = np.std(logits - exact) / np.std(exact)
  assert {8: 0.001, 4: 0.02}[bits] < error < {8: 0.02, 4: 0.25}[bits]


@pytest.mark.parametrize("bits", BITS)
def test_decoding_stores_the_log_probs_of_the_rounded_policy_and_never_recompiles(bits):
  policy, convert = _quantised(bits)
  n, start, end = 3, 4, 9
  tokens = jax.random.randint(jax.random.key(2), (n, start), 0, 31)
  index = jnp.arange(n, dtype=jnp.int32)
  rows = rows_lib.fresh(
    tokens, jnp.full(n, start, jnp.int32), group=index, valid=index >= 0, num_places=end,
    uid=jax.random.key_data(jax.random.split(jax.random.key(3), n)), max_new_tokens=end - start,
    temperature=1.0,
  )  # fmt: skip
  for seed in (0, 1):
    params = convert(_params(seed))
    with CompileCounter() as compiled:
      out, _ = decode(
        policy, params, rows, version=0, eos_ids=[-1], slots=n, num_contexts=n, prompt_places=start
      )
    logits = _logits(_dense(bits, seed), out.tokens)
    logprobs = jax.nn.log_softmax(logits)[:, :-1]
    expected = jnp.take_along_axis(logprobs, out.tokens[:, 1:, None], 2)[:, start - 1 :, 0]
    np.testing.assert_allclose(out.full_logprobs[:, start:], expected, atol=2e-5)
  assert compiled.count <= 1  # of `_logits`; the second params met the programs of the first


@pytest.mark.parametrize("bits", BITS)
def test_what_is_kept_in_few_bits_and_what_is_not(bits):
  convert = _quantised(bits).convert
  old, new = _params()["layers_0"], convert(_params())["layers_0"]
  kept = {name for name in old if name not in MATRICES}
  assert all(np.array_equal(new[name], old[name]) for name in kept) and "q_bias" in kept
  # One scale of 4 bytes for 64 to 192 inputs, or for 32.
  share = (
    {"q": (64 + 4) / 256, "down": (192 + 4) / 768} if bits == 8 else dict.fromkeys(MATRICES, 5 / 32)
  )
  for name, part in share.items():
    assert _bytes(new[name]) == part * old[name].nbytes
  whole = convert(_params())
  assert all(np.array_equal(whole[k], _params()[k]) for k in ("embedding", "head", "final_norm"))


@pytest.mark.parametrize("bits", BITS)
def test_axes_fit_the_params(bits):
  policy, convert = _quantised(bits)
  is_axes = lambda x: type(x) is tuple
  params = convert(_params())
  assert jax.tree.structure(policy.axes, is_leaf=is_axes) == jax.tree.structure(params)
  ranks = jax.tree.map(len, policy.axes, is_leaf=is_axes)
  assert ranks == jax.tree.map(jnp.ndim, params)
  down = policy.axes["layers_0"]["down"]
  assert down.scale == (("embed",) if bits == 8 else ("embed", "mlp"))
  shapes = jax.eval_shape(policy.init, jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, shapes)


def test_bfloat16_products_of_whole_numbers():
  """A product of bfloat16 activations with Int8 is off by the rounding of its result alone."""
  w = jax.random.normal(jax.random.key(0), (8, 64))
  x = jax.random.normal(jax.random.key(1), (1, 5, 64), jnp.bfloat16)
  y = to_int8(w).times(x)
  assert y.dtype == jnp.bfloat16
  exact = np.asarray(x, np.float64)[0] @ np.asarray(_rounded(w, 8), np.float64).T
  assert np.abs(y[0] - exact).max() < 3 * 2**-8 * np.abs(exact).max()


def test_refusals():
  with pytest.raises(ValueError, match="8 or 4 bits, not 3"):
    quantise(POLICY, bits=3)
  with pytest.raises(
    ValueError, match=r"groups of 24 do not fit layers_0/.*: half of its 64 inputs"
  ):
    quantise(POLICY, bits=4, group=24)
  with pytest.raises(ValueError, match="groups of 0"):
    quantise(POLICY, bits=4, group=0)
