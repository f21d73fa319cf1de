"""What every way of selecting prompts must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax import select as package
from rlvr_jax.core.types import Belief, Candidates
from tests import toy

FREE = {"epochs": False, "explore": 0.5}
FACTORIES = toy.factories(
  *toy.modules(package), variants={"top_k": [FREE], "gumbel_top_k": [FREE], "band": [FREE]}
)
KNOBS = {"source_weights": jnp.array([1.0, 0.5])}
C = 8
flags = st.lists(st.booleans(), min_size=C, max_size=C)
number = st.floats(0, 4, width=16) | st.sampled_from([np.nan, -np.inf])
scores = st.lists(number, min_size=C, max_size=C)


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("num", [1, 5])
def test_selections(factory, num):
  select = jax.jit(factory(), static_argnums=2)
  epochs = factory.keywords.get("epochs", True)

  @given(scores, flags, flags, st.integers(0, 99))
  def check(score, taken, visited, seed):
    candidates = Candidates(
      id=jnp.arange(C, dtype=jnp.int32) + 20,
      score=jnp.array(score, jnp.float32),
      source=jnp.arange(C, dtype=jnp.int32) % 2,
      belief=Belief(jnp.array(score, jnp.float32) / 4, jnp.zeros(C), jnp.ones(C)),
      taken=jnp.array(taken),
      visited=jnp.array(visited),
    )
    key = jax.random.key(seed)
    out = select(key, candidates, num, KNOBS)
    assert out.index.shape == out.valid.shape == (num,) and out.consumed.shape == (C,)
    assert out.index.dtype == jnp.int32 and out.valid.dtype == out.consumed.dtype == bool
    assert ((out.index >= 0) & (out.index < C)).all()  # an index, not an id
    chosen = np.asarray(out.index)[np.asarray(out.valid)].tolist()
    assert len(chosen) == len(set(chosen))
    closed = [a or (b and epochs) for a, b in zip(taken, visited)]
    assert not any(closed[i] for i in chosen)
    consumed = set(np.flatnonzero(out.consumed).tolist())
    assert set(chosen) <= consumed if epochs else not consumed
    assert not any(closed[i] for i in consumed)
    if len(chosen) < num:  # nothing that could be drawn, or passed over, is left
      assert {i for i in range(C) if not closed[i]} <= consumed | set(chosen)
    assert (
      not np.diff(out.valid.astype(int)).max(initial=-1) > 0
    )  # places without a prompt come last
    jax.tree.map(np.testing.assert_array_equal, out, select(key, candidates, num, KNOBS))

  check()
