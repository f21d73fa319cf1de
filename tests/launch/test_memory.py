"""The planner against arithmetic by hand and against XLA's account of a compiled update."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from launch import memory as command
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Tally, plain_table
from rlvr_jax.decode import decode as engine
from rlvr_jax.decode.stops import Stops
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train import memory, pack
from rlvr_jax.train.config import Config
from rlvr_jax.train.learn import make_learn
from rlvr_jax.train.state import init_state

ROWS, PLACES, BIN = 8, 64, 256


def test_what_is_stored_is_counted_exactly():
  """Two layers of 64 wide by hand: embedding, q and o, k and v, three of the MLP, norms."""
  config = Config(policy="tiny", prompts=4, budget=8, max_prompt_length=32, max_new_tokens=8)
  layer = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 192 + 2 * 64
  params = 4 * (64 * 64 + 2 * layer + 64)
  plan = command.plan(config)
  assert plan.params == plan.gradients == params
  assert 0 <= plan.optimizer - 2 * params < 100  # two moments and some counters
  assert plan.cache == 2 * 2 * 2 * 16 * 4 * (4 * 32 + 8 * 40)  # k, v; layers; heads; size; bytes
  assert plan.peak == max(plan.learn, plan.decode)


def test_a_mesh_divides_and_needs_no_devices():
  """Each parameter has an axis of the model's width, 64."""
  sizes = dict(policy="tiny", prompts=4, budget=64, max_prompt_length=32, max_new_tokens=8)
  one, many = (command.plan(Config(**sizes, mesh=mesh)) for mesh in ("1x1x1", "1x16x1"))
  assert many.params * 16 == one.params and many.gradients * 16 == one.gradients
  assert many.activations == one.activations  # a bin a device, as before
  assert many.logits * 16 == one.logits


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    (
      {"mesh": "1x1x5"},
      r"dimension 0 \('vocab', 64\) is not a multiple of mesh axis 'tensor' \(5\)",
    ),
    ({"mesh": "1x7x1"}, r"\('embed', 64\) is not a multiple of mesh axis 'fsdp' \(7\)"),
    ({"policy": "smollm"}, "did you mean"),
    ({"bin_tokens": 8}, "raise bin_tokens"),
  ],
)
def test_what_would_not_run_is_not_planned(changes, match):
  with pytest.raises(ValueError, match=match):
    command.plan(Config(**{"policy": "tiny", **changes}))


def test_an_update_is_predicted_within_fifteen_percent():
  """A small model whose activations, weights and logits all matter."""
  model, read = tiny(2048, num_layers=1, mlp_dim=512), 64
  policy, recipe, optimizer = decoder(model), grpo(), optax.adamw(1e-3)
  learn = make_learn(
    policy, recipe, optimizer, num_rows=ROWS, num_places=PLACES, num_prompts=1, bin_tokens=BIN,
    read_tokens=read,
  )  # fmt: skip
  params = jax.eval_shape(policy.init, jax.random.key(0))
  start = lambda p: (
    init_state(recipe, optimizer, p, table=plain_table(1), num_places=8, seed=0).learner
  )
  learner = jax.eval_shape(start, params)
  rows = jax.eval_shape(lambda: rows_lib.blank(ROWS, PLACES))
  packed = memory.packed_shapes(learn.sizes, ROWS, PLACES)
  prepared = jax.eval_shape(learn.parts["prepare"], learner, rows, jax.random.key(0))
  of = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype)
  tally = Tally(*[of(t, 1) for t in (jnp.float32, jnp.float32, jnp.int32, jnp.int32)])
  args = learner, {}, rows, packed, prepared, tally, of(jnp.int32), of(bool)
  used = learn.parts["update"].lower(*args).compile().memory_analysis()
  total = used.argument_size_in_bytes + used.temp_size_in_bytes
  bytes_of = memory.size(params)
  plan = memory.plan(
    policy, params=bytes_of, optimizer=memory.size(learner.opt_state), gradients=bytes_of,
    layout=learn.sizes, num_rows=ROWS, num_places=PLACES, prompts=4, prompt_places=32, slots=ROWS,
    rows_parts=1, entropy=False, read_tokens=read,
  )  # fmt: skip
  assert plan.learn == pytest.approx(total, rel=0.15)


def test_sampling_is_predicted_within_fifteen_percent():
  """With the slots' own cache grown to all places; the optimizer state, which waits, apart."""
  policy, slots, prompts, prompt_places = decoder(tiny(2048, num_layers=1)), 16, 8, 32
  params = jax.eval_shape(policy.init, jax.random.key(0))
  parts = engine.parts_of(policy)
  rows, eos = (
    jax.eval_shape(lambda: rows_lib.blank(ROWS, PLACES)),
    jax.ShapeDtypeStruct((1,), jnp.int32),
  )
  sizes = slots, PLACES, prompts, prompt_places
  kept, state = jax.eval_shape(lambda *args: parts.start(*args, *sizes), params, rows, eos)
  version = jax.ShapeDtypeStruct((), jnp.int32)
  lowered = parts.segment.lower(params, kept, state, version, eos, None, Stops())
  used = lowered.compile().memory_analysis()
  total = used.argument_size_in_bytes + used.temp_size_in_bytes
  plan = memory.plan(
    policy, params=memory.size(params), optimizer=0, gradients=0, layout=pack.layout(ROWS, PLACES),
    num_rows=ROWS, num_places=PLACES, prompts=prompts, prompt_places=prompt_places, slots=slots,
    rows_parts=1, entropy=False, read_tokens=64,
  )  # fmt: skip
  assert plan.decode == pytest.approx(total, rel=0.15)


def test_the_packed_shapes_are_those_of_the_packer():
  layout = pack.layout(ROWS, PLACES, bin_tokens=BIN)
  tokens, nothing = np.zeros((ROWS, PLACES), np.int32), np.zeros((ROWS, PLACES), bool)
  packed, _ = pack.pack(tokens, nothing, np.ones(ROWS), layout)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), packed)
  assert shapes == memory.packed_shapes(layout, ROWS, PLACES)
