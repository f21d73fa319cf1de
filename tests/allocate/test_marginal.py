"""Shares and marginal gains: published examples, and the best of all splits by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.allocate import marginal, proportional
from rlvr_jax.recipes import coba_rl
from tests.allocate.rounds import a_round, counts

RATES = [0.1, 0.3, 0.5, 0.7, 0.9, 0.0, 1.0]  # CoBA-RL, arXiv 2602.03048
OPTIONS = dict(alpha_min=1.5, alpha_max=9.5, slope=8.0, gamma=10.0)


def shaped(failure):
  return float(coba_rl.shape(jnp.float32(failure), **OPTIONS))


def coba(failure, *, low=2, high=16):
  """The allocator of the recipe, and the knobs that make its mean failure rate `failure`."""
  allocate = coba_rl.coba_rl(low=low, high=high).allocate
  many = 1e6  # so many steps that the current one does not count
  knobs = {"failure_sum": jnp.float32(failure * many), "failure_steps": jnp.float32(many)}
  return allocate, knobs


def test_published_value_and_split():
  assert shaped(0.3) == pytest.approx(2.4536, abs=1e-4)
  assert shaped(0.7) == pytest.approx(7.1, abs=1e-4)
  density = lambda a: np.exp(coba_rl.log_density(jnp.array(RATES), jnp.float32(a), 11 - a))
  p = np.array(RATES)
  value = (1 - np.exp(-8 * p * (1 - p) / 4)) * density(shaped(0.3))
  np.testing.assert_allclose(value, [0.4773, 0.7364, 0.1401, 0.0042, 0, 0, 0], atol=6e-5)
  value = (1 - np.exp(-8 * p * (1 - p) / 4)) * density(7.1)
  np.testing.assert_allclose(value, [0.0001, 0.0621, 0.6056, 0.9344, 0.0859, 0, 0], atol=6e-5)
  for failure, expected in ((0.3, [16, 16, 16, 2, 2, 2, 2]), (0.7, [2, 3, 16, 16, 15, 2, 2])):
    allocate, knobs = coba(failure)
    assert counts(allocate, a_round(RATES), 56, knobs) == expected


def test_the_shape_rises_and_has_no_jump():
  alphas = [shaped(f) for f in np.linspace(0, 1, 101)]
  assert (np.diff(alphas) > 0).all()
  assert shaped(0.5) == pytest.approx(shaped(0.500001), abs=1e-4)


def test_no_row_moved_to_another_prompt_gains():
  rng = np.random.default_rng(0)
  allocate, knobs = coba(0.4, low=1, high=12)
  step = jax.jit(lambda round: allocate.next((), round, 20, knobs)[0])
  a = shaped(0.4)
  for _ in range(20):
    p = rng.random(5).round(2)
    n = np.asarray(step(a_round(p)))
    assert n.sum() == 20 and (n >= 1).all() and (n <= 12).all()
    density = np.exp(
      np.asarray(coba_rl.log_density(jnp.array(p, jnp.float32), jnp.float32(a), 11 - a)),
      dtype=float,
    )
    value = lambda n, p=p, d=density: ((1 - np.exp(-n * p * (1 - p) / 4)) * d).sum()
    for i, j in itertools.permutations(range(5), 2):
      if n[i] > 1 and n[j] < 12:
        moved = n.copy()
        moved[i], moved[j] = moved[i] - 1, moved[j] + 1
        assert value(moved) <= value(n) + 1e-6


def test_prompts_without_gain_share_what_is_left():
  """All solved, all hopeless: even. One of either: only what the others do not take."""
  allocate, knobs = coba(0.5, low=1, high=8)
  assert counts(allocate, a_round([0, 1, 0, 1]), 10, knobs) == [3, 3, 2, 2]
  assert counts(allocate, a_round([0, 0.5, 1, float("nan")]), 13, knobs) == [2, 8, 2, 1]
  with pytest.raises(ValueError, match="a budget of 3 rows is less than 1 for each of 4 prompts"):
    allocate.plan(4, 3)
  assert allocate.plan(4, 99) == (32,)  # the maxima leave the rest
  allocate, knobs = coba(0.5, low=4, high=4)
  assert counts(allocate, a_round([0.2, 0.5, 0.9]), 12, knobs) == [4, 4, 4]


def test_equal_prompts_get_equal_rows_and_no_rank_is_lost_to_rounding():
  allocate = marginal.marginal(gain=marginal.saturating(tau=1e6), low=2)
  assert counts(allocate, a_round([0.5] * 4), 18) == [5, 5, 4, 4]
  # 1 - exp(-n k) is 1 in float32; of exp(-125 n) and exp(-23.75 m) the larger one still goes first.
  allocate = marginal.marginal(gain=marginal.saturating(tau=0.002), low=2, high=60)
  assert counts(allocate, a_round([0.5, 0.05]), 64) == [11, 53]


def test_proportional_by_hand():
  """Deviations 0.3, 0.5 and 0.4 at 0.1, 0.5 and 0.8."""
  allocate = proportional.proportional(low=0)
  assert counts(allocate, a_round([0.1, 0.5, 0.8]), 24) == [6, 10, 8]
  assert counts(allocate, a_round([0.1, 0.5, 0.8], valid=[True, False, True]), 7) == [3, 0, 4]
  assert counts(proportional.proportional(low=2, high=9), a_round([0, 0.5, 1]), 14) == [3, 9, 2]
  assert counts(allocate, a_round([0, 1, 1]), 8) == [3, 3, 2]
  score = proportional.proportional(share=proportional.score, low=1)
  assert counts(score, a_round([0.5] * 3, score=[float("nan"), 1, 3]), 7) == [1, 2, 4]
  assert counts(score, a_round([0.5] * 3, score=[0, 0, 0]), 7) == [3, 2, 2]


def test_lone_rows_are_paired_as_published():
  """CurES, arXiv 2510.01037."""
  share = jnp.array([0.1, 0.2, 0.3, 0.4])
  pair = lambda n: proportional.pair_up(jnp.array(n, jnp.int32), share).tolist()
  assert pair([1, 1, 2, 2]) == [0, 2, 2, 2]
  assert pair([1, 1, 1, 2]) == [0, 0, 2, 3]
  assert pair([0, 2, 3, 4]) == [0, 2, 3, 4]
  assert pair([0, 0, 0, 0]) == [0, 0, 0, 0]
  rng = np.random.default_rng(0)
  for _ in range(30):
    n = rng.integers(0, 4, 4)
    out = np.array(pair(n))
    assert out.sum() == n.sum() and (1 not in out or n.sum() == 1)


def test_neyman_beats_every_other_split():
  p = np.array([0.5, 0.1, 0.02])
  n = np.array(counts(proportional.neyman(low=2), a_round(p), 20))
  error = lambda n: (p * (1 - p) / n).sum()
  every = [m for m in itertools.product(range(2, 17), repeat=3) if sum(m) == 20]
  assert n.sum() == 20 and error(n) == pytest.approx(min(error(np.array(m)) for m in every))
  # Two prompts and 40 rows: as sqrt(p (1 - p)) to within one row.
  n = counts(proportional.neyman(low=1), a_round([0.5, 0.1]), 40)
  assert abs(n[0] - 25) <= 1 and sum(n) == 40


def test_priced_spends_the_tokens_of_an_even_split():
  allocate = marginal.priced(low=1)
  equal = counts(allocate, a_round([0.5, 0.3, 0.5], tokens=[10, 10, 10]), 12)
  assert equal == counts(marginal.marginal(low=1), a_round([0.5, 0.3, 0.5]), 12)
  assert counts(allocate, a_round([0.5, 0.3, 0.5]), 12) == equal  # nothing known of tokens
  cost = np.array([30, 10, 10])
  n = np.array(counts(allocate, a_round([0.5, 0.5, 0.5], tokens=cost), 12))
  assert (n * cost).sum() <= 12 * cost.mean() and n.sum() <= 12
  assert n[0] < n[1] and abs(n[1] - n[2]) <= 1
  # Prompts that gain nothing are not drawn beyond the least.
  assert counts(allocate, a_round([0, 1, 0], tokens=cost), 12) == [1, 1, 1]
  assert sum(counts(allocate, a_round([0.5] * 3, tokens=[float("nan"), 0, 10]), 12)) == 12


def test_errors():
  for build in (
    lambda: marginal.marginal(low=-1),
    lambda: marginal.priced(low=4, high=3),
    lambda: marginal.saturating(tau=0),
    lambda: proportional.neyman(low=3, high=2),
  ):
    with pytest.raises(ValueError):
      build()
