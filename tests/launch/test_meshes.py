"""Meshes by name. What they compute is in tests/multidevice."""

import jax
import pytest

from launch import meshes


@pytest.mark.parametrize("name", ["cpu1", "1x1x1"])
def test_one_device_needs_no_placement(name):
  placed = meshes.place(name)
  assert placed.mesh.size == 1
  assert placed.placement.lanes == 1
  x = object()
  assert placed.placement.rows(x) is placed.placement.state(x, None) is x


@pytest.mark.parametrize(
  ("name", "match"),
  [
    ("cpu3", "did you mean .*cpu1"),
    ("h200", "did you mean h200x1"),
    ("2x2", "<data>x<fsdp>x<tensor>"),
    ("0x1x1", "needs 0 devices"),
    ("v5p128", "needs 128 devices, this machine has"),
    ("1000x1x1", "xla_force_host_platform_device_count=1000"),
  ],
)
def test_meshes_that_cannot_be_made(name, match):
  with pytest.raises(ValueError, match=match):
    meshes.place(name)


def test_rollouts_beside_a_mesh_need_devices_of_their_own():
  num = len(jax.devices())
  with pytest.raises(ValueError, match=f"need {num + 1} devices, this machine has {num} "):
    meshes.place("cpu1", num)


def test_every_named_mesh_has_three_axes():
  assert all(len(shape) == len(meshes.AXES) == 3 for shape in meshes.MESHES.values())
  assert meshes.make_mesh("cpu1").devices.flat[0] == jax.devices()[0]
