"""Two training steps on meshes of eight devices equal those on one: tokens, ledger, loss, parameters.

Needs a process of its own, since the number of devices is fixed when JAX starts:

  XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m pytest tests/multidevice
"""

import functools
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from launch import meshes
from rlvr_jax.core import ledger
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import RunState, Tally, plain_table
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.tasks.arithmetic import arithmetic
from rlvr_jax.tasks.table import tokenise
from rlvr_jax.train import pack
from rlvr_jax.train.checkpoint import Checkpointer
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.evaluate import make_evaluate
from rlvr_jax.train.learn import make_learn
from rlvr_jax.train.state import init_state

pytestmark = pytest.mark.skipif(
  len(jax.devices()) < 8,
  reason="needs XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts",
)

MESHES = ("8x1x1", "4x2x1", "2x2x2")
PROMPTS, BUDGET, NEW, STEPS = 4, 16, 3, 2
# Dimensions that two devices divide; ids from 18 on are padding.
POLICY = decoder(
  tiny(24, num_tokens=18, num_layers=1, embed_dim=32, mlp_dim=64, num_heads=4, head_dim=8)
)
TASK = arithmetic(operations=["copy"], train_size=12, eval_size=5)
TABLE, _, _ = tokenise(TASK.tokenizer, TASK.train, max_length=8, sources=TASK.sources)
HELD, _, _ = tokenise(TASK.tokenizer, TASK.evals["heldout"], max_length=8, sources=TASK.sources)


def _starts_right(examples, ids, texts):
  """Right if the first digit is, or if it is even: often enough that groups are mixed."""
  good = lambda i, text: text[:1] == examples[i].answer[0] or text[:1] in ("0", "2", "4", "6", "8")
  return [Verdict(float(good(i, text))) for i, text in zip(ids, texts)]


class Run(NamedTuple):
  batches: list[Any]  # rows of each step, on the host
  metrics: list[dict[str, float]]
  state: RunState  # after the last step, where the mesh put it
  evaluated: tuple


@functools.lru_cache
def _parts(mesh):
  """(start, collect, learn, evaluate) on a mesh."""
  placement = meshes.place(mesh).placement
  # A gradient near 0 would move a parameter by its sign, that is by its rounding.
  recipe, optimizer = grpo(), optax.adamw(1e-2, eps=1e-5)
  collect = make_collect(
    POLICY, recipe, TABLE, functools.partial(_starts_right, TASK.train), TASK.tokenizer.decode,
    prompts=PROMPTS, budget=BUDGET, max_new_tokens=NEW, eos_ids=TASK.tokenizer.eos_ids,
    sources=TASK.sources, constrain=placement.rows,
  )  # fmt: skip
  learn = make_learn(
    POLICY, recipe, optimizer, num_rows=BUDGET, num_places=collect.num_places,
    num_prompts=len(TASK.train), bin_tokens=16, lanes=placement.lanes, constrain=placement.rows,
    settle=lambda learner: placement.learner(learner, POLICY), apart=placement.apart,
  )  # fmt: skip
  evaluate = make_evaluate(
    POLICY, "heldout", HELD, ["copy"] * len(HELD.length),
    functools.partial(_starts_right, TASK.evals["heldout"]), TASK.tokenizer.decode, samples=1,
    rows=BUDGET, max_new_tokens=NEW, temperature=1.0, eos_ids=TASK.tokenizer.eos_ids, seed=0,
    constrain=placement.rows,
  )  # fmt: skip

  def start():
    params = POLICY.init(jax.random.key(0))
    params = {**params, "embedding": 12 * params["embedding"]}
    state = init_state(
      recipe, optimizer, params, table=plain_table(len(TASK.train)), num_places=8, seed=0
    )
    return placement.state(state, POLICY)

  return start, collect, learn, evaluate


