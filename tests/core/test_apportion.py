"""Budgets in whole numbers, against enumeration of every way to spend them."""

import itertools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import apportion

B, MOST = 4, 6
remainder = jax.jit(apportion.largest_remainder)
greedy = jax.jit(apportion.greedy)
priced = jax.jit(apportion.priced)
neyman = jax.jit(apportion.neyman, static_argnames="span")

whole = lambda low, high: st.lists(st.integers(low, high), min_size=B, max_size=B)
shares = st.lists(st.sampled_from([0, 0.1, 0.2, 0.25, 0.5, 1, 3, 7.5]), min_size=B, max_size=B)


def splits(total, low, high):
  """Every split of the total, or of what the bounds make of it."""
  total = min(max(total, sum(low)), sum(high))
  ranges = [range(a, b + 1) for a, b in zip(low, high)]
  return [n for n in itertools.product(*ranges) if sum(n) == total]


def hamilton(share, total):
  """Largest remainders without bounds, in exact arithmetic."""
  share = [Fraction(s).limit_denominator(1000) for s in share]
  if not sum(share):
    share = [Fraction(1)] * len(share)
  exact = [total * s / sum(share) for s in share]
  counts = [int(x) for x in exact]
  order = sorted(range(len(share)), key=lambda b: (counts[b] - exact[b], b))
  for b in order[: total - sum(counts)]:
    counts[b] += 1
  return counts


def array(x, dtype=jnp.float32):
  return jnp.asarray(x, dtype)


@given(shares, st.integers(0, 40))
def test_largest_remainders_without_bounds(share, total):
  np.testing.assert_array_equal(remainder(array(share), total), hamilton(share, total))


@given(shares, st.integers(0, 30), whole(0, 3), whole(0, MOST))
def test_largest_remainders_within_bounds(share, total, low, more):
  high = [a + b for a, b in zip(low, more)]
  counts = remainder(array(share), total, low=array(low, jnp.int32), high=array(high, jnp.int32))
  counts = counts.tolist()
  assert sum(counts) == min(max(total, sum(low)), sum(high))
  assert all(a <= n <= b for a, n, b in zip(low, counts, high))
  # Of two that are not cut off, the larger share is not behind; beyond rounding, who is behind is cut off.
  inside = [b for b in range(B) if low[b] < counts[b] < high[b] and share[b] > 0]
  for a, b in itertools.permutations(inside, 2):
    more_a, more_b = counts[a] - low[a], counts[b] - low[b]
    assert (more_a - 1) / share[a] < (more_b + 1) / share[b] + 1e-3


def test_published_quotas():
  """CurES, arXiv 2510.01037: deviations to rollouts."""
  quotas = lambda s, total: remainder(array(s), total).tolist()
  assert quotas([0, 0.805741, 0.567891, 0], 32) == [0, 19, 13, 0]
  assert quotas([0, 0.433013, 0.5, 0], 32) == [0, 15, 17, 0]
  assert quotas([0.1, 0.2, 0.3, 0.4], 6) == [1, 1, 2, 2]
  assert quotas([0.1, 0.2, 0.3, 0.4], 5) == [1, 1, 1, 2]


def test_bad_shares():
  nan, inf = float("nan"), float("inf")
  assert remainder(array([0, 0, 0, 0]), 6).tolist() == [2, 2, 1, 1]
  assert remainder(array([nan, 1, 3, -5]), 8).tolist() == [0, 2, 6, 0]
  assert remainder(array([inf, 1, 1, 0]), 4).tolist() == [0, 2, 2, 0]
  assert remainder(array([nan] * 4), 4).tolist() == [1, 1, 1, 1]
  # What has no share comes last, but it comes.
  high = array([2, 2, 9, 9], jnp.int32)
  assert remainder(array([1, 3, 0, 0]), 10, high=high).tolist() == [2, 2, 3, 3]
  # Maxima below the budget, minima above it.
  assert remainder(array([1, 2, 3, 4]), 99, high=array([1, 2, 3, 4], jnp.int32)).sum() == 10
  assert remainder(array([1, 2, 3, 4]), 3, low=array([2, 2, 2, 2], jnp.int32)).tolist() == [2] * 4


