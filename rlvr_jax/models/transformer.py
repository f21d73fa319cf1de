"""One decoder-only transformer for the Llama, Qwen and Gemma families, as a `Policy`.

Flax lives in this file alone; outside, a model is pure functions over a nested dict of arrays.
Layers are unrolled, each with its own leaves.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array, KVCache, Params, Policy, Spans, View
from rlvr_jax.models.attention import attend
from rlvr_jax.models.configs import ModelConfig, RopeScaling

NEVER = -1e30  # logit of ids that the tokenizer does not have

AXES = {  # leaf name -> logical axis of each dimension
  "embedding": ("vocab", "embed"),
  "head": ("vocab", "embed"),
  "q": ("heads", "embed"),
  "k": ("kv_heads", "embed"),
  "v": ("kv_heads", "embed"),
  "q_bias": ("heads",),
  "k_bias": ("kv_heads",),
  "v_bias": ("kv_heads",),
  "o": ("embed", "heads"),
  "q_norm": (None,),
  "k_norm": (None,),
  "gate": ("mlp", "embed"),
  "up": ("mlp", "embed"),
  "down": ("embed", "mlp"),
  "attn_norm": ("embed",),
  "mlp_norm": ("embed",),
  "post_attn_norm": ("embed",),
  "post_mlp_norm": ("embed",),
  "final_norm": ("embed",),
}


@functools.cache  # equal configs share their functions, and so what is compiled of them
def decoder(config: ModelConfig) -> Policy:
  """The model of a config as pure functions; see `core.types.Policy`.

  Params are a nested dict: `embedding` [V,E], `final_norm` [E], `head` [V,E] unless tied, and for
  each layer `layers_<i>` with `attn_norm` [E], `q` [H*D,E], `k` and `v` [K*D,E], `o` [E,H*D],
  `mlp_norm` [E], `gate` and `up` [F,E], `down` [E,F], and what else the family has: `q_bias`,
  `k_bias`, `v_bias`, `q_norm` and `k_norm` [D], `post_attn_norm` and `post_mlp_norm` [E]. Matrices
  are stored [out,in], as checkpoints do. Hidden states come normalised; `logits` ends with the
  soft-cap, and puts ids at or above `config.num_tokens` at -1e30.
  """
  module = _Decoder(config)

  def init(key: Array) -> Params:
    one = jnp.zeros((1, 1), jnp.int32)
    return module.init(key, one, one, one == 0, Spans(stop=one), method="hidden")["params"]

  def hidden(params: Params, tokens: Array, positions: Array, valid: Array, view: View):
    return module.apply({"params": params}, tokens, positions, valid, view, method="hidden")

  def logits(params: Params, hidden: Array) -> Array:
    y: Any = module.apply({"params": params}, hidden, method="logits")
    return y

  def init_cache(rows: int, places: int) -> KVCache:
    dtype = config.cache_dtype or config.dtype
    heads, size = config.num_kv_heads, config.head_dim
    leaves = lambda dtype, *shape: tuple(jnp.zeros(shape, dtype) for _ in range(config.num_layers))
    cache = KVCache(
      k=leaves(dtype, rows, heads, size, places), v=leaves(dtype, rows, heads, places, size)
    )
    if dtype != "int8":
      return cache
    scales = leaves("float32", rows, heads, places)
    return cache.replace(k_scale=scales, v_scale=scales)

  shapes = jax.eval_shape(init, jax.random.key(0))
  axes = jax.tree_util.tree_map_with_path(lambda path, _: AXES[path[-1].key], shapes)
  return Policy(
    init=jax.jit(init), hidden=hidden, logits=logits, init_cache=init_cache, axes=axes,
    vocab_size=config.vocab_size, config=config,
  )  # fmt: skip


def frequencies(theta: float, size: int, scaling: RopeScaling | None) -> Array:
  """float32 [size/2]: radians a position for each rotated pair.

  f_i = theta^(-2i/size), then stretched as `RopeScaling` says.
  """
  freq = 1.0 / theta ** (jnp.arange(0, size, 2, dtype=jnp.float32) / size)
  if scaling is None:
    return freq
  if scaling.kind == "linear":
    return freq / scaling.factor
  turns = scaling.original_length * freq / (2 * math.pi)  # over the length of pre-training
  keep = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor)
  keep = jnp.clip(keep, 0.0, 1.0)
  return keep * freq + (1 - keep) * freq / scaling.factor


def rotate(x: Array, cos: Array, sin: Array) -> Array:
  """Turns the pairs (x_i, x_{i+D/2}) of [N,T,heads,D] by the angles of cos, sin [N,T,1,D/2]."""
  a, b = jnp.split(x.astype(jnp.float32), 2, axis=-1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


# One token a row, as when decoding, makes products of a large matrix and few columns. A CPU runs w @ x a
# fifth faster than x @ w.T, so there activations are turned to [E,N] before a run of products and back
# after it. The barriers keep XLA from writing the product the other way round.


def _enter(x: Array) -> Array:
  """[N,T,E] as `times` wants it: [E,N] if T is 1, else as it is."""
  return jax.lax.optimization_barrier(x[:, 0].T) if x.shape[1] == 1 else x


def times(x: Array, w: Any) -> Array:
  """w [out,in] applied to what `_enter` made of x: [in,N] -> [out,N], [N,T,in] -> [N,T,out].

  Params may hold a pytree node in place of a matrix, with a `times` of its own: see lora and quant.
  """
  if hasattr(w, "times"):
    return w.times(x)
  return w @ x if x.ndim == 2 else x @ w.T


def _leave(x: Array) -> Array:
  """Back to [N,T,E]."""
  return jax.lax.optimization_barrier(x).T[:, None] if x.ndim == 2 else x


def _lift(w: Array, x: Array) -> Array:
  """w [D] with as many leading axes as x has."""
  return w.reshape((1,) * (x.ndim - 1) + w.shape)


class _Base(nn.Module):
  """Declares parameters in the config's dtypes."""

  config: ModelConfig

  def matrix(self, name: str, outputs: int, inputs: int) -> Any:
    """[outputs,inputs], normal with std 1/sqrt(inputs); or the node that stands in its place."""
    stored = self.get_variable("params", name)
    if isinstance(stored, flax.struct.PyTreeNode):
      return stored
    init = nn.initializers.normal(1 / math.sqrt(inputs))
    w = self.param(name, init, (outputs, inputs), jnp.dtype(self.config.param_dtype))
    return w.astype(self.config.dtype)

  def norm(self, name: str, size: int) -> Callable[[Array], Array]:
    """RMSNorm over a last axis of that size, in float32."""
    config = self.config
    init = nn.initializers.zeros if config.unit_offset else nn.initializers.ones
    w = self.param(name, init, (size,), jnp.dtype(config.param_dtype)).astype(jnp.float32)

    def normalise(x: Array) -> Array:
      y = x.astype(jnp.float32)
      y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + config.norm_eps)
      return (y * _lift(1 + w if config.unit_offset else w, y)).astype(x.dtype)

    return normalise


