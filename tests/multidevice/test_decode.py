"""Rollouts on meshes of eight devices equal those on one, and no shard waits for another.

Needs a process of its own, see test_step.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
GROW = ("8x1x1", "2x2x2")  # where some rows outgrow the 64 places that a cache begins with
N, P, T, SLOTS, CONTEXTS = 32, 6, 80, 16, 12
POLICY = decoder(tiny(32, num_layers=1, embed_dim=32, mlp_dim=64, head_dim=8))
EOS_IDS = jnp.asarray([5, 9, 21], jnp.int32)
# Uneven groups; 0 and 4 span shards, of four rows and of eight. Rows 16 to 23 are padding.
GROUP = np.array([0] * 9 + [1] + [2] * 3 + [7] * 2 + [4] * 13 + [9] * 3 + [11], np.int32)
VALID = ~np.isin(np.arange(N), np.arange(16, 24))
LENGTHS = np.array([1, 3, 6, 4, 5, 2, 6, 3, 1, 2, 4, 6], np.int32)
LONG = (0, 30)  # rows that nothing ends but the limit


@functools.lru_cache
def _rows(grow):
  index = np.arange(N)
  new = 1 + index * 7 % 13
  new[list(LONG)] = T if grow else 20
  return rows_lib.fresh(
    jnp.asarray(np.random.default_rng(0).integers(6, 32, (CONTEXTS, P)), jnp.int32),
    jnp.asarray(LENGTHS),
    group=jnp.asarray(GROUP),
    valid=jnp.asarray(VALID),
    uid=keys.row_uids(jax.random.key(0), 0, jnp.asarray(GROUP), jnp.arange(N)),
    num_places=T,
    max_new_tokens=jnp.asarray(new, jnp.int32),
    temperature=jnp.asarray(np.where(index % 5 == 1, 0.0, 0.5 + index / N), jnp.float32),
  )


def _rule():
  """A number of likely tokens for each row; never token 6; no end token in long rows."""
  allowed = np.ones((N, 32), bool)
  allowed[:, 6] = False
  allowed[np.ix_(LONG, EOS_IDS.tolist())] = False
  return Truncation(
    top_k=jnp.asarray(3 + np.arange(N), jnp.int32),
    min_p=jnp.asarray(0.001, jnp.float32),
    allowed=jnp.asarray(allowed),
  )


@functools.lru_cache
def _params(mesh, seed=1):
  """Parameters where a learner on the mesh has them."""
  params = POLICY.init(jax.random.key(seed))
  params = {**params, "embedding": 6 * params["embedding"]}
  if mesh is None:
    return params
  where = sharding.shardings(POLICY.axes, meshes.make_mesh(mesh), meshes.RULES)
  return jax.device_put(params, where)


def _placed(mesh, grow=None):
  rows = _rows(mesh in GROW if grow is None else grow)
  if mesh is None:
    return rows
  return jax.device_put(rows, sharding.rows_sharding(meshes.make_mesh(mesh), meshes.RULES))


def _decode(mesh, rows, seed=1, **options):
  return engine.decode(
    POLICY, _params(mesh, seed), rows, version=3, eos_ids=EOS_IDS, slots=SLOTS,
    num_contexts=CONTEXTS, prompt_places=P, rule=_rule(), **options,
  )  # fmt: skip


@functools.lru_cache
def _run(mesh, grow=None):
  return _decode(mesh, _placed(mesh, grow))


def _same(rows, expected):
  exact = "tokens length status version response_mask uid group context valid temperature limit"
  for name in exact.split():
    np.testing.assert_array_equal(getattr(rows, name), getattr(expected, name), err_msg=name)
  for name in ("behavior_logprobs", "full_logprobs", "entropy"):
    mine, theirs = getattr(rows, name), getattr(expected, name)
    np.testing.assert_allclose(mine, theirs, atol=2e-5, err_msg=name)


def _first_tokens(num):
  """Prompt tokens of each row that is the first of its prompt in one of `num` shards."""
  tokens = np.zeros(N, int)
  for part in np.split(np.arange(N), num):
    for context in set(GROUP[part[VALID[part]]]):
      first = next(n for n in part if VALID[n] and GROUP[n] == context)
      tokens[first] = LENGTHS[context]
  return tokens


def _queue(work, slots):
  """Ticks of a queue: each free slot takes the next row at once."""
  queue, busy, ticks = [w for w in work if w], [], 0
  while queue or busy:
    while queue and len(busy) < slots:
      busy.append(queue.pop(0))
    busy, ticks = [w - 1 for w in busy if w > 1], ticks + 1
  return ticks


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_grow_as_on_one_device(mesh):
  one, one_counts = _run(None, mesh in GROW)
  rows, counts = _run(mesh)
  _same(rows, one)
  np.testing.assert_array_equal(counts.generated, one_counts.generated)
  np.testing.assert_array_equal(counts.replayed, one_counts.replayed)
  assert {EOS, LENGTH, KILLED} == set(rows.status.tolist())
  assert int(rows.length.max()) == (T if mesh in GROW else 22)
  before = _placed(mesh)
  lies = lambda a, b: a.sharding.is_equivalent_to(b.sharding, a.ndim)
  assert jax.tree.all(jax.tree.map(lies, rows, before))
  assert lies(counts.generated, before.length)


@pytest.mark.parametrize("mesh", [None, *MESHES])
def test_a_shard_does_its_own_work_alone(mesh):
  """It runs the prompts that it has rows of, and its loop is as long as its queue."""
  _, counts = _run(mesh, None if mesh else True)
  num = MESHES.get(mesh, 1)
  np.testing.assert_array_equal(counts.prefilled, _first_tokens(num))
  ticks = [_queue(part, SLOTS // num) for part in np.split(np.asarray(counts.generated), num)]
  assert int(counts.ticks) == max(ticks)
  assert int(counts.slot_ticks) == SLOTS // num * sum(ticks)
  assert min(ticks) == 0 or num == 1  # the shard of padding


def test_new_weights_compile_nothing():
  """Those of the learner lie along the rows' axes as well, and are gathered."""
  _run("2x2x2")
  rows, params = _placed("2x2x2"), _params("2x2x2", 2)
  assert tuple(params["layers_0"]["q"].sharding.spec) == ("tensor", "fsdp")
  rule = _rule()
  with CompileCounter() as compiled:
    new, _ = engine.decode(
      POLICY, params, rows, version=4, eos_ids=EOS_IDS, slots=SLOTS, num_contexts=CONTEXTS,
      prompt_places=P, rule=rule,
    )  # fmt: skip
  assert compiled.count == 0
  assert (np.asarray(new.tokens) != np.asarray(_run("2x2x2")[0].tokens)).any()
  split = shards.split_of(rows.tokens)
  gathered = shards.whole(split, params)
  assert "fsdp" not in tuple(gathered["layers_0"]["q"].sharding.spec)
  assert gathered["layers_0"]["q"].sharding.shard_shape((32, 32)) == (16, 32)
  again = shards.whole(split, gathered)
  assert jax.tree.all(jax.tree.map(lambda a, b: a is b, again, gathered))


