"""Rollouts on meshes of eight devices equal those on one, and no shard waits for another.

Needs a process of its own, see test_step.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from launch import meshes
from rlvr_jax.core import keys, sharding
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, KILLED, LENGTH, OPEN
from rlvr_jax.decode import decode as engine
from rlvr_jax.decode import shards
from rlvr_jax.decode.logits import Truncation
from rlvr_jax.decode.stops import Stops, stops
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train.metrics import CompileCounter

pytestmark = pytest.mark.skipif(
  len(jax.devices()) < 8,
  reason="needs XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts",
)

MESHES = {"8x1x1": 8, "4x1x2": 4, "2x2x2": 4}  # and the shards of rows
N, P, T, SLOTS, CONTEXTS = 32, 6, 80, 16, 12
POLICY = decoder(tiny(32, num_layers=1, embed_dim=32, mlp_dim=64, head_dim=8))
EOS_IDS = jnp.asarray([5, 9, 21], jnp.int32)
# Uneven groups; 0 and 4 span shards of four and of eight rows. Rows 16 to 23 are padding.
GROUP = np.array([0] * 9 + [1] + [2] * 3 + [7] * 2 + [4] * 13 + [9] * 3 + [11])
LENGTHS = np.array([1, 3, 6, 4, 5, 2, 6, 3, 1, 2, 4, 6], np.int32)
# Rows 0 and 30 outgrow the 64 places that a cache begins with.
NEW = np.where(np.isin(np.arange(N), (0, 30)), 79, 1 + np.arange(N) * 7 % 13).astype(np.int32)


def _rows():
  group, index = jnp.asarray(GROUP, jnp.int32), jnp.arange(N)
  return rows_lib.fresh(
    jnp.asarray(np.random.default_rng(0).integers(6, 32, (CONTEXTS, P)), jnp.int32),
    jnp.asarray(LENGTHS),
    group=group,
    valid=(index < 16) | (index >= 24),
    uid=keys.row_uids(jax.random.key(0), 0, group, index),
    num_places=T,
    max_new_tokens=jnp.asarray(NEW),
    temperature=jnp.where(index % 5 == 1, 0.0, 0.5 + index / N),
  )


def _rule():
  """Every token for each third row, a few for the others; token 6 for none, an end token for odd rows."""
  index = np.arange(N)
  allowed = np.ones((N, 32), bool)
  allowed[:, 6] = False
  allowed[::2, 5] = False
  return Truncation(
    top_k=jnp.asarray(np.where(index % 3, 3 + index, 99), jnp.int32),
    min_p=jnp.asarray(0.01, jnp.float32),
    allowed=jnp.asarray(allowed),
  )


def _place(mesh, rows, params):
  """Rows and parameters where a learner on the mesh has them."""
  if mesh is None:
    return rows, params
  mesh = meshes.make_mesh(mesh)
  where = sharding.shardings(POLICY.axes, mesh, meshes.RULES)
  along = sharding.rows_sharding(mesh, meshes.RULES)
  return jax.device_put(rows, along), jax.device_put(params, where)


def _params(seed=1):
  params = POLICY.init(jax.random.key(seed))
  return {**params, "embedding": 12 * params["embedding"]}


def _run(mesh, rows=None, seed=1, slots=SLOTS, stops=None):
  rows, params = _place(mesh, _rows() if rows is None else rows, _params(seed))
  out = engine.decode(
    POLICY, params, rows, version=3, eos_ids=EOS_IDS, slots=slots, num_contexts=CONTEXTS,
    prompt_places=P, rule=_rule(), stops=stops,
  )  # fmt: skip
  return rows, *out


@functools.lru_cache
def _once(mesh):
  return _run(mesh)


def _waves(work, slots):
  """Ticks of a queue: each free slot takes the next row at once."""
  queue, busy, ticks = [w for w in work if w], [], 0
  while queue or busy:
    while queue and len(busy) < slots:
      busy.append(queue.pop(0))
    busy, ticks = [w - 1 for w in busy if w > 1], ticks + 1
  return ticks


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_grow_as_on_one_device(mesh):
  _, one, one_counts = _once(None)
  before, rows, counts = _once(mesh)
  exact = "tokens length status version response_mask uid group context valid temperature limit"
  for name in exact.split():
    np.testing.assert_array_equal(getattr(rows, name), getattr(one, name), err_msg=name)
  for name in ("behavior_logprobs", "full_logprobs", "entropy"):
    np.testing.assert_allclose(getattr(rows, name), getattr(one, name), atol=2e-5, err_msg=name)
  np.testing.assert_array_equal(counts.generated, one_counts.generated)
  np.testing.assert_array_equal(counts.replayed, one_counts.replayed)
  assert {EOS, LENGTH, KILLED} == set(rows.status.tolist())
  assert int(rows.length.max()) == T  # one that outgrew its first places

  same = lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim)
  assert jax.tree.all(jax.tree.map(same, rows, before))
  assert same(counts.generated, before.length)


@pytest.mark.parametrize("mesh", MESHES)
def test_each_shard_counts_its_own_work(mesh):
  """A prompt is run once by each shard that has rows of it; loops are as long as their queues."""
  _, _, counts = _once(mesh)
  num, valid = MESHES[mesh], np.asarray(_rows().valid)
  expected = np.zeros(N, int)
  for part in np.split(np.arange(N), num):
    led = {}
    for n in part[valid[part]]:
      led.setdefault(GROUP[n], n)
    for context, n in led.items():
      expected[n] = LENGTHS[context]
  np.testing.assert_array_equal(counts.prefilled, expected)
  parts = np.split(np.asarray(counts.generated), num)
  ticks = [_waves(part, SLOTS // num) for part in parts]
  assert min(ticks) == 0  # padding
  assert int(counts.ticks) == max(ticks)
  assert int(counts.slot_ticks) == SLOTS // num * sum(ticks)


def test_one_device_runs_each_prompt_once():
  _, _, counts = _once(None)
  first = {context: n for n, context in reversed(list(enumerate(GROUP))) if _rows().valid[n]}
  expected = np.zeros(N, int)
  for context, n in first.items():
    expected[n] = LENGTHS[context]
  np.testing.assert_array_equal(counts.prefilled, expected)


def test_new_weights_compile_nothing():
  _once("2x2x2")
  rows, params = _rows(), _params(2)
  _place("2x2x2", rows, params)
  with CompileCounter() as compiled:
    _run("2x2x2", rows, seed=2)
  assert compiled.count <= 4  # the new weights themselves, made outside of decode


@pytest.mark.parametrize(("mesh", "axis"), [("8x1x1", 8), ("4x1x2", 4)])
def test_no_shard_waits_for_another_inside_a_segment(mesh, axis):
  """Nothing crosses from shard to shard in the compiled loop; each holds its part of the slots' cache."""
  rows, params = _place(mesh, _rows(), _params())
  split = shards.split_of(rows.tokens)
  parts = engine.parts_of(POLICY, split)
  part, rule = parts.apart(rows, _rule())
  params = shards.whole(split, params)
  prompts, state = parts.start(params, part, EOS_IDS, SLOTS // axis, 64, CONTEXTS, P)
  heads, size = 2, 8
  tensor = 8 // axis
  cache = state.cache.k[0]
  assert cache.shape == (axis, SLOTS // axis, heads, size, 64)
  assert cache.sharding.shard_shape(cache.shape) == (1, SLOTS // axis, heads // tensor, size, 64)
  assert prompts.k[0].shape == (axis, min(CONTEXTS, N // axis), heads, size, P)
  ticks = jnp.int32(64)
  args = params, prompts, state, jnp.int32(0), EOS_IDS, rule, Stops(), ticks
  compiled = parts.segment.lower(*args).compile()
  text = compiled.as_text()
  assert "while(" in text
  found = re.findall(r"(all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute)\(.*", text)
  if tensor == 1:
    assert not found
  else:
    assert found  # of heads, inside pairs of devices
  held = sum(x.size * 4 for x in jax.tree.leaves(state.cache)) // 8
  assert compiled.memory_analysis().alias_size_in_bytes >= held
