"""Segments: slots that shrink with the work and cache places that grow with the rows change nothing."""

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import LENGTH, Spans
from rlvr_jax.decode import decode as engine
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train.metrics import CompileCounter

N, P, T = 40, 6, 280  # one row outgrows the 256 places that a cache begins with
POLICY = decoder(tiny(32, num_layers=1, embed_dim=32, mlp_dim=64))
LIMITS = np.concatenate([np.arange(1, 36), [60, 80, 100, 200, 270]]).astype(np.int32)


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
