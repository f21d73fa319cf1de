import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.allocate.uniform import uniform
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Belief, Prompts, Round

B = 5
ALLOCATOR = uniform()


def a_round(valid):
  i, x = jnp.zeros(B, jnp.int32), jnp.zeros(B)
  prompts = Prompts(i, i[:, None], i, i, x, Belief(x, x, x), jnp.array(valid))
  return Round(prompts, rows_lib.blank(3, 2), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))


def counts(valid, budget):
  round = a_round(valid)
  (width,) = ALLOCATOR.plan(B, budget)
  state = ALLOCATOR.init(round.prompts, {})
  return ALLOCATOR.next(state, round, width, {})[0]


@given(st.lists(st.booleans(), min_size=B, max_size=B), st.integers(1, 23))
def test_deals_the_budget_like_cards(valid, budget):
  hands = [0] * B
  players = [b for b in range(B) if valid[b]]
  for card in range(budget if players else 0):
    hands[players[card % len(players)]] += 1
  out = counts(valid, budget)
  np.testing.assert_array_equal(out, hands)
  assert out.dtype == jnp.int32


def test_by_hand():
  np.testing.assert_array_equal(counts([True] * B, 40), [8] * 5)
  np.testing.assert_array_equal(counts([True, False, True, True, False], 8), [3, 0, 3, 2, 0])
  np.testing.assert_array_equal(counts([True] * B, 3), [1, 1, 1, 0, 0])


def test_under_jit():
  f = jax.jit(lambda round: ALLOCATOR.next((), round, 7, {})[0])
  np.testing.assert_array_equal(f(a_round([False, True, True, False, False])), [0, 4, 3, 0, 0])