@pytest.mark.parametrize("rules", [{"tokens": 20}, {"groups": 2}])
def test_leaving_off_is_agreed_on(rules):
  """Shards look up every 16 ticks; what is left open goes on to the same tokens."""
  whole, whole_counts = _run("8x1x1")
  rows, counts = _decode("8x1x1", _placed("8x1x1"), stops=stops(**rules))
  assert int(counts.ticks) == 16 < int(whole_counts.ticks)
  left = np.asarray(rows.status) == OPEN
  assert left[list(LONG)].all()
  closed = {g for g in set(GROUP[VALID]) if not left[VALID & (g == GROUP)].any()}
  assert len(closed) >= rules.get("groups", 0)
  assert int(counts.generated.sum()) >= rules.get("tokens", 0)
  rest, more = _decode("8x1x1", rows)
  _same(rest, whole)
  np.testing.assert_array_equal(counts.generated + more.generated, whole_counts.generated)


def test_a_segment_exchanges_nothing_and_holds_its_part_of_the_cache():
  """Each of eight devices holds two of sixteen slots, and updates their cache in place."""
  rows, params = _placed("8x1x1"), _params("8x1x1")
  parts = engine.parts_of(POLICY, shards.split_of(rows.tokens))
  part, rule = parts.apart(rows, _rule())
  prompts, state = parts.start(params, part, EOS_IDS, 2, 64, CONTEXTS, P)
  cache = state.cache.k[0]
  assert cache.shape == (8, 2, 2, 8, 64)  # shards, slots, heads, size, places
  assert cache.sharding.shard_shape(cache.shape) == (1, 2, 2, 8, 64)
  assert prompts.k[0].shape == (8, 4, 2, 8, P)  # four rows have four prompts at most
  args = params, prompts, state, jnp.int32(0), EOS_IDS, rule, Stops(), jnp.int32(64)
  compiled = parts.segment.lower(*args).compile()
  text = compiled.as_text()
  assert " while(" in text
  assert not re.search(r"\b(all-\w+|reduce-scatter|collective-\w+|send|recv)(-start)?\(", text)
  held = sum(x.nbytes for x in jax.tree.leaves(state.cache)) // 8
  assert compiled.memory_analysis().alias_size_in_bytes >= held


def test_heads_lie_along_the_tensor_axis():
  """Exchanges stay inside a shard: in pairs, and none that all devices would have to take part in."""
  rows = _placed("2x2x2")
  split = shards.split_of(rows.tokens)
  parts, params = engine.parts_of(POLICY, split), shards.whole(split, _params("2x2x2"))
  part, rule = parts.apart(rows, _rule())
  prompts, state = parts.start(params, part, EOS_IDS, 4, 64, CONTEXTS, P)
  where = lambda x: x.sharding.shard_shape(x.shape)
  assert where(state.cache.k[0]) == (1, 4, 1, 8, 64)
  assert where(state.cache.v[0]) == (1, 4, 1, 64, 8)
  assert where(prompts.k[0]) == (1, 8, 1, 8, P)
  args = params, prompts, state, jnp.int32(0), EOS_IDS, rule, Stops(), jnp.int32(64)
  text = parts.segment.lower(*args).compile().as_text()
  groups = set(re.findall(r"replica_groups=(\[.*?\]<=\[\d+\]|\{\{.*?\}\})", text))
  assert groups and groups <= {"[4,2]<=[8]", "{{0,1},{2,3},{4,5},{6,7}}"}
  assert not re.search(r"\b(collective-permute|all-to-all)(-start)?\(", text)


def test_rows_that_the_shards_do_not_divide_are_refused():
  along = sharding.rows_sharding(meshes.make_mesh("4x2x1"), meshes.RULES)
  tokens = jax.ShapeDtypeStruct((12, T), jnp.int32, sharding=along)
  with pytest.raises(ValueError, match=r"12 rows .* 8 shards \(mesh axes data, fsdp\)"):
    shards.split_of(tokens)
