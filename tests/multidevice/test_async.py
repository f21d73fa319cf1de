"""Rollouts on four devices beside updates on four others, with rows that are carried over.

Needs a process of its own, see test_step.
"""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from launch import meshes
from rlvr_jax.core import ledger
from rlvr_jax.core.types import KILLED, OPEN, PromptTable
from rlvr_jax.recipes.areal import areal
from rlvr_jax.rollout.partial import partial
from rlvr_jax.tasks.arithmetic import arithmetic
from rlvr_jax.train import loop
from rlvr_jax.train.config import Config
from tests import toy, toy_run
from tests.schedule import driver

pytestmark = pytest.mark.skipif(
  len(jax.devices()) < 8,
  reason="needs XLA_FLAGS=--xla_force_host_platform_device_count=8 before JAX starts",
)

VOCAB, END, PROMPT, NEW, STEPS = 3, 2, 2, 24, 5
NUM, PROMPTS, BUDGET = 12, 4, 16
POLICY = toy.table_policy(VOCAB, PROMPT + NEW)
TABLE = PromptTable(
  tokens=jnp.asarray([[i % 2, i // 2 % 2] for i in range(NUM)], jnp.int32),
  length=jnp.full(NUM, PROMPT, jnp.int32),
  source=jnp.zeros(NUM, jnp.int32),
)


def _params(key):
  """Responses of ten tokens on average."""
  return {"table": POLICY.init(key)["table"].at[..., END].set(-1.5)}


@functools.cache
def _mesh(side):
  devices = jax.devices()[:4] if side == "rollout" else jax.devices()[4:8]
  return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def _along(side):
  """Lays rows over the devices of one side, inside jitted functions."""
  where = NamedSharding(_mesh(side), PartitionSpec("data"))
  return lambda tree: jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, where), tree)


def _everywhere(tree, side):
  """On all devices of one side, in arrays of its own: an update donates those of the learner."""
  where = NamedSharding(_mesh(side), PartitionSpec())
  return jax.device_put(tree, where, may_alias=False)


def _run():
  """Two groups of four a batch at least; what is unfinished is carried over."""
  parts = driver.make(
    areal(staleness=3, groups=2, most=BUDGET), POLICY._replace(init=_params), TABLE,
    toy_run.starts_with_zero, optax.sgd(1.0), prompts=PROMPTS, budget=BUDGET, new=NEW, end=END,
    rollout_rows=_along("rollout"), learn_rows=_along("train"), lanes=4,
  )  # fmt: skip
  pushed = []

  def push(learner):
    pushed.append(_everywhere((learner.params, learner.step, learner.control), "rollout"))
    return pushed[-1]

  state = parts.start()
  state = state.replace(
    learner=_everywhere(state.learner, "train"), collector=_everywhere(state.collector, "rollout")
  )
  place = lambda batch: _everywhere(batch, "train")
  return driver.run(parts, STEPS, state, push=push, place=place), pushed


def test_rollouts_and_updates_on_devices_of_their_own():
  steps, pushed = _run()
  of = lambda tree: {d for x in jax.tree.leaves(tree) for d in x.devices()}
  assert of(pushed) == set(jax.devices()[:4])
  single, checked, carried = partial(groups=PROMPTS), 0, 0
  for number, step in enumerate(steps):
    rows = step.rows
    made = rows.response_mask & rows.valid[:, None]
    assert made.any() and not ledger.balance(step.state.ledger).any()
    assert number - rows.version[made].min() == step.metrics["rollout/staleness_max"] <= 3
    versions = [set(v[v >= 0].tolist()) for v in rows.version]
    carried += sum(len(v) > 1 for v in versions)
    # Rows of one version are what its parameters draw on one device: none was pushed late, or too early.
    version = max(number - 1, 0)
    assert int(pushed[version][1]) == version
    mine = np.array([rows.valid[i] and v == {version} for i, v in enumerate(versions)])
    fresh = rows.replace(
      length=rows.response_start, status=np.where(mine, OPEN, KILLED).astype(np.int32), valid=mine
    )
    again, _ = single(
      POLICY, jax.device_get(pushed[version][0]), jax.tree.map(jnp.asarray, fresh),
      jnp.int32(version), jnp.array([END]), num_contexts=PROMPTS, prompt_places=PROMPT,
    )  # fmt: skip
    np.testing.assert_array_equal(again.length[mine], rows.length[mine])
    inside = mine[:, None] & (np.arange(PROMPT + NEW)[None] < rows.length[:, None])
    np.testing.assert_array_equal(
      np.where(inside, again.tokens, 0), np.where(inside, rows.tokens, 0)
    )
    checked += mine.sum()
  assert checked and carried
  table = [np.asarray(params["table"]) for params, *_ in pushed]
  assert all((a != b).any() for a, b in itertools.pairwise(table))


TASK = arithmetic(operations=["copy"], train_size=NUM, eval_size=4)


def _loop(workdir, staleness, placement):
  """What a run of the loop wrote: the completions, and the metrics without those of the clock."""
  assert TASK.tokenizer is not None
  config = Config(
    steps=STEPS, prompts=PROMPTS, budget=BUDGET, max_prompt_length=4, max_new_tokens=NEW,
    learning_rate=0.1, eval_every=0, checkpoint_every=0, sample_every=0, loggers=("jsonl",),
    record_completions=BUDGET, verifier_workers=1,
  )  # fmt: skip
  policy = toy.table_policy(TASK.tokenizer.vocab_size, 4 + NEW)
  recipe = areal(staleness=staleness, groups=2, most=BUDGET)._replace(
    reward=lambda rows, knobs: (rows.tokens.sum(1) % 2 == 0).astype(jnp.float32)
  )
  params = policy.init(jax.random.key(0))
  params = {"table": params["table"].at[..., TASK.tokenizer.eos_ids[0]].add(1.0)}
  loop.train(config, policy, params, TASK.tokenizer, recipe, TASK, workdir, placement=placement)
  read = lambda name: [json.loads(line) for line in (workdir / name).read_text().splitlines()]
  clock = ("time", "perf", "memory")
  metrics = [
    {k: v for k, v in row.items() if k.split("/")[0] not in clock} for row in read("metrics.jsonl")
  ]
  return read("completions.jsonl"), metrics


@pytest.mark.usefixtures("compiled_once")
@pytest.mark.parametrize("staleness", [0, 3])
def test_the_loop_with_rollouts_on_devices_of_their_own(tmp_path, staleness):
  """Everything on four devices, and rollouts on four others, are the same run."""
  one = _loop(tmp_path / "one", staleness, meshes.place("4x1x1").placement)
  two = _loop(tmp_path / "two", staleness, meshes.place("4x1x1", 4).placement)
  assert one == two
  oldest = [row["rollout/staleness_max"] for row in two[1]]
  assert len(oldest) == STEPS and max(oldest) <= staleness
  assert staleness == 0 or max(oldest) > 1  # rows are carried over
