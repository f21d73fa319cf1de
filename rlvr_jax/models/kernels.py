"""Attention kernels that JAX keeps for accelerators, and when they are taken.

On an NVIDIA GPU, models of 16 bits attend to `Spans` (the learner, and forwards without a cache) through
cuDNN's fused attention. Everything else has one plain form on every platform: on a TPU the kernels that JAX
keeps take segments or fixed masks and not the spans of packed trees, and a token step reads keys that lie
[D,C] (see core.types.KVCache), which no kept kernel does.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array


def choose(dtype, size: int, length: int, softcap: float | None) -> Literal["cudnn"] | None:
  """The implementation of jax.nn.dot_product_attention to take for `Spans`; None: the plain form.

  Args:
    dtype: of queries and keys; cuDNN knows those of 16 bits alone.
    size: D of a head.
    length: T of a row.
    softcap: see models.attention.attend; cuDNN has none.
  """
  half = jnp.dtype(dtype) in (jnp.bfloat16, jnp.float16)
  fits = size % 8 == 0 and size <= 128 and length % 2 == 0 and softcap is None
  return "cudnn" if jax.default_backend() == "gpu" and half and fits else None


def attend(
  q: Array,
  k: Array,
  v: Array,
  sees: Array,
  *,
  scale: float,
  implementation: Literal["xla", "cudnn"],
) -> Array:
  """Attention of q [N,T,K,G,D] over k, v [N,T,K,D] where sees bool [N,T,T] says so: [N,T,K,G,D]."""
  rows, length, kv_heads, groups, size = q.shape
  y = jax.nn.dot_product_attention(
    q.reshape(rows, length, kv_heads * groups, size),
    k,
    v,
    mask=sees[:, None],
    scale=scale,
    implementation=implementation,
  )
  return y.reshape(q.shape)
