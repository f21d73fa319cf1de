"""Rows that lie on several data shards: each shard works on its own part, and waits for no other.

Arrays of the parts have a leading axis of D shards, laid along the mesh axes of the rows: [N,...] becomes
[D,N/D,...], a number of each shard [D]. What lies along other axes of the mesh, as heads do, stays with
the compiler.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.core.types import KVCache


class Split(NamedTuple):
  """The mesh axes that rows are laid along, of more than one device together."""

  mesh: Mesh | AbstractMesh
  axes: tuple[str, ...]

  @property
  def num(self) -> int:
    """D, the number of shards."""
    return math.prod(self.mesh.shape[axis] for axis in self.axes)

  @property
  def along(self) -> NamedSharding:
    """Where an array goes whose first axis is that of rows, or of shards."""
    return NamedSharding(self.mesh, PartitionSpec(self.axes))

  @property
  def everywhere(self) -> NamedSharding:
    return NamedSharding(self.mesh, PartitionSpec())


def split_of(x) -> Split | None:
  """How the rows of x [N,...] lie; None: in one part.

  Raises:
    ValueError: if the shards do not divide N.
  """
  sharding = getattr(x, "sharding", None)
  if not isinstance(sharding, NamedSharding):
    return None
  split = Split(sharding.mesh, _names(sharding.spec[0] if len(sharding.spec) else None))
  if len(x) % split.num:
    raise ValueError(
      f"{len(x)} rows do not divide over {split.num} shards (mesh axes {', '.join(split.axes)}); "
      f"choose a multiple of {split.num} rows"
    )
  return split if split.num > 1 else None


def _names(axes) -> tuple[str, ...]:
  """The mesh axes of one entry of a PartitionSpec."""
  return (axes,) if isinstance(axes, str) else tuple(axes or ())


def each(split: Split | None, function: Callable, num_whole: int) -> Callable:
  """The function run by each shard on its part of the arguments, but for the first `num_whole`.

  Those are the same for all shards; everything else, results included, has the leading axis. No shard
  waits for another, so that loops may take as many turns as each needs. Without a split: the function.
  """
  if split is None:
    return function

  def local(whole, parts):
    parts = jax.tree.map(lambda x: x.reshape(x.shape[1:]), parts)
    return jax.tree.map(lambda x: x[None], function(*whole, *parts))

  def run(*args):
    # Only the axes of rows are taken over: over the others the compiler splits the work as before.
    mapped = jax.shard_map(
      local,
      mesh=split.mesh,
      in_specs=(PartitionSpec(), PartitionSpec(split.axes)),
      out_specs=PartitionSpec(split.axes),
      axis_names=set(split.axes),
      check_vma=False,
    )
    return _lay(split, mapped(args[:num_whole], args[num_whole:]))

  return run


def _lay(split: Split, tree):
  """Caches with their heads along the axes that are not the rows', the rest on the shard alone.

  Left to the compiler, the empty caches that a loop begins with would lie elsewhere than those it ends
  with.
  """
  others = tuple(axis for axis in split.mesh.axis_names if axis not in split.axes)
  size = math.prod(split.mesh.shape[axis] for axis in others)

  def one(x):
    where = split.along
    if isinstance(x, KVCache) and x.v[0].shape[2] % size == 0:  # [D,S,K,...]
      where = NamedSharding(split.mesh, PartitionSpec(split.axes, None, others))
    return jax.lax.with_sharding_constraint(x, where)

  return jax.tree.map(one, tree, is_leaf=lambda x: isinstance(x, KVCache))


@functools.cache
def whole_inside(function: Callable) -> Callable:
  """The function with an array as its result that is whole on every device of a shard.

  Drawing from logits that are spread over a vocabulary takes a dozen exchanges, among them permutations,
  which on some platforms all shards would have to take part in.
  """

  def run(*args):
    return jax.lax.with_sharding_constraint(function(*args), PartitionSpec())

  return run


def apart(split: Split, tree, num_rows: int):
  """[N,...] -> [D,N/D,...]; other arrays, as [] and [1,V], are repeated for each shard."""

  def one(x):
    x = jnp.asarray(x)
    mine = x.ndim and len(x) == num_rows
    x = (
      x.reshape(split.num, -1, *x.shape[1:]) if mine else jnp.broadcast_to(x, (split.num, *x.shape))
    )
    return jax.lax.with_sharding_constraint(x, split.along)

  return jax.tree.map(one, tree)


def together(tree):
  """[D,N/D,...] -> [N,...]."""
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), tree)


def whole(split: Split, params):
  """The params with none of them spread over the rows' axes; over other axes they stay as they are.

  A second copy where they were spread, and nothing where they were not.
  """
  leaves, structure = jax.tree.flatten(params)
  where = [_without(split, x) for x in leaves]
  moved = [i for i, x in enumerate(leaves) if not _lies(x, where[i])]
  if moved:
    new = _mover(tuple(where[i] for i in moved))(*(leaves[i] for i in moved))
    for i, x in zip(moved, new, strict=True):
      leaves[i] = x
  return jax.tree.unflatten(structure, leaves)


def _without(split: Split, x) -> NamedSharding:
  """The sharding of x less the rows' axes."""
  sharding = getattr(x, "sharding", None)
  if not isinstance(sharding, NamedSharding) or sharding.mesh != split.mesh:
    return split.everywhere
  left = (tuple(a for a in _names(entry) if a not in split.axes) for entry in sharding.spec)
  return NamedSharding(split.mesh, PartitionSpec(*(axes or None for axes in left)))


def _lies(x, sharding: NamedSharding) -> bool:
  return isinstance(x, jax.Array) and x.sharding.is_equivalent_to(sharding, x.ndim)


@functools.cache
def _mover(where: tuple[NamedSharding, ...]):
  return jax.jit(lambda *arrays: arrays, out_shardings=where)
