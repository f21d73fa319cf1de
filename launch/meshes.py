"""Meshes by name, and which mesh axis each logical axis is laid along."""

import functools
import math
import re
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from rlvr_jax.core import hosts, sharding, table
from rlvr_jax.core.types import Learner, Policy, RunState
from rlvr_jax.models.convert import Place, on_default_device
from rlvr_jax.train.learn import Apart
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


def mesh_shape(name: str) -> tuple[int, ...]:
  """(data, fsdp, tensor) of a mesh by name, or by shape "DxFxT".

  Raises:
    ValueError: for an unknown name, or a size of 0.
  """
  shape = MESHES.get(name)
  if shape is None and re.fullmatch(r"\d+x\d+x\d+", name):
    shape = tuple(int(part) for part in name.split("x"))
  if shape is None:
    raise table.unknown("mesh", name, [*MESHES, "<data>x<fsdp>x<tensor>"])
  if min(shape) < 1:
    raise ValueError(f"mesh {name!r} needs {math.prod(shape)} devices; every size is at least 1")
  return shape


def make_mesh(name: str) -> Mesh:
  """A mesh by name, or by shape "DxFxT": data, fsdp and tensor parallelism.

  Raises:
    ValueError: for an unknown name, if there are too few devices, or if a process would have none.
  """
  shape = mesh_shape(name)
  need, have, processes = math.prod(shape), len(jax.devices()), jax.process_count()
  where = "this machine has" if processes == 1 else f"these {processes} processes have"
  if need > have:
    raise ValueError(
      f"mesh {name!r} needs {need} devices, {where} {have} "
      f"({jax.devices()[0].platform}); XLA_FLAGS=--xla_force_host_platform_device_count="
      f"{-(-need // processes)} makes {-(-need // processes)} of one CPU"
    )
  if processes > 1 and need < have:
    raise ValueError(f"mesh {name!r} has {need} devices, {where} {have}; it must use them all")
  # Explicit axes (JAX's default) refuse gathers, scatters and sorts on sharded rows.
  return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * 3, devices=jax.devices()[:need])


class Placed(NamedTuple):
  mesh: Mesh
  placement: Placement
  leaf: Place  # puts a parameter where its logical axes say, while it is loaded


def place(name: str, rollout_devices: int = 0) -> Placed:
  """The mesh and how the trainer lays its data out on it.

  Args:
    rollout_devices: devices beside those of the mesh that make the rollouts, each a part of the rows with
      all parameters; 0: those of the mesh do.

  Raises:
    ValueError: as make_mesh does, if devices are too few, or if several processes would share them.
  """
  placed = _place(name)
  if not rollout_devices:
    return placed
  return placed._replace(placement=_rollouts_beside(placed, rollout_devices))


def _place(name: str) -> Placed:
  mesh = make_mesh(name)
  lanes = mesh.shape["data"] * mesh.shape["fsdp"]
  if mesh.size == 1:
    return Placed(mesh, Placement(), on_default_device)
  along_rows = sharding.rows_sharding(mesh, RULES)

  def rows(tree):
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, along_rows), tree)

  def state(run: RunState, policy: Policy) -> RunState:
    return place_state(run, policy, mesh)

  def learner(learner: Learner, policy: Policy) -> Learner:
    layout = learner_shardings(learner, policy, mesh)
    return jax.lax.with_sharding_constraint(learner, layout)

  def leaf(array: np.ndarray, axes: tuple):
    where = sharding.shardings(axes, mesh, RULES)
    sharding.check(array, where, axes)
    return hosts.put(array, where)

  placement = Placement(rows=rows, state=state, learner=learner, lanes=lanes, apart=_apart(mesh))
  return Placed(mesh, placement, leaf)


def _apart(mesh: Mesh) -> Apart | None:
  """The devices along the data axis: none holds a share of another's parameters.

  Not beside a tensor axis: XLA (of jaxlib 0.10) aborts when, inside such a part, it splits the lookup in an
  embedding that lies along two axes.
  """
  if mesh.shape["data"] == 1 or mesh.shape["tensor"] > 1:
    return None

  def lay(lanes):
    return jax.lax.with_sharding_constraint(lanes, PartitionSpec("fsdp"))

  return Apart(mesh.shape["data"], functools.partial(sharding.each_part, mesh, "data"), lay)


def _rollouts_beside(placed: Placed, num: int) -> Placement:
  """The placement, with rollouts on the `num` devices that follow those of the mesh."""
  mesh, placement, devices = placed.mesh, placed.placement, jax.devices()
  if jax.process_count() > 1:
    raise ValueError("rollout_devices needs a single process, which has all devices")
  if mesh.size + num > len(devices):
    raise ValueError(
      f"rollout_devices = {num} beside a mesh of {mesh.size} need {mesh.size + num} devices, this machine "
      f"has {len(devices)} ({devices[0].platform})"
    )
  devices = devices[mesh.size : mesh.size + num]
  side = jax.make_mesh((num,), ("data",), axis_types=(AxisType.Auto,), devices=devices)
  along = NamedSharding(side, PartitionSpec("data"))
  everywhere, back = (NamedSharding(one, PartitionSpec()) for one in (side, mesh))

  def rollout_rows(tree):
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, along), tree)

  def state(run: RunState, policy: Policy) -> RunState:
    run = placement.state(run, policy)
    return run.replace(collector=jax.device_put(run.collector, everywhere))

  return placement._replace(
    rollout_rows=rollout_rows,
    push=lambda tree: jax.device_put(tree, everywhere),
    hand=lambda tree: jax.device_put(tree, back),
    state=state,
  )


def place_state(run: RunState, policy: Policy, mesh: Mesh) -> RunState:
  """Puts the state on the mesh, see `learner_shardings`; what collecting needs lies everywhere."""
  learner = learner_shardings(run.learner, policy, mesh)
  collector = jax.tree.map(lambda _: NamedSharding(mesh, PartitionSpec()), run.collector)
  return run.replace(
    learner=hosts.put(run.learner, learner), collector=hosts.put(run.collector, collector)
  )


def learner_shardings(learner: Learner, policy: Policy, mesh: Mesh | AbstractMesh) -> Learner:
  """Parameters by their axes; what is shaped like them in the optimizer over the data axis as well.

  The optimizer needs its state once a step: no device holds more than its share of it (ZeRO stage 1, arXiv
  1910.02054). The rest lies everywhere.

  Raises:
    ValueError: if a mesh axis does not divide a dimension of a parameter.
  """
  params = learner.params
  known = isinstance(params, dict)
  axes = (
    {name: policy.axes[name] for name in params} if known else policy.axes
  )  # those that are trained
  by_axes = sharding.shardings(axes, mesh, RULES)
  sharding.check(params, by_axes, axes)
  spread = jax.tree.map(lambda x, s: sharding.spread(s, x.shape, "data"), params, by_axes)
  everywhere = NamedSharding(mesh, PartitionSpec())
  structure = jax.tree.structure(params)
  like_params = lambda x: jax.tree.structure(x) == structure
  layout = lambda tree: jax.tree.map(
    lambda x: spread if like_params(x) else everywhere, tree, is_leaf=like_params
  )
  return learner.replace(
    params=by_axes,
    opt_state=layout(learner.opt_state),
    control=jax.tree.map(lambda _: everywhere, learner.control),
    step=everywhere,
    skipped=everywhere,
  )
