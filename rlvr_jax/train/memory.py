"""Bytes a device needs, from shapes alone: nothing is allocated and nothing is compiled.

What is stored is exact: parameters, optimizer state, batch and caches, each divided as its sharding says.
What exists for a moment is a model of what XLA keeps, checked against its own account of compiled steps
on CPUs. With a `remat` that a backend undoes (XLA for CPUs does), activations are more than said here.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Packed, Policy
from rlvr_jax.decode.decode import PLACES
from rlvr_jax.models.spans import BLOCK
from rlvr_jax.train.learn import bin_stats, bins_of
from rlvr_jax.train.pack import Layout


class Plan(NamedTuple):
  """Bytes on one device."""

  params: int
  optimizer: int
  gradients: int  # float32, summed over the bins
  batch: int  # rows, packed rows, advantages
  activations: int  # of a bin, kept for the backward pass
  backward: int  # of one layer in the backward pass
  reads: int  # the logits of a chunk and the gradient of the head
  cache: int  # keys and values of the prompts and of the slots
  logits: int  # of a tick

  @property
  def learn(self) -> int:
    """The most that an update holds: in the middle of a bin, or when a bin's gradient is complete."""
    bin = max(self.activations + max(self.backward, self.reads), self.gradients)
    return self.params + self.optimizer + self.batch + self.gradients + bin

  @property
  def decode(self) -> int:
    """The most that sampling holds, beside an optimizer state that waits."""
    return self.params + self.optimizer + self.batch + self.cache + self.logits

  @property
  def peak(self) -> int:
    return max(self.learn, self.decode)


def size(tree) -> int:
  """Bytes of the arrays of a pytree, or of their shapes."""
  return sum(math.prod(x.shape) * jnp.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree))


def part(tree, shardings) -> int:
  """Bytes of a pytree on one device, laid out by a pytree of shardings."""
  one = lambda x, s: jax.ShapeDtypeStruct(s.shard_shape(x.shape), x.dtype)
  return size(jax.tree.map(one, tree, shardings))


def packed_shapes(layout: Layout, num_rows: int, num_places: int) -> Packed:
  """What pack.pack makes, as shapes."""
  of = lambda *shape, dtype=jnp.int32: jax.ShapeDtypeStruct(shape, dtype)
  bins, tokens, reads = layout.bins, layout.bin_tokens, layout.bin_reads
  shapes: dict[str, Any] = {
    **{name: of(bins, tokens) for name in ("tokens", "position", "stop")},
    **{name: of(bins, reads) for name in ("source", "target")},
    "temperature": of(bins, reads, dtype=jnp.float32),
    "num_reads": of(bins),
    "place": of(num_rows, num_places),
    "row_bin": of(num_rows),
    "num_bins": of(),
  }
  return Packed(**shapes)


def kept(policy: Policy, packed: Packed, *, entropy: bool, read_tokens: int) -> int:
  """Bytes that the forward pass of one bin keeps for the backward pass.

  Every array that differentiation saves, apart from inputs, transposed weights, integers and masks,
  which are not copied or made again, and products of two saved arrays, which XLA makes again. In a bin
  too short for blocks of attention there are arrays of one entry for each pair of tokens: of these it
  keeps one a layer, since scores, weights and their sums come from one another without a product.
  """

  def saved(params, packed):
    options = {"entropy": entropy, "read_tokens": read_tokens, "constrain": lambda lanes: lanes}
    run = lambda p: bin_stats(policy, p, bins_of(packed, 0, 1), **options)
    return jax.vjp(run, params)[1]

  params = jax.eval_shape(policy.init, jax.random.key(0))
  jaxpr = jax.make_jaxpr(saved)(params, packed).jaxpr
  inputs, outputs = (set(map(id, vs)) for vs in (jaxpr.invars, jaxpr.outvars))
  again = {
    id(eqn.outvars[0])
    for eqn in jaxpr.eqns
    if eqn.primitive.name == "mul"
    and all(id(x) in outputs and x.aval.shape == eqn.outvars[0].aval.shape for x in eqn.invars)
  }
  found = {id(v): v.aval for v in jaxpr.outvars if id(v) not in inputs | again}
  arrays = [a for a in found.values() if a.ndim > 2 and jnp.issubdtype(a.dtype, jnp.floating)]
  tokens = packed.tokens.shape[1]
  pairs = [a for a in arrays if tokens <= BLOCK and a.shape[-2:] == (tokens, tokens)]
  plain = size([a for a in arrays if not any(a is b for b in pairs)])
  return plain + (size(pairs) * policy.config.num_layers // len(pairs) if pairs else 0)


def own_places(new_tokens: int, num_places: int) -> int:
  """Places of a slot's own cache once it holds so many tokens; see decode.decode."""
  places = min(PLACES, num_places)
  while places < new_tokens:
    places = min(2 * places, num_places)
  return places


def plan(
  local: Policy,
  *,
  params: int,
  optimizer: int,
  gradients: int,
  layout: Layout,
  num_rows: int,
  num_places: int,
  prompts: int,
  prompt_places: int,
  slots: int,
  rows_parts: int,
  entropy: bool,
  read_tokens: int,
) -> Plan:
  """The bytes of one device.

  Args:
    local: the model as one device runs it, its widths divided by the tensor axis; with a `config`.
    params, optimizer, gradients: bytes of these on one device, see `part`.
    layout: of the learner's bins.
    num_rows, num_places: N and T of the batch.
    prompts, prompt_places: B and P.
    slots: rows decoded at a time.
    rows_parts: devices that rows are divided over.
    entropy: whether the objective wants it.
    read_tokens: tokens whose logits exist at a time.
  """
  config: Any = local.config
  packed = packed_shapes(layout, num_rows, num_places)
  rows = jax.eval_shape(lambda: rows_lib.blank(num_rows, num_places))
  numbers = 2 * 4 + 1  # advantage, weight, wanted
  tokens, wide = layout.bin_tokens, jnp.dtype(config.dtype).itemsize
  block = min(tokens, BLOCK)
  share = lambda num: -(-num // rows_parts)
  cache = jax.eval_shape(
    lambda: (
      local.init_cache(prompts, prompt_places),
      local.init_cache(share(slots), own_places(num_places - prompt_places, num_places)),
    )
  )
  chunk = min(read_tokens, layout.bin_reads)
  return Plan(
    params=params,
    optimizer=optimizer,
    gradients=gradients,
    batch=size(rows) + size(packed) + numbers * num_rows * num_places,
    activations=kept(local, packed, entropy=entropy, read_tokens=read_tokens),
    # Scores and half of them again; or the three inputs of the gate's derivative.
    backward=max(config.num_heads * block * block * 6, 3 * tokens * config.mlp_dim * wide),
    # Logits, tempered, their softmax, its gradient; the head's gradient, of the chunk and in all.
    reads=4 * 4 * chunk * config.vocab_size + 2 * 4 * config.vocab_size * config.embed_dim,
    cache=size(cache),
    logits=4 * 4 * share(slots) * config.vocab_size,
  )
