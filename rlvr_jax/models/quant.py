"""Weights in 8 or 4 bits for rollouts: the matrices of the layers are kept as whole numbers and scales."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array, Params, Policy
from rlvr_jax.models.transformer import times

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


class Quantised(NamedTuple):
  """A policy over params in few bits."""

  policy: Policy
  convert: Callable[[Params], Params]  # (params of the policy it was made of) -> its own


class Int8(flax.struct.PyTreeNode):
  """A matrix with one scale an output: W[o,i] ~ scale[o] values[o,i]."""

  values: Array  # int8 [out,in], in [-127, 127]
  scale: Array  # float32 [out]

  def times(self, x: Array) -> Array:
    x, values = _together(x, self.values)
    # The scale multiplies the product: whole numbers up to 127 are exact in bfloat16.
    scale = self.scale.astype(x.dtype)
    y = times(x, values.astype(x.dtype))
    return y * (scale[:, None] if x.ndim == 2 else scale[None, None])

  def dense(self) -> Array:
    """float32 [out,in]."""
    return self.values.astype(jnp.float32) * self.scale[:, None]


class Int4(flax.struct.PyTreeNode):
  """A matrix with one scale an output and group of inputs, two values a byte.

  Byte j of an output holds input j in its low half and input j + in/2 in its high half, each in two's
  complement: unpacked, they are two plain halves of the matrix.
  """

  packed: Array  # uint8 [out,in/2]
  scale: Array  # float32 [out,in/group]

  def times(self, x: Array) -> Array:
    x, packed = _together(x, self.packed)
    return times(x, self.replace(packed=packed).dense().astype(x.dtype))

  def dense(self) -> Array:
    """float32 [out,in]."""
    values = unpack(self.packed).astype(jnp.float32)
    outputs, groups = self.scale.shape
    return (values.reshape(outputs, groups, -1) * self.scale[:, :, None]).reshape(values.shape)


def _together(x: Array, values: Array) -> tuple[Array, Array]:
  """Both as they are, but tied, so that XLA cannot widen all matrices before a loop over tokens.

  A CPU may: there widening is a pass over memory of its own, and costs less once than at every token.
  """
  tied = lambda *both: jax.lax.optimization_barrier(both)
  return jax.lax.platform_dependent(x, values, cpu=lambda *both: both, default=tied)


def quantise(policy: Policy, *, bits: int, group: int = 32) -> Quantised:
  """The policy with the matrices of its layers in 8 or 4 bits.

      8 bits: scale = max_i |W[o,i]| / 127, a scale an output
      4 bits: scale = max |W[o,g]| / 7, a scale an output and `group` inputs
      W ~ scale * round(W / scale), so that no weight is off by more than scale / 2

  Embedding, head, norms and biases stay as they are: the head's error would go straight into the
  log-probs, and a tied head is the embedding. Values are widened where a product needs them. On a
  CPU that happens once a rollout, so it takes the memory of both forms and the time of the float one.
  `convert` is jitted; new params of equal shapes compile nothing.

  The policy sampled from is the rounded one, and its log-probs are the ones stored with the tokens:
  a ratio of the learner's to these is a ratio to the policy that really sampled.

  Args:
    policy: a `models.transformer.decoder`.
    bits: 8 or 4.
    group: inputs that share a scale, for 4 bits; half the inputs of each matrix must be a multiple.

  Returns:
    Quantised. Its params are nested like the policy's, with Int8 or Int4 in place of a matrix.

  Raises:
    ValueError: if bits is neither, or group does not fit a matrix.
  """
  if bits not in (4, 8):
    raise ValueError(f"weights can be kept in 8 or 4 bits, not {bits}")
  axes: Any = flax.traverse_util.flatten_dict(policy.axes)
  paths = [path for path in axes if path[-1] in MATRICES]
  if bits == 4:
    shapes: Any = flax.traverse_util.flatten_dict(jax.eval_shape(policy.init, jax.random.key(0)))
    for path in paths:
      inputs = shapes[path].shape[1]
      if group < 1 or inputs % (2 * group):
        name = "/".join(path)
        raise ValueError(
          f"groups of {group} do not fit {name}: half of its {inputs} inputs must be a multiple"
        )

  def convert(params: Params) -> Params:
    flat: Any = flax.traverse_util.flatten_dict(params)
    encode = to_int8 if bits == 8 else lambda w: to_int4(w, group)
    return flax.traverse_util.unflatten_dict(flat | {path: encode(flat[path]) for path in paths})

  def encoded(outputs: Any, inputs: Any) -> Any:
    """The axes of what stands in place of a matrix with these."""
    whole: Any = (outputs, inputs)
    scale: Any = (outputs,) if bits == 8 else whole
    return Int8(whole, scale) if bits == 8 else Int4(whole, scale)

  new = {path: encoded(*axes[path]) for path in paths}
  return Quantised(
    policy._replace(
      init=jax.jit(lambda key: convert(policy.init(key))),
      axes=flax.traverse_util.unflatten_dict(axes | new),
    ),
    jax.jit(convert),
  )


def to_int8(w: Array) -> Int8:
  """w [out,in] with one scale an output; an output of zeros has scale 1."""
  w = w.astype(jnp.float32)
  scale = _scale(jnp.abs(w).max(1), 127)
  return Int8(jnp.round(w / scale[:, None]).astype(jnp.int8), scale)


def to_int4(w: Array, group: int) -> Int4:
  """w [out,in] with one scale an output and `group` inputs; zeros have scale 1."""
  outputs, inputs = w.shape
  w = w.astype(jnp.float32).reshape(outputs, inputs // group, group)
  scale = _scale(jnp.abs(w).max(2), 7)
  values = jnp.round(w / scale[:, :, None]).astype(jnp.int8)
  return Int4(pack(values.reshape(outputs, inputs)), scale)


def _scale(largest: Array, top: int) -> Array:
  return jnp.where(largest == 0, top, largest) / top  # NaN stays: it must reach the logits


def pack(values: Array) -> Array:
  """int8 [out,in] in [-8, 7] -> uint8 [out,in/2]; see Int4."""
  low, high = jnp.split(values.astype(jnp.uint8) & 15, 2, axis=1)
  return low | (high << 4)


def unpack(packed: Array) -> Array:
  """The inverse of `pack`."""
  low = jax.lax.bitcast_convert_type(packed << 4, jnp.int8) >> 4
  high = jax.lax.bitcast_convert_type(packed, jnp.int8) >> 4
  return jnp.concatenate([low, high], axis=1)
