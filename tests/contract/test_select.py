"""What every way of selecting prompts must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax import select as package
from rlvr_jax.core.types import Candidates
from tests import toy

FACTORIES = toy.factories(*toy.modules(package))
C = 8
flags = st.lists(st.booleans(), min_size=C, max_size=C)
scores = st.lists(st.floats(0, 4, width=16), min_size=C, max_size=C)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("num", [1, 5])
def test_selections(factory, num):
  select = jax.jit(factory(), static_argnums=2)

  @given(scores, flags, flags, st.integers(0, 99))
  def check(score, taken, visited, seed):
    candidates = Candidates(
      id=jnp.arange(C, dtype=jnp.int32) + 20,
      score=jnp.array(score, jnp.float32),
      source=jnp.zeros(C, jnp.int32),
      taken=jnp.array(taken),
      visited=jnp.array(visited),
    )
    key = jax.random.key(seed)
    out = select(key, candidates, num, {})
    assert out.index.shape == out.valid.shape == (num,) and out.consumed.shape == (C,)
    assert out.index.dtype == jnp.int32 and out.valid.dtype == out.consumed.dtype == bool
    assert ((out.index >= 0) & (out.index < C)).all()  # an index, not an id
    chosen = np.asarray(out.index)[np.asarray(out.valid)].tolist()
    assert len(chosen) == len(set(chosen))
    assert not any(taken[i] or visited[i] for i in chosen)
    consumed = set(np.flatnonzero(out.consumed).tolist())
    assert set(chosen) <= consumed
    assert not any(taken[i] or visited[i] for i in consumed)
    assert len(chosen) <= num
    if len(chosen) < num:  # nothing that could be drawn, or passed over, is left
      left = {i for i in range(C) if not (taken[i] or visited[i])}
      assert left <= consumed
    jax.tree.map(np.testing.assert_array_equal, out, select(key, candidates, num, {}))

  check()
