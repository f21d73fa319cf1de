"""Meshes by name, and which mesh axis each logical axis is laid along."""

import re
from typing import NamedTuple

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.core import sharding, table
from rlvr_jax.core.types import Policy, RunState
from rlvr_jax.train.loop import Placement

# What a mesh axis shards: rows over data and fsdp; parameters over fsdp, heads and mlp over tensor.
RULES: sharding.AxisRules = {
  "rows": ("data", "fsdp"),
  "embed": "fsdp",
  "heads": "tensor",
  "kv_heads": "tensor",
  "mlp": "tensor",
  "vocab": "tensor",
}

AXES = ("data", "fsdp", "tensor")

MESHES = {  # name -> (data, fsdp, tensor)
  "cpu1": (1, 1, 1),
  "cpu8": (8, 1, 1),
  "h200x1": (1, 1, 1),
  "v5e16": (1, 16, 1),
  "v5p128": (4, 32, 1),
}


def make_mesh(name: str) -> Mesh:
  """A mesh by name, or by shape "DxFxT": data, fsdp and tensor parallelism.

  Raises:
    ValueError: for an unknown name, or if the machine has too few devices.
  """
  shape = MESHES.get(name)
  if shape is None and re.fullmatch(r"\d+x\d+x\d+", name):
    shape = tuple(int(part) for part in name.split("x"))
  if shape is None:
    raise table.unknown("mesh", name, [*MESHES, "<data>x<fsdp>x<tensor>"])
  need = shape[0] * shape[1] * shape[2]
  have = len(jax.devices())
  if need < 1 or need > have:
    raise ValueError(
      f"mesh {name!r} needs {need} devices, this machine has {have} "
      f"({jax.devices()[0].platform}); XLA_FLAGS=--xla_force_host_platform_device_count={need} "
      "makes that many of one CPU"
    )
  # Explicit axes (JAX's default) refuse gathers, scatters and sorts on sharded rows.
  return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:need])


class Placed(NamedTuple):
  mesh: Mesh
  placement: Placement


def place(name: str) -> Placed:
  """The mesh and how the trainer lays its data out on it."""
  mesh = make_mesh(name)
  if mesh.size == 1:
    return Placed(mesh, Placement())
  along_rows = sharding.rows_sharding(mesh, RULES)

  def rows(tree):
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, along_rows), tree)

  def state(run: RunState, policy: Policy) -> RunState:
    return place_state(run, policy, mesh)

  return Placed(mesh, Placement(rows, state, mesh.shape["data"] * mesh.shape["fsdp"]))


def place_state(run: RunState, policy: Policy, mesh: Mesh) -> RunState:
  """Parameters and what is shaped like them in the optimizer by their axes; the rest everywhere.

  Raises:
    ValueError: if a mesh axis does not divide a dimension of a parameter.
  """
  params = run.learner.params
  by_axes = sharding.shardings(policy.axes, mesh, RULES)
  sharding.check(params, by_axes)
  everywhere = NamedSharding(mesh, PartitionSpec())
  structure = jax.tree.structure(params)
  like_params = lambda x: jax.tree.structure(x) == structure
  layout = lambda tree: jax.tree.map(
    lambda x: by_axes if like_params(x) else everywhere, tree, is_leaf=like_params
  )
  learner = run.learner.replace(params=by_axes, opt_state=layout(run.learner.opt_state))
  learner = learner.replace(
    control=jax.tree.map(lambda _: everywhere, run.learner.control),
    step=everywhere,
    skipped=everywhere,
  )
  collector = jax.tree.map(lambda _: everywhere, run.collector)
  return run.replace(
    learner=jax.device_put(run.learner, learner), collector=jax.device_put(run.collector, collector)
  )