def test_even():
  out = apportion.even(jnp.array([True, False, True, True]), 8)
  assert out.tolist() == [3, 0, 3, 2] and out.dtype == jnp.int32
  assert apportion.even(jnp.zeros(3, bool), 8).tolist() == [0, 0, 0]


falling = st.lists(
  st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.5, 4.0]), min_size=MOST, max_size=MOST),
  min_size=B,
  max_size=B,
).map(lambda rows: [sorted(row, reverse=True) for row in rows])


@given(falling, st.integers(0, 20), whole(0, 2), whole(0, MOST))
def test_greedy_is_the_best_of_all_splits(gains, total, low, more):
  high = [a + b for a, b in zip(low, more)]
  counts = greedy(array(gains), total, low=array(low, jnp.int32), high=array(high, jnp.int32))
  counts = tuple(counts.tolist())
  value = lambda n: sum(sum(gains[b][: n[b] - low[b]]) for b in range(B))
  every = splits(total, low, high)
  assert counts in every
  assert value(counts) == max(map(value, every))


def test_units_that_bring_nothing_are_dealt_evenly():
  nothing = jnp.full((B, MOST), -jnp.inf)
  assert greedy(nothing, 6).tolist() == [2, 2, 1, 1]
  assert greedy(jnp.full((B, MOST), jnp.nan), 6).tolist() == [2, 2, 1, 1]
  assert greedy(nothing.at[2].set(jnp.nan), 99).tolist() == [MOST] * 4


@given(
  st.lists(st.sampled_from([0, 0.1, 0.3, 0.5, 2.0]), min_size=B, max_size=B), st.integers(4, 20)
)
def test_neyman_has_the_least_variance_of_all_splits(deviation, total):
  counts = tuple(neyman(array(deviation), total, low=1, span=20).tolist())
  error = lambda n: sum(s * s / k for s, k in zip(deviation, n))
  every = splits(total, [1] * B, [20] * B)
  assert counts in every
  assert error(counts) <= min(map(error, every)) * (1 + 1e-5) + 1e-12


def test_neyman_from_nothing_serves_everybody_first():
  assert neyman(array([5, 0, 0.1, 0.1]), 3, low=0, span=20).tolist() == [1, 0, 1, 1]
  assert neyman(array([0.3, 0.1, 0, 0]), 40, low=0, span=40).tolist() == [30, 10, 0, 0]


@given(
  falling,
  st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=B, max_size=B),
  st.integers(0, 30),
  st.integers(0, 12),
)
def test_priced_is_within_a_unit_of_the_best(gains, cost, budget, total):
  counts, price = priced(array(gains), array(cost), float(budget), total, high=MOST)
  counts, price = counts.tolist(), float(price)
  spend = lambda n: sum(c * k for c, k in zip(cost, n))
  value = lambda n: sum(sum(gains[b][: n[b]]) for b in range(B))
  assert spend(counts) <= budget and sum(counts) <= total
  for b in range(B):
    # Everything taken is worth its price, everything left is not worth more.
    assert all(g >= price * cost[b] - 1e-5 for g in gains[b][: counts[b]])
    assert all(g <= price * cost[b] + 1e-5 for g in gains[b][counts[b] :])
  # Weak duality: no affordable split beats what was spent, and the rest of the budget at this price.
  if sum(counts) < total:
    bound = value(counts) + price * (budget - spend(counts))
    for n in itertools.product(range(0, MOST + 1, 3), repeat=B):
      assert spend(n) > budget or sum(n) > total or value(n) <= bound + 1e-4


def test_priced_ignores_what_has_no_cost_or_no_gain():
  gains = jnp.broadcast_to(array([4.0, 2.0, 1.0])[None], (B, 3))
  cost = array([jnp.nan, 0.0, 2.0, 1.0])
  counts, price = priced(gains, cost, 100.0, 50)
  assert counts.tolist() == [0, 0, 3, 3] and float(price) == 0
  counts, price = priced(gains, cost, 3.0, 50)
  assert counts.tolist() == [0, 0, 1, 1] and float(price) == pytest.approx(2.0)
  assert priced(jnp.zeros((B, 3)), cost, 9.0, 9)[0].tolist() == [0] * 4
