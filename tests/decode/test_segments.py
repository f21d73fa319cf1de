"""Segments: slots that shrink with the work and cache places that grow with the rows change nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import KILLED, LENGTH, OPEN, Spans
from rlvr_jax.decode import decode as engine
from rlvr_jax.decode.stops import Stops
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train.metrics import CompileCounter
from tests import toy

N, P, T = 40, 6, 90  # rows outgrow the 64 places that a cache begins with
POLICY = decoder(tiny(32, num_layers=1, embed_dim=32, mlp_dim=64))
LIMITS = np.concatenate([np.arange(1, 36), [40, 45, 50, 60, 80]]).astype(np.int32)


def _run(params, slots):
  group = jnp.arange(N, dtype=jnp.int32) % 4
  prompts = jnp.asarray(np.random.default_rng(0).integers(0, 32, (4, P)), jnp.int32)
  rows = rows_lib.fresh(
    prompts,
    jnp.asarray([3, 4, 5, 6], jnp.int32),
    group=group,
    valid=jnp.ones(N, bool),
    uid=keys.row_uids(jax.random.key(0), 0, group, jnp.arange(N)),
    num_places=T,
    max_new_tokens=jnp.asarray(LIMITS),
    temperature=1.0,
  )
  return engine.decode(
    POLICY, params, rows, version=0, eos_ids=[-1], slots=slots, num_contexts=4, prompt_places=P
  )


def test_shrinking_and_growing_change_no_token_and_no_log_prob():
  params = POLICY.init(jax.random.key(1))
  rows, counts = _run(params, N)
  few, few_counts = _run(params, 5)
  np.testing.assert_array_equal(rows.tokens, few.tokens)
  np.testing.assert_array_equal(rows.length - rows.response_start, LIMITS)
  assert (rows.status == LENGTH).all()
  # Forty slots until ten rows are left, which fit the smallest size: 16.
  ticks = int(counts.ticks)
  assert ticks == LIMITS.max()
  wide = np.sort(LIMITS)[N - 16 - 1]  # ticks until 16 rows are left
  assert int(counts.slot_ticks) == N * wide + 16 * (ticks - wide)
  assert int(few_counts.slot_ticks) == 5 * int(few_counts.ticks)

  position = jnp.broadcast_to(jnp.arange(T)[None], (N, T))
  inside = position < rows.length[:, None]
  hidden, _ = POLICY.hidden(params, rows.tokens, position, inside, Spans(jnp.full((N, T), T)))
  z = jax.nn.log_softmax(POLICY.logits(params, hidden)[:, :-1])
  plain = jnp.take_along_axis(z, rows.tokens[:, 1:, None], 2)[..., 0]
  plain = jnp.where(rows.response_mask[:, 1:], plain, 0.0)
  np.testing.assert_allclose(rows.full_logprobs[:, 1:], plain, atol=1e-5)


def test_what_was_needed_once_is_not_compiled_again():
  old, new = POLICY.init(jax.random.key(2)), POLICY.init(jax.random.key(3))
  _run(old, N)
  with CompileCounter() as compiled:
    rows, _ = _run(new, N)
  assert compiled.count == 0
  assert int(rows.response_mask.sum()) == LIMITS.sum()


@pytest.mark.parametrize(("used", "blocks"), [(1, 1), (17, 2), (40, 3)])
def test_prompts_without_rows_are_not_run(used, blocks):
  """Of forty prompts, sixteen at a time: as many blocks as hold those that have rows, wherever they are."""
  table = toy.table_policy(4, 8)
  passes = []

  def hidden(params, tokens, *args):
    jax.debug.callback(lambda: passes.append(tokens.shape))
    return table.hidden(params, tokens, *args)

  policy = table._replace(hidden=hidden)
  context = np.random.default_rng(0).permutation(N)
  rows = toy.rows(tokens=[[1] * 8] * N, prompt=2)
  rows = rows.replace(
    context=jnp.asarray(context, jnp.int32),
    status=jnp.asarray(np.where(context < used, OPEN, KILLED), jnp.int32),
    length=jnp.full(N, 2, jnp.int32),
  )
  params, eos = table.init(jax.random.key(0)), jnp.asarray([-1], jnp.int32)
  out = engine.parts_of(policy).start(params, rows, eos, 4, 8, N, 2)
  jax.effects_barrier()
  assert passes == [(16, 2)] * blocks
  np.testing.assert_array_equal(out[1].counts.prefilled, np.where(context < used, 2, 0))


def _bytes(tree):
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


@pytest.mark.parametrize(("rows", "dtype"), [(32, "float32"), (256, "float32"), (256, "int8")])
def test_one_cache_is_alive_and_queued_rows_have_none(rows, dtype):
  """The compiled segment updates the slots' cache in place, and holds each prompt once."""
  slots, places, prompts, prompt_places = 32, 128, 8, 64
  config = tiny(32, num_layers=2, embed_dim=32, mlp_dim=64, cache_dtype=dtype)
  policy = decoder(config)
  parts = engine.parts_of(policy)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  queue = jax.eval_shape(lambda: rows_lib.blank(rows, 80))
  eos = jax.ShapeDtypeStruct((1,), jnp.int32)
  sizes = slots, places, prompts, prompt_places
  kept, state = jax.eval_shape(lambda p, r, e: parts.start(p, r, e, *sizes), params, queue, eos)
  a_token = 2 * config.num_layers * config.num_kv_heads  # of keys and values, in heads
  a_token *= config.head_dim * 4 if dtype == "float32" else config.head_dim + 4
  assert _bytes(state.cache) == a_token * slots * places
  assert _bytes(kept) == a_token * prompts * prompt_places
  version = jax.ShapeDtypeStruct((), jnp.int32)
  lowered = parts.segment.lower(params, kept, state, version, eos, None, Stops())
  memory = lowered.compile().memory_analysis()
  assert memory.alias_size_in_bytes >= _bytes(state.cache)
  # Beside it: a layer's work at most, never a second cache.
  assert memory.temp_size_in_bytes < _bytes(state.cache) / 2 or dtype == "int8"