class _Layer(_Base):
  """Attention and a gated MLP, each added to the residual stream."""

  layer: int = 0

  @nn.compact
  def __call__(
    self, x: Array, angles: tuple[Array, Array], positions: Array, valid: Array, view: View
  ):
    config = self.config
    y = self.norm("attn_norm", config.embed_dim)(x)
    y = _enter(y)
    q = self.heads("q", y, config.num_heads)
    k = self.heads("k", y, config.num_kv_heads)
    v = self.heads("v", y, config.num_kv_heads)
    if config.qk_norm:
      q = self.norm("q_norm", config.head_dim)(q)
      k = self.norm("k_norm", config.head_dim)(k)
    y, view = attend(
      view, self.layer, rotate(q, *angles), rotate(k, *angles), v, positions, valid,
      scale=config.scale, window=config.window(self.layer), softcap=config.attn_softcap,
    )  # fmt: skip
    o = self.matrix("o", config.embed_dim, config.num_heads * config.head_dim)
    y = _leave(times(_enter(y), o))
    if config.sandwich:
      y = self.norm("post_attn_norm", config.embed_dim)(y)
    x = x + y
    y = _enter(self.norm("mlp_norm", config.embed_dim)(x))
    gate = times(y, self.matrix("gate", config.mlp_dim, config.embed_dim))
    gate = nn.silu(gate) if config.activation == "silu" else nn.gelu(gate, approximate=True)
    y = gate * times(y, self.matrix("up", config.mlp_dim, config.embed_dim))
    y = _leave(times(y, self.matrix("down", config.embed_dim, config.mlp_dim)))
    if config.sandwich:
      y = self.norm("post_mlp_norm", config.embed_dim)(y)
    return x + y, view

  def heads(self, name: str, x: Array, num: int) -> Array:
    """What `_enter` made of [N,T,E] -> [N,T,num,D]."""
    config = self.config
    y = _leave(times(x, self.matrix(name, num * config.head_dim, config.embed_dim)))
    if config.qkv_bias:
      init = nn.initializers.zeros
      b = self.param(f"{name}_bias", init, (num * config.head_dim,), jnp.dtype(config.param_dtype))
      y = y + _lift(b.astype(config.dtype), y)
    return y.reshape(*y.shape[:2], num, config.head_dim)


