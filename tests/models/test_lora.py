"""LoRA against dense matrices made in numpy: the policy, its gradient, merging, export, refusals."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Spans
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.convert import load_hf, save_hf
from rlvr_jax.models.lora import fingerprint, lora
from rlvr_jax.models.transformer import decoder

CONFIG = tiny(31, family="qwen2", qkv_bias=True, num_layers=1)
POLICY = decoder(CONFIG)
RANK, ALPHA, TARGETS = 3, 6.0, ("q", "k", "o", "down")
LORA = lora(POLICY, rank=RANK, alpha=ALPHA, targets=TARGETS)


@functools.cache
def _base():
  return POLICY.init(jax.random.key(0))


@functools.cache
def _adapters():
  """As after some training: B is not 0."""
  keys = iter(jax.random.split(jax.random.key(2), 64))
  noise = lambda x: x + 0.3 * jax.random.normal(next(keys), x.shape)
  return jax.tree.map(noise, LORA.init(jax.random.key(1)))


@functools.cache
def _dense():
  """Base params with W + alpha / rank * B A, in float64 and rounded once."""
  layer = dict(_base()["layers_0"])
  for name, adapter in _adapters()["layers_0"].items():
    a, b = (np.asarray(adapter[ab], np.float64) for ab in "ab")
    layer[name] = jnp.asarray(
      np.asarray(layer[name], np.float64) + ALPHA / RANK * b @ a, jnp.float32
    )
  return {**_base(), "layers_0": layer}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _logits(hidden, logits, params, tokens):
  position = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None], tokens.shape)
  view = Spans(jnp.full(tokens.shape, tokens.shape[1], jnp.int32))
  y, _ = hidden(params, tokens, position, position >= 0, view)
  return logits(params, y)


def _run(policy, params):
  tokens = jax.random.randint(jax.random.key(3), (2, 7), 0, 31)
  return _logits(policy.hidden, policy.logits, params, tokens)


def test_it_starts_as_the_policy_itself_bit_for_bit():
  adapters = LORA.init(jax.random.key(1))
  start = _run(LORA.policy, {"adapters": adapters, "base": _base()})
  np.testing.assert_array_equal(start, _run(POLICY, _base()))
  merged = LORA.merge({"adapters": adapters, "base": _base()})
  jax.tree.map(np.testing.assert_array_equal, merged, _base())


def test_init_by_its_law():
  adapters = lora(decoder(tiny(31, embed_dim=256)), rank=64, alpha=1.0).init(jax.random.key(0))
  a = adapters["layers_0"]["q"]["a"]
  assert a.shape == (64, 256) and adapters["layers_1"]["down"]["b"].shape == (256, 64)
  assert np.std(a) == pytest.approx(1 / 16, rel=0.03) and np.abs(np.mean(a)) < 2e-3
  assert not np.any(adapters["layers_1"]["down"]["b"])
  assert np.any(a != adapters["layers_1"]["q"]["a"]) and np.any(a != adapters["layers_0"]["k"]["a"])


def test_apart_and_merged_are_the_dense_matrices():
  params = {"adapters": _adapters(), "base": _base()}
  expected = _run(POLICY, _dense())
  assert np.abs(expected - _run(POLICY, _base())).max() > 0.1
  np.testing.assert_allclose(_run(LORA.policy, params), expected, atol=5e-5)
  merged = LORA.merge(params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), merged, _dense())
  np.testing.assert_array_equal(merged["layers_0"]["v"], _base()["layers_0"]["v"])


def test_a_token_at_a_time_with_a_cache():
  """One token a row takes the other form of the product."""
  params = {"adapters": _adapters(), "base": _base()}
  tokens = jax.random.randint(jax.random.key(3), (2, 7), 0, 31)
  cache, out = LORA.policy.init_cache(2, 7), []
  step = jax.jit(LORA.policy.hidden)
  for t in range(3):
    here = jnp.full((2, 1), t, jnp.int32)
    y, cache = step(params, tokens[:, t : t + 1], here, here >= 0, cache)
    out.append(LORA.policy.logits(params, y)[:, 0])
  np.testing.assert_allclose(jnp.stack(out, 1), _run(POLICY, _dense())[:, :3], atol=5e-5)


def _loss(policy, params):
  return jnp.mean(jnp.square(_run(policy, params)))


def test_gradient_is_the_dense_one_through_the_product():
  """W' = W + s B A: dA = s B^T G and dB = s G A^T, with G the gradient for W'."""
  dense = jax.grad(lambda p: _loss(POLICY, p))(_dense())
  of = lambda adapters: _loss(LORA.policy, {"adapters": adapters, "base": _base()})
  grads = jax.grad(of)(_adapters())
  assert set(grads) == {"layers_0"} and set(grads["layers_0"]) == set(TARGETS)
  for name, mine in grads["layers_0"].items():
    g = np.asarray(dense["layers_0"][name], np.float64)
    a, b = (np.asarray(_adapters()["layers_0"][name][ab], np.float64) for ab in "ab")
    np.testing.assert_allclose(mine["a"], ALPHA / RANK * b.T @ g, atol=2e-5)
    np.testing.assert_allclose(mine["b"], ALPHA / RANK * g @ a.T, atol=2e-5)


def _products(jaxpr):
  """Shapes of the results of all matrix products of a program, inner programs included."""
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      yield equation.outvars[0].aval.shape
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _products(inner)


def test_no_gradient_of_a_whole_matrix_is_ever_formed():
  """Results over rows and places have three axes and more; those without are gradients."""

  def gradients(of):
    params = {"adapters": _adapters(), "base": _base()}
    grad = jax.grad(lambda x: _loss(LORA.policy, {**params, of: x}))
    return {s for s in _products(jax.make_jaxpr(grad)(params[of]).jaxpr) if len(s) == 2}

  sizes = {tuple(sorted(shape)) for shape in gradients("base")}
  assert {(64, 64), (32, 64), (64, 192)} <= sizes
  found = gradients("adapters")
  assert found and all(RANK in shape for shape in found)


def test_export_gives_equal_logits_when_reloaded(tmp_path):
  merged = LORA.merge({"adapters": _adapters(), "base": _base()})
  save_hf(tmp_path / "x", merged, CONFIG)
  loaded = load_hf(tmp_path / "x", CONFIG)
  np.testing.assert_array_equal(_run(POLICY, loaded), _run(POLICY, merged))


def test_a_base_in_bfloat16_keeps_its_type_and_adapters_theirs():
  base = jax.tree.map(lambda x: x.astype(jnp.bfloat16), _base())
  merged = LORA.merge({"adapters": _adapters(), "base": base})
  assert {x.dtype.name for x in jax.tree.leaves(merged)} == {"bfloat16"}
  assert {x.dtype.name for x in jax.tree.leaves(_adapters())} == {"float32"}
  got, want = np.asarray(merged["layers_0"]["o"], np.float32), _dense()["layers_0"]["o"]
  np.testing.assert_allclose(got, want, atol=2**-7 * float(np.abs(want).max()))


def test_axes_fit_the_params():
  axes = LORA.policy.axes
  is_axes = lambda x: type(x) is tuple
  shapes = jax.eval_shape(LORA.policy.init, jax.random.key(0))
  assert jax.tree.structure(axes, is_leaf=is_axes) == jax.tree.structure(shapes)
  assert axes["adapters"]["layers_0"]["down"] == {"a": (None, "mlp"), "b": ("embed", None)}
  assert axes["base"] == POLICY.axes


def test_fingerprints_tell_weights_apart():
  one = fingerprint(_base())
  assert one.dtype == jnp.uint32 and len(one) == len(jax.tree.leaves(_base()))
  np.testing.assert_array_equal(fingerprint(jax.tree.map(jnp.array, _base())), one)
  q = np.asarray(_base()["layers_0"]["q"])
  bit = q.copy()
  bit.view(np.uint32)[5, 7] ^= 1
  swapped, turned, signed = q.copy(), q.T.copy(), q.copy()
  swapped[[0, 1]] = swapped[[1, 0]]
  signed[0] *= -1
  for other in (bit, swapped, turned, signed):
    new = fingerprint({**_base(), "layers_0": {**_base()["layers_0"], "q": jnp.asarray(other)}})
    assert (np.asarray(new) != one).sum() == 1


@pytest.mark.parametrize(
  "options, message",
  [
    (dict(rank=0), "rank >= 1"),
    (dict(alpha=0.0), "alpha > 0"),
    (dict(alpha=float("nan")), "alpha > 0"),
    (dict(targets=("q", "gat")), "unknown LoRA target 'gat'; did you mean gate"),
    (dict(targets=("embedding",)), "unknown LoRA target 'embedding'"),
    (dict(targets=("q", "q")), "different names"),
    (dict(targets=()), "at least one"),
  ],
)
def test_refusals(options, message):
  with pytest.raises(ValueError, match=message):
    lora(POLICY, **{"rank": 2, "alpha": 4.0, **options})
