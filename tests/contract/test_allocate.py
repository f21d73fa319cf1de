"""What every allocator must do: spend at most the budget, on prompts that are there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax import allocate as package
from rlvr_jax.core import groups
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Allocator, Belief, Prompts, Round
from tests import toy

# Modules export gains and laws too, which are arguments of allocators.
FACTORIES = [
  f
  for f in toy.factories(*toy.modules(package), variants={"proportional": [{"pair": True}]})
  if "topped_up" not in f.id and isinstance(f.values[0](), Allocator)
]
SPEND_ALL = ("uniform", "proportional", "neyman", "marginal", "confidence")
B = 4
KNOBS = {
  "prompt_bin": jnp.array([0, 1, 1, 2], jnp.int32),
  "arm_score": jnp.zeros((3, 11), jnp.float32),
  "bin_loss": jnp.array([1.0, 0.5, 0.0], jnp.float32),
  "bin_variance": jnp.array([0.0, 0.1, 0.2], jnp.float32),
  "rank": jnp.array([0.0, 0.25, 0.5, 0.75], jnp.float32),
  "rank_spread": jnp.float32(2.0),
}
flags = st.lists(st.booleans(), min_size=B, max_size=B)
scores = st.lists(st.sampled_from([0.0, 0.5, 2.0, float("nan")]), min_size=B, max_size=B)
rates = st.lists(st.floats(0, 1, width=16), min_size=B, max_size=B)
verdicts = st.lists(st.integers(0, 1), min_size=32, max_size=32)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("budget", [18, 21])
def test_allocations(factory, budget, request):
  allocator = factory()
  name = request.node.callspec.id.partition(".")[2].partition("(")[0]
  plan = allocator.plan(B, budget)
  assert all(type(width) is int and width > 0 for width in plan) and sum(plan) <= budget
  step = jax.jit(allocator.next, static_argnums=2)

  @given(flags, scores, rates, verdicts)
  def check(valid, score, mean, correct):
    i = jnp.arange(B, dtype=jnp.int32)
    rate = jnp.array(mean, jnp.float32)
    belief = Belief(mean=rate, variance=rate * (1 - rate) / 3, evidence=jnp.full(B, 2.0))
    prompts = Prompts(
      i, i[:, None], i + 1, i, jnp.array(score, jnp.float32), belief, jnp.array(valid)
    )
    rows = rows_lib.blank(sum(plan), 2)
    state, offset, spent = allocator.init(prompts, KNOBS), 0, 0
    for wave, width in enumerate(plan):
      round = Round(prompts, rows, jnp.asarray(wave, jnp.int32), jnp.zeros((), jnp.int32))
      counts, new = step(state, round, width, KNOBS)
      assert counts.shape == (B,) and counts.dtype == jnp.int32
      assert (counts >= 0).all() and int(counts.sum()) <= width
      assert not np.asarray(counts)[~np.array(valid)].any()
      assert toy.kinds(new) == toy.kinds(state)
      # The rows of this wave come back with their verdicts.
      group, there = groups.expand(counts, width)
      drawn = rows_lib.blank(width, 2).replace(
        group=group, valid=there, correct=jnp.array(correct[:width], jnp.float32)
      )
      rows, state = rows_lib.write(rows, drawn, offset), new
      offset, spent = offset + width, spent + int(counts.sum())
    if name in SPEND_ALL:
      assert spent == (sum(plan) if any(valid) else 0)

  check()