@functools.lru_cache
def _run(mesh, keep=BUDGET):
  """Steps on a mesh; `keep` rows of each batch are left, the others become padding."""
  start, collect, learn, evaluate = _parts(mesh)
  state, batches, metrics = start(), [], []
  for _ in range(STEPS):
    learner, collector, books = state.learner, state.collector, state.ledger
    collector, batch, books, _ = collect(
      learner.params, learner.step, learner.control, collector, books
    )
    rows = batch.rows.replace(valid=batch.rows.valid & (jnp.arange(BUDGET) < keep))
    key = jax.random.wrap_key_data(collector.key)
    learner, learned, booked = learn(learner, rows, batch.tally, collector.epoch, key)
    state = state.replace(learner=learner, collector=collector, ledger=ledger.book(books, booked))
    batches.append(jax.device_get(rows))
    metrics.append(batch.metrics | learned)
  return Run(batches, metrics, state, evaluate(state.learner.params))


def _equal(one, many):
  for a, b in zip(one.batches, many.batches):
    for name in ("tokens", "length", "status", "uid", "prompt_id", "group", "valid", "reward"):
      np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    np.testing.assert_allclose(a.full_logprobs, b.full_logprobs, atol=1e-5)
  # Each shard decodes alone: it runs the prompts it has rows of, and its slots stop with its last row.
  ours, theirs = dict(one.state.ledger), dict(many.state.ledger)
  assert (theirs.pop("prefilled") >= ours.pop("prefilled")).all()
  jax.tree.map(np.testing.assert_array_equal, ours, theirs)
  collectors = (jax.device_get(run.state.collector) for run in (one, many))
  jax.tree.map(np.testing.assert_array_equal, *collectors)
  for a, b in zip(one.metrics, many.metrics):
    assert set(a) == set(b)
    assert b["rollout/slot_use"] >= a["rollout/slot_use"]
    for name in set(a) - {"rollout/slot_use"}:
      np.testing.assert_allclose(a[name], b[name], rtol=1e-4, atol=1e-5, err_msg=name)
  compare = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
  params = (jax.device_get(run.state.learner.params) for run in (one, many))
  jax.tree.map(compare, *params)


@pytest.mark.parametrize("mesh", MESHES)
def test_t2_eight_devices_equal_one(mesh):
  one, many = _run("cpu1"), _run(mesh)
  _equal(one, many)
  assert one.metrics[0]["policy/grad_norm"] > 0
  assert one.metrics[0]["mismatch/logp_diff_max"] < 1e-5
  assert not ledger.balance(many.state.ledger).any()


@pytest.mark.parametrize("mesh", MESHES)
def test_evaluation_of_a_set_that_the_mesh_does_not_divide(mesh):
  """Five prompts on eight devices."""
  (metrics, tokens), (expected, count) = _run(mesh).evaluated, _run("cpu1").evaluated
  assert tokens == count
  assert metrics == pytest.approx(expected)


def test_t67_a_device_whose_rows_are_all_masked():
  """Eight rows of sixteen are left: with two a device, four devices have nothing."""
  one, many = _run("cpu1", 8), _run("8x1x1", 8)
  _equal(one, many)
  assert one.metrics[0]["policy/grad_norm"] > 0


def _moved(policy, mesh):
  """(dimensions of an array, its line of the compiled text) of all that devices exchange in an update."""
  placement = meshes.place(mesh).placement
  recipe, optimizer = grpo(), optax.adamw(1e-2)
  learn = make_learn(
    policy, recipe, optimizer, num_rows=16, num_places=20, num_prompts=4, bin_tokens=256,
    read_tokens=16, lanes=placement.lanes, constrain=placement.rows, apart=placement.apart,
  )  # fmt: skip
  state = init_state(
    recipe, optimizer, policy.init(jax.random.key(0)), table=plain_table(4), num_places=8, seed=0
  )
  learner = placement.state(state, policy).learner
  rows, zeros = rows_lib.blank(16, 20), jnp.zeros(4, jnp.int32)
  nothing = np.zeros((16, 20), bool)
  packed, _ = pack.pack(rows.tokens, nothing, np.ones(16), learn.sizes, lanes=placement.lanes)
  prepared = jax.eval_shape(learn.parts["prepare"], learner, rows, jax.random.key(0))
  update = learn.parts["update"].lower(
    learner, {}, rows, packed, prepared, Tally(*[zeros] * 4), zeros[0], jnp.asarray(True)
  )
  kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
  moved = []
  for line in update.compile().as_text().splitlines():
    found = re.search(rf"= (.*?) (?:{kinds})(?:-start)?\(", line)
    for shape in re.findall(r"\[([\d,]+)\]", found[1]) if found else ():
      moved.append(({int(d) for d in shape.split(",")}, line))
  return moved


