"""What every replay must do: leave generated rows alone, keep its types, count what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import replay as package
from rlvr_jax.core.types import OPEN, plain_table
from tests import toy

FACTORIES = toy.factories(*toy.modules(package))


@pytest.mark.parametrize("factory", FACTORIES)
def test_replays(factory):
  replay = factory()
  rows = toy.random_rows(0)
  rows = rows.replace(prompt_id=rows.group, context=rows.group)
  state = replay.init(plain_table(4), rows.tokens.shape[1])
  assert replay.room >= 0
  merge, add, resume = (f and jax.jit(f) for f in (replay.merge, replay.add, replay.resume))
  for step in range(3):
    if replay.held is not None:
      held = replay.held(state)
      assert held.shape == (4,) and held.dtype in (bool, jnp.int32)
    if resume is not None:
      seeds = rows.replace(
        length=rows.response_start,
        status=jnp.full(8, OPEN, jnp.int32),
        response_mask=jnp.zeros_like(rows.response_mask),
      )
      grown, reused = resume(state, seeds)
      assert toy.kinds(grown) == toy.kinds(seeds) and reused.shape == (8,)
      np.testing.assert_array_equal(reused, grown.response_mask.sum(1))
      assert not reused[~rows.valid].any()
    merged = rows
    if merge is not None:
      merged, reused = merge(state, rows, jax.random.key(step), jnp.int32(step))
      assert toy.kinds(merged) == toy.kinds(rows) and reused.dtype == jnp.int32
      old, new = np.flatnonzero(rows.valid), np.asarray(merged.valid & ~rows.valid)
      jax.tree.map(np.testing.assert_array_equal, toy.take(rows, old), toy.take(merged, old))
      np.testing.assert_array_equal(reused, np.where(new, merged.response_mask.sum(1), 0))
    if add is not None:
      kept, banked = add(state, merged, merged.valid, jnp.int32(step))
      assert toy.kinds(kept) == toy.kinds(state)
      assert banked.dtype == bool and not (banked & ~merged.valid).any()
      state = kept
