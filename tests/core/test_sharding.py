"""Logical axes to mesh axes. Meshes here have no devices: names and sizes are all that matters."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rlvr_jax.core import sharding

RULES = {"rows": "data", "embed": "data", "mlp": "model", "vocab": ("data", "model"), "time": None}
MESH = AbstractMesh((2, 4), ("data", "model"))


@pytest.mark.parametrize(
  ("axes", "expect"),
  [
    (("rows", "time"), P("data", None)),
    (("embed", "mlp"), P("data", "model")),
    ((None, "mlp"), P(None, "model")),
    (("vocab", None), P(("data", "model"), None)),
    (("heads", "prompts"), P(None, None)),  # not in the rules: replicated
    ((), P()),
  ],
)
def test_spec(axes, expect):
  assert sharding.spec(axes, RULES) == expect


@pytest.mark.parametrize(
  "axes", [("rows", "embed"), ("embed", "vocab"), ("vocab", "mlp"), ("mlp", "mlp")]
)
def test_a_mesh_axis_may_shard_one_dimension_only(axes):
  with pytest.raises(ValueError, match=f"would shard both '{axes[0]}' and '{axes[1]}'"):
    sharding.spec(axes, RULES)


def test_unknown_logical_axis():
  with pytest.raises(ValueError, match="unknown logical axis 'row'; did you mean rows"):
    sharding.spec(("row",), RULES)


def test_shardings_go_through_a_tree():
  axes = {"a": ("embed", "mlp"), "b": [("rows",), ()]}
  out = sharding.shardings(axes, MESH, RULES)
  expect = {"a": P("data", "model"), "b": [P("data"), P()]}
  assert out == jax.tree.map(
    lambda s: NamedSharding(MESH, s), expect, is_leaf=lambda x: isinstance(x, P)
  )


def test_rows_are_sharded_along_their_first_axis():
  assert sharding.rows_sharding(MESH, RULES) == NamedSharding(MESH, P("data"))


def test_check_names_the_array_and_the_dimension():
  axes = {"w": ("embed", "mlp"), "table": ("vocab", None)}
  where = sharding.shardings(axes, MESH, RULES)
  params = {"w": jnp.zeros((6, 8)), "table": jnp.zeros((16, 3))}
  sharding.check(params, where, axes)
  with pytest.raises(
    ValueError, match=r"\['w'\] \(6, 10\): dimension 1 .'mlp', 10. .* 'model' \(4\)"
  ):
    sharding.check(params | {"w": jnp.zeros((6, 10))}, where, axes)
  with pytest.raises(
    ValueError, match=r"\['w'\] \(5, 8\): dimension 0 .'embed', 5. .* 'data' \(2\)"
  ):
    sharding.check(params | {"w": jnp.zeros((5, 8))}, where, axes)
  # Two mesh axes on one dimension: their product must divide it.
  with pytest.raises(ValueError, match=r"\['table'\] \(12, 3\): dimension 0 .*\(8\)"):
    sharding.check(params | {"table": jnp.zeros((12, 3))}, where, axes)
