"""Rows by rank and by bin: published examples, and every choice of arms by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.allocate import bins, ranked
from tests.allocate.rounds import a_round, counts

split = jax.jit(ranked.split, static_argnums=5)
choose = jax.jit(bins.choose_arms, static_argnums=4)


def by_rank(rank, width, least, most, cap=True):
  # Six places: the last ones are not there, so that all examples are one compilation.
  valid = jnp.arange(6) < len(rank)
  rank = jnp.array(rank + [0.0] * (6 - len(rank)), jnp.float32)
  return split(rank, valid, width, least, most, cap)[: valid.sum()].tolist()


def test_ranks_as_published():
  """E3-RL4LLMs, arXiv 2505.18573."""
  for cap in (True, False):
    assert by_rank([0, 0.2, 0.4, 0.6, 0.8], 40, 4, 12, cap) == [4, 5, 7, 12, 12]
  assert by_rank([0.05, 0.1, 0.15, 0.7], 32, 4, 12) == [4, 5, 11, 12]
  assert by_rank([0.05, 0.1, 0.15, 0.7], 32, 4, 12, cap=False) == [4, 5, 8, 15]
  assert by_rank([0] * 5, 40, 8, 8) == [8] * 5
  assert by_rank([0] * 3, 24, 4, 12) == [12, 8, 4]


def test_ranks_of_a_round():
  allocator = ranked.ranked(low=4, high=12)
  rank = jnp.array([0.6, 0.9, 0, 0.2, 0.4, 0.8])
  knobs = {"rank": rank, "rank_spread": jnp.float32(6)}
  round = a_round([0.5] * 3)
  assert counts(allocator, round, 24) == [8, 8, 8]
  assert counts(allocator, round, 24, knobs | {"rank_spread": jnp.float32(0)}) == [8, 8, 8]
  # 4 + 12 * 0.4 and 4 + 12 * 0.6, rounded down; the rest goes to the hardest.
  assert counts(allocator, round, 24, knobs) == [8, 12, 4]
  gone = a_round([0.5] * 3, valid=[True, False, True])
  assert counts(allocator, gone, 24, knobs) == [12, 0, 12]


def test_arms_as_published():
  """GDRO, arXiv 2601.19280."""
  scores = jnp.array([[0, 0.2, 0.5, 0.1, 0], [0.3, 0.1, 0, 0, 0.2], [0, 0, 0.1, 0.4, 0.9]])
  per_bin, arms = jnp.array([2, 4, 2]), jnp.arange(2, 7)
  value = bins.bandit()({"arm_score": scores}, per_bin, arms, 4.0)
  chosen = choose(value, per_bin, arms, 32, 32)
  assert arms[chosen].tolist() == [4, 3, 6]
  assert float(value[jnp.arange(3), chosen].sum()) == pytest.approx(-4.259151, abs=2e-5)
  arms, v = jnp.arange(2, 13), jnp.array([0.04, 0.01, 0.25])
  value = bins.square_root()({"bin_variance": v}, per_bin, arms, 4.0)
  np.testing.assert_allclose(arms[value.argmax(1)], [4, 2, 9])  # nearest to 3.556, 1.778, 8.889
  assert arms[choose(value, per_bin, arms, 32, 32)].tolist() == [3, 2, 9]


def test_arms_by_the_weights_of_an_adversary():
  """The weights of GDRO's published example, as rows: q over its mean, times the mean."""
  loss, per_bin = jnp.array([0.248, 0.04, 2.0, 0.0]), jnp.array([2, 1, 1, 0])
  w = bins.weights(loss, per_bin > 0, eta=0.65, gamma=0.01)
  np.testing.assert_allclose(w, [0.201470, 0.176414, 0.622117, 0], atol=1e-6)
  arms = jnp.arange(2, 25)
  value = bins.exponential()({"bin_loss": loss}, per_bin, arms, 8.0)
  # 8 times 0.670744, 0.587326 and 2.071186 of the four rows' weights.
  assert arms[value[:3].argmax(1)].tolist() == [5, 5, 17]
  assert arms[choose(value, per_bin, arms, 32, 32)][:3].tolist() == [5, 5, 17]
  even = bins.exponential(eta=0.0)({"bin_loss": loss}, per_bin, arms, 8.0)
  assert arms[choose(even, per_bin, arms, 32, 32)][:3].tolist() == [8, 8, 8]


def test_arms_are_the_best_of_all_choices():
  rng = np.random.default_rng(0)
  arms = np.arange(2, 7)
  for _ in range(60):
    per_bin, total = rng.integers(0, 4, 3), int(rng.integers(12, 33))
    value = rng.normal(size=(3, 5))
    chosen = np.asarray(choose(jnp.array(value), jnp.array(per_bin), jnp.array(arms), total, 40))
    rows = lambda c: int((per_bin * arms[list(c)]).sum())  # noqa: B023
    worth = lambda c: sum(value[b, c[b]] for b in range(3) if per_bin[b])  # noqa: B023
    every = [c for c in itertools.product(range(5), repeat=3) if rows(c) <= total]
    if not every:
      continue
    most = max(map(rows, every))
    assert rows(chosen) == most
    assert worth(chosen) == pytest.approx(max(worth(c) for c in every if rows(c) == most), abs=1e-5)


def test_rows_of_a_bin_are_equal_and_spend_the_budget():
  allocator = bins.binned(low=2, high=12, law=bins.bandit())
  knobs = {
    "prompt_bin": jnp.array([0, 1, 1, 2, 0, 0]),
    "arm_score": jnp.zeros((3, 11)),
    "bin_loss": jnp.zeros(3),
    "bin_variance": jnp.zeros(3),
  }
  round = a_round([0.5] * 4)
  assert counts(allocator, round, 16, knobs) == [4, 4, 4, 4]  # nothing known: the mean
  assert counts(bins.binned(), round, 16, knobs) == [4, 4, 4, 4]
  tilted = knobs | {"arm_score": knobs["arm_score"].at[0, 6].set(9.0)}
  out = counts(allocator, round, 16, tilted)
  assert sum(out) == 16 and out[1] == out[2] and out[0] == 8
  assert counts(allocator, a_round([0.5] * 4, valid=[True] + [False] * 3), 16, knobs) == [
    12,
    0,
    0,
    0,
  ]
  assert counts(allocator, a_round([0.5] * 4, valid=[False] * 4), 16, knobs) == [0] * 4


def test_errors():
  for budget in (7, 49):
    with pytest.raises(ValueError, match="is not between 2 and 12 for each of 4"):
      bins.binned().plan(4, budget)
  with pytest.raises(ValueError, match="no knob 'prompt_bin'"):
    counts(bins.binned(), a_round([0.5]), 4)
  for build in (
    lambda: bins.bandit(eta=-1),
    lambda: bins.exponential(gamma=2),
    lambda: bins.binned(low=5, high=4),
    lambda: ranked.ranked(low=0),
  ):
    with pytest.raises(ValueError):
      build()
