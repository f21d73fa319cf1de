"""Logical axis names -> mesh axes. Library code knows the logical names only."""

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.core import table

AXES = {
  "rows": "rollout rows, cache slots and learner bins",
  "time": "places of a row",
  "prompts": "prompts of the table",
  "vocab": "vocabulary",
  "embed": "model width",
  "heads": "query heads times head size",
  "kv_heads": "key-value heads times head size",
  "mlp": "hidden width of the feed-forward block",
}

AxisRules = Mapping[
  str, str | tuple[str, ...] | None
]  # logical name -> mesh axis (absent: replicated)


def spec(axes: Sequence[str | None], rules: AxisRules) -> PartitionSpec:
  """Where an array with these logical axes goes.

  Raises:
    ValueError: for an unknown logical name, or if one mesh axis would shard two dimensions.
  """
  out, used = [], {}
  for name in axes:
    if name is not None and name not in AXES:
      raise table.unknown("logical axis", name, AXES)
    mesh_axis = rules.get(name) if name is not None else None
    for one in (mesh_axis,) if isinstance(mesh_axis, str) else mesh_axis or ():
      if one in used:
        raise ValueError(f"mesh axis {one!r} would shard both {used[one]!r} and {name!r} of {axes}")
      used[one] = name
    out.append(mesh_axis)
  return PartitionSpec(*out)


def shardings(axes, mesh: Mesh | AbstractMesh, rules: AxisRules):
  """A pytree of logical axis tuples -> a pytree of NamedShardings."""
  is_axes = lambda x: isinstance(x, tuple) and all(a is None or isinstance(a, str) for a in x)
  return jax.tree.map(lambda a: NamedSharding(mesh, spec(a, rules)), axes, is_leaf=is_axes)


def check(tree, shardings, axes):
  """Raises ValueError naming the array, its dimension and the mesh axis that does not divide it."""

  def one(path, x, sharding, logical):
    for dim, axis in enumerate(sharding.spec):
      names = (axis,) if isinstance(axis, str) else axis or ()
      parts = 1
      for name in names:
        parts *= sharding.mesh.shape[name]
      if x.shape[dim] % parts:
        where = jax.tree_util.keystr(path) or "parameter"
        raise ValueError(
          f"{where} {x.shape}: dimension {dim} ({logical[dim]!r}, {x.shape[dim]}) is not a multiple "
          f"of mesh axis {axis!r} ({parts}); choose a mesh whose size there divides it"
        )

  jax.tree_util.tree_map_with_path(one, tree, shardings, axes)


def spread(sharding: NamedSharding, shape: Sequence[int], axis: str) -> NamedSharding:
  """The sharding with the mesh axis laid along one more dimension: the longest that can be divided so.

  The sharding itself if none can, or if it uses the axis already.
  """
  sizes = sharding.mesh.shape
  names = lambda entry: (entry,) if isinstance(entry, str) else tuple(entry or ())
  entries: list[tuple[str, ...]] = [names(entry) for entry in sharding.spec]
  entries += [()] * (len(shape) - len(entries))
  if sizes[axis] == 1 or any(axis in entry for entry in entries):
    return sharding
  parts = lambda entry: math.prod(sizes[name] for name in (*entry, axis))
  fits = [d for d, size in enumerate(shape) if size % parts(entries[d]) == 0]
  if not fits:
    return sharding
  longest = max(fits, key=lambda d: shape[d])
  entries[longest] += (axis,)
  return NamedSharding(sharding.mesh, PartitionSpec(*(entry or None for entry in entries)))


def rows_sharding(mesh: Mesh, rules: AxisRules) -> NamedSharding:
  """For arrays whose first axis is rows; a pytree prefix for Rows."""
  return NamedSharding(mesh, spec(("rows",), rules))


def each_part(mesh: Mesh, axis: str, function):
  """function(whole, part) run by each part of the devices, D of them along a mesh axis, on its own.

  Arrays of `part` have a leading axis that D divides; each part is given its share of them, and results
  are stacked [D,...]. Nothing is exchanged along the axis; over the others the compiler splits the work.
  """

  def local(whole, part):
    return jax.tree.map(lambda x: x[None], function(whole, part))

  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(PartitionSpec(), PartitionSpec(axis)),
    out_specs=PartitionSpec(axis),
    axis_names={axis},
    check_vma=False,
  )