def test_logits_stay_on_the_devices_that_made_them():
  """The head's vocabulary is over two devices, its width over two more, and the lanes over four.

  What travels with a dimension of the vocabulary is a parameter or its gradient: each device makes the
  logits of its own lane, for its own half of the vocabulary. The lookup of the embedding apart, no device
  ever holds a whole vocabulary.
  """
  vocab, embed = 112, 32  # found in no other shape
  policy = decoder(
    tiny(vocab, num_layers=1, embed_dim=embed, mlp_dim=64, num_heads=4, head_dim=8, tied=False)
  )
  moved = _moved(policy, "2x2x2")
  assert any(vocab // 2 in dims for dims, _ in moved)  # the head's gradient, at least
  for dims, line in moved:
    if vocab // 2 in dims:
      assert dims <= {vocab // 2, embed, embed // 2}, line
    if vocab in dims:
      assert dims <= {vocab, embed, embed // 2} and "logits" not in line, line


def test_gradients_meet_once_a_step_and_not_once_a_bin():
  """On devices along the data axis; no loop of an update exchanges anything of a weight's width."""
  mlp = 72  # found in no other shape
  policy = decoder(tiny(24, num_layers=1, embed_dim=32, mlp_dim=mlp, num_heads=4, head_dim=8))
  weights = [line for dims, line in _moved(policy, "8x1x1") if mlp in dims or mlp // 8 in dims]
  assert weights
  assert not any("while/body" in line for line in weights), weights


def test_parameters_lie_where_the_mesh_says():
  params = _run("2x2x2").state.learner.params
  where = lambda x: tuple(x.sharding.spec)
  assert where(params["layers_0"]["q"]) == ("tensor", "fsdp")
  assert where(params["layers_0"]["o"]) == ("fsdp", "tensor")
  assert where(params["layers_0"]["down"]) == ("fsdp", "tensor")
  assert where(params["embedding"]) == ("tensor", "fsdp")


@pytest.mark.parametrize("mesh", MESHES)
def test_a_device_holds_an_eighth_of_the_moments(mesh):
  """After the last step still; parameters are divided over fsdp and tensor alone."""
  learner = _run(mesh).state.learner
  share = lambda x: x.size / x.addressable_shards[0].data.size
  data = int(mesh[0])
  for name in ("q", "o", "up", "down"):
    assert share(learner.params["layers_0"][name]) == 8 / data
    assert share(learner.opt_state[0].mu["layers_0"][name]) == 8
  assert share(learner.opt_state[0].nu["embedding"]) == 8


def test_a_checkpoint_moves_to_another_mesh(tmp_path):
  """Saved on one mesh, restored onto the shardings of another, bit for bit."""
  saved, like = _run("2x2x2").state, _parts("4x2x1")[0]()
  with Checkpointer(tmp_path, keep=1) as checkpoints:
    checkpoints.save(saved)
    restored = checkpoints.restore(like)
  jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored), jax.device_get(saved))
  sharding = lambda x: getattr(x, "sharding", None)
  assert jax.tree.map(sharding, restored) == jax.tree.map(sharding, like)


def test_dimensions_that_the_mesh_does_not_divide_are_named():
  odd = decoder(tiny(23, num_layers=1))
  state = init_state(
    grpo(), optax.sgd(1.0), odd.init(jax.random.key(0)), table=plain_table(3), num_places=8, seed=0
  )
  placement = meshes.place("2x2x2").placement
  with pytest.raises(ValueError, match=r"embedding.* \(23, 64\): dimension 0 .*'tensor' \(2\)"):
    placement.state(state, odd)