class _Decoder(_Base):
  """Embedding, layers, final norm and head."""

  def setup(self):
    config = self.config
    # dots: the attention scores have batch dimensions, and are made again.
    products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    policy = {"none": None, "dots": products, "full": jax.checkpoint_policies.nothing_saveable}
    layer = _Layer if config.remat == "none" else nn.remat(_Layer, policy=policy[config.remat])
    self.layers = [layer(config, layer=i) for i in range(config.num_layers)]
    shape, dtype = (config.vocab_size, config.embed_dim), jnp.dtype(config.param_dtype)
    self.embedding = self.param("embedding", nn.initializers.normal(0.02), shape, dtype)
    self.final_norm = self.norm("final_norm", config.embed_dim)
    if not config.tied:
      self.head = self.matrix("head", config.vocab_size, config.embed_dim)

  def hidden(self, tokens: Array, positions: Array, valid: Array, view: View):
    config = self.config
    x = self.embedding[tokens].astype(config.dtype)
    if config.scale_embedding:  # the factor is rounded to the activations' dtype, as published
      x = x * jnp.asarray(math.sqrt(config.embed_dim), config.dtype)
    rope = self.angles(positions, config.rope_theta, config.rope_scaling)
    local = rope
    if config.rope_local_theta is not None:
      local = self.angles(positions, config.rope_local_theta, None)
    for i, layer in enumerate(self.layers):
      x, view = layer(x, rope if config.window(i) is None else local, positions, valid, view)
    return self.final_norm(x), view

  def angles(self, positions: Array, theta: float, scaling: RopeScaling | None):
    """Cosine and sine, float32 [N,T,1,D/2] each."""
    freq = frequencies(theta, self.config.head_dim, scaling)
    angle = positions[:, :, None, None].astype(jnp.float32) * freq[None, None, None]
    return jnp.cos(angle), jnp.sin(angle)

  def logits(self, hidden: Array) -> Array:
    config = self.config
    head = self.embedding.astype(config.dtype) if config.tied else self.head
    product = functools.partial(jnp.matmul, preferred_element_type=jnp.float32)
    x = hidden.astype(config.dtype)
    many = x.ndim == 2 and len(x) > 1  # rows of a tick; see _enter. One alone is faster as it is
    y = _leave(product(head, _enter(x[:, None])))[:, 0] if many else product(x, head.T)
    if config.final_softcap is not None:
      y = config.final_softcap * jnp.tanh(y / config.final_softcap)
    if config.num_tokens is not None and config.num_tokens < config.vocab_size:
      y = jnp.where(_lift(jnp.arange(config.vocab_size), y) < config.num_tokens, y, NEVER)
    return y
