"""LoRA: a policy of which only low-rank corrections to its matrices are trained."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.struct
import flax.traverse_util
import jax
import jax.numpy as jnp

from rlvr_jax.core import table
from rlvr_jax.core.types import Array, Params, Policy
from rlvr_jax.models.transformer import times

TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


class Lora(NamedTuple):
  """A policy over {"adapters": ..., "base": ...}, and what goes with it."""

  policy: Policy
  init: Callable[[Array], Params]  # (key) -> adapters
  merge: Callable[[Params], Params]  # (adapters and base) -> params of the policy it was made of


class Adapted(flax.struct.PyTreeNode):
  """A matrix and its correction, kept apart: applied to x, W x + scale B (A x)."""

  weight: Array  # [out,in]
  a: Array  # [rank,in]
  b: Array  # [out,rank]
  scale: float = flax.struct.field(pytree_node=False)

  def times(self, x: Array) -> Array:
    low = times(times(x, self.a.astype(x.dtype)), self.b.astype(x.dtype))
    return times(x, self.weight.astype(x.dtype)) + jnp.asarray(self.scale, x.dtype) * low


def lora(policy: Policy, *, rank: int, alpha: float, targets: Sequence[str] = TARGETS) -> Lora:
  """The policy with a low-rank correction to each target matrix.

      W' = W + alpha / rank * B A,    A ~ normal(0, 1 / in), B = 0

  so it starts as the policy itself. Train `adapters` and hold `base` still: the gradient for the
  adapters alone forms none for a whole matrix. Roll out and export `merge(params)`, which the policy
  itself reads.

  Args:
    policy: a `models.transformer.decoder`.
    rank: rows of A and columns of B, at least 1.
    alpha: above 0.
    targets: names of matrices in a layer; each is corrected in every layer.

  Returns:
    Lora. Adapters are nested like params, with `a` float32 [rank,in] and `b` float32 [out,rank]
    where a target is; float32 whatever the base is kept in.

  Raises:
    ValueError: if rank or alpha is out of range, or targets are unknown, repeated or none.

  Source: LoRA, arXiv 2106.09685.
  """
  if rank < 1 or not alpha > 0:
    raise ValueError(f"LoRA needs rank >= 1 and alpha > 0, got {rank} and {alpha}")
  axes: Any = flax.traverse_util.flatten_dict(policy.axes)
  shapes: Any = flax.traverse_util.flatten_dict(jax.eval_shape(policy.init, jax.random.key(0)))
  known = {path[-1] for path in axes if len(path) > 1 and path[-1] in TARGETS}
  for target in targets:
    if target not in known:
      raise table.unknown("LoRA target", target, known)
  if not targets or len(set(targets)) < len(targets):
    raise ValueError(f"LoRA targets must be different names, at least one; got {targets}")
  paths = sorted(path for path in axes if len(path) > 1 and path[-1] in targets)
  scale = alpha / rank

  def init(key: Array) -> Params:
    adapters = {}
    for path, one in zip(paths, jax.random.split(key, len(paths))):
      outputs, inputs = shapes[path].shape
      a = jax.random.normal(one, (rank, inputs), jnp.float32) / math.sqrt(inputs)
      adapters |= {(*path, "a"): a, (*path, "b"): jnp.zeros((outputs, rank), jnp.float32)}
    return flax.traverse_util.unflatten_dict(adapters)

  def corrected(params: Params, correct: Callable) -> Params:
    """The base with correct(W, A, B) where the targets are."""
    base: Any = flax.traverse_util.flatten_dict(params["base"])
    adapters = flax.traverse_util.flatten_dict(params["adapters"])
    new = {path: correct(base[path], adapters[*path, "a"], adapters[*path, "b"]) for path in paths}
    return flax.traverse_util.unflatten_dict(base | new)

  def merge(params: Params) -> Params:
    def add(w: Array, a: Array, b: Array) -> Array:
      low = jnp.matmul(b, a, precision=jax.lax.Precision.HIGHEST)
      return (w.astype(jnp.float32) + scale * low).astype(w.dtype)

    return corrected(params, add)

  def init_both(key: Array) -> Params:
    ours, theirs = jax.random.split(key)
    return {"adapters": init(ours), "base": policy.init(theirs)}

  def hidden(params: Params, tokens: Array, positions: Array, valid: Array, view):
    apart = corrected(params, lambda w, a, b: Adapted(w, a, b, scale))
    return policy.hidden(apart, tokens, positions, valid, view)

  ours = {}
  for path in paths:
    outputs, inputs = axes[path]
    ours |= {(*path, "a"): (None, inputs), (*path, "b"): (outputs, None)}
  both = policy._replace(
    init=jax.jit(init_both),
    hidden=hidden,
    logits=lambda params, hidden: policy.logits(params["base"], hidden),
    axes={"adapters": flax.traverse_util.unflatten_dict(ours), "base": policy.axes},
  )
  return Lora(both, jax.jit(init), jax.jit(merge))


@jax.jit
def fingerprint(params: Params) -> Array:
  """uint32 [leaves]: a sum over the bits of each array, to tell a base from another one.

  A sum of integers that wraps is the same in any order, so on any mesh.
  """

  def one(x: Array) -> Array:
    kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, kind).astype(jnp.uint32)
    place = jnp.zeros(x.shape, jnp.uint32)
    for axis, size in enumerate(x.shape):
      place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return _scrambled(bits + _scrambled(place)).sum(dtype=jnp.uint32)

  return jnp.stack([one(x) for x in jax.tree.leaves(params)])


def _scrambled(x: Array) -> Array:
  """Far-apart numbers of neighbouring ones: the finaliser of MurmurHash3."""
  x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
  x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
  return x ^ (x >> 16)
