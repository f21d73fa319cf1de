"""Waves by hand, by the published examples, and by the costs that arithmetic says they have."""

import numpy as np
import pytest

from rlvr_jax.allocate import staged
from tests.allocate.rounds import a_round, counts


def test_retries_the_unsolved_as_published():
  """AR3PO, arXiv 2509.25808: four stages of two; prompts solved in the second, third, never and first."""
  stages = [[(0, 1)], [(0, 0), (0, 0), (1, 0)], [(0, 0)] * 4, [(1, 1)]]
  allocator = staged.staged(start=2, chunk=2)
  plan = allocator.plan(4, 32)
  assert plan == (8, 8, 8, 8)
  used = np.zeros(4, int)
  for wave, width in enumerate(plan):
    seen = [[v for pair in some[: used[b] // 2] for v in pair] for b, some in enumerate(stages)]
    more = counts(allocator, a_round([0.5] * 4, wave=wave, verdicts=seen), width)
    used += more
  assert used.tolist() == [2, 6, 8, 2]


@pytest.mark.parametrize(
  "rate, start, chunk, budget, expected",
  [(0.2, 4, 4, 8, 5.6384), (0.05, 8, 2, 16, 12.580)],
  ids=["AR3PO", "AERO"],
)
def test_expected_cost_of_retrying(rate, start, chunk, budget, expected):
  """Of many prompts with a known solve rate: sum over stages of the chance that it is still needed."""
  num = 4000
  draws = np.random.default_rng(0).random((num, budget)) < rate
  allocator = staged.staged(start=start, chunk=chunk)
  used = np.zeros(num, int)
  for wave, width in enumerate(allocator.plan(num, budget * num)):
    seen = [draws[b, : used[b]].astype(float).tolist() for b in range(num)]
    used += counts(allocator, a_round([0.5] * num, wave=wave, verdicts=seen), width)
  assert used.mean() == pytest.approx(expected, rel=0.015)


def test_a_wave_with_nothing_left_to_do_is_empty():
  allocator = staged.staged(start=2, chunk=2)
  assert counts(allocator, a_round([0.5] * 2, wave=1, verdicts=[[0, 1], [1, 1]]), 4) == [0, 0]
  assert counts(allocator, a_round([0.5] * 2, wave=1, verdicts=[[0, 0], [0, 0]]), 4) == [2, 2]
  lost = a_round([0.5] * 2, wave=1, verdicts=[[0, 0], []], valid=[True, False])
  assert counts(allocator, lost, 4) == [2, 0]


def test_pilots_and_commits_by_hand():
  """Pilot-Commit, arXiv 2605.26606: of 0, 1, 4, 7 and 8 right of 8 the second and third are committed to."""
  verdicts = [[1] * k + [0] * (8 - k) for k in (0, 1, 4, 7, 8)]
  round = a_round([0.5] * 5, wave=1, verdicts=verdicts)
  fixed = staged.pilot_commit(pilot=8, commit=24)
  assert fixed.plan(5, 88) == (40, 48)
  assert counts(fixed, a_round([0.5] * 5), 40) == [8] * 5
  assert counts(fixed, round, 48) == [0, 24, 24, 0, 0]
  # Of one place the prompt nearest to 1/2 takes it, if that is asked for.
  widest = staged.pilot_commit(pilot=8, commit=24, widest=True)
  assert counts(widest, round, 24) == [0, 0, 24, 0, 0]
  assert sorted(counts(fixed, round, 24)) == [0, 0, 0, 0, 24]
  assert counts(staged.pilot_commit(pilot=8), round, 49) == [0, 25, 24, 0, 0]


@pytest.mark.parametrize("right, kept", [(2, True), (12, True), (1, False), (13, False)])
def test_both_ends_of_the_band_are_in(right, kept):
  """16 pilots: 2/16 = 0.125 and 12/16 = 0.75."""
  round = a_round([0.5], wave=1, verdicts=[[1] * right + [0] * (16 - right)])
  assert counts(staged.pilot_commit(pilot=16), round, 8) == [8 if kept else 0]


def test_share_of_committed_prompts():
  """p uniform: the number right of 16 is uniform on 0..16, and 2..12 are kept: 11/17 of the prompts."""
  rng = np.random.default_rng(1)
  right = rng.binomial(16, rng.random(2000))
  verdicts = [[1] * k + [0] * (16 - k) for k in right]
  out = counts(
    staged.pilot_commit(pilot=16, commit=1), a_round([0.5] * 2000, wave=1, verdicts=verdicts), 2000
  )
  assert np.mean(out) == pytest.approx(11 / 17, abs=0.03)
  assert not np.array(out)[(right == 0) | (right == 16)].any()


@pytest.mark.parametrize("verdicts", [[[0, 0], [0, 0]], [[1, 1], [1, 1]], [[], []]])
def test_nobody_to_commit_to(verdicts):
  round = a_round([0.5] * 2, wave=1, verdicts=verdicts)
  assert counts(staged.pilot_commit(pilot=2), round, 8) == [0, 0]


EXTRA = {  # DARS, arXiv 2508.13755: 0 to 4 of 8 right
  ("equal_treatment", 32, False): [24, 11, 3, 1, 0],
  ("equal_treatment", 32, True): [9, 5, 2, 1, 0],
  ("hardness_weighted", 64, False): [56, 24, 8, 3, 0],
  ("hardness_weighted", 64, True): [23, 14, 6, 3, 0],
}


@pytest.mark.parametrize("schedule, most, scaled", EXTRA)
def test_second_stage_as_published(schedule, most, scaled):
  target = getattr(staged, schedule)
  extra = [staged.dars_extra(k, 8, most, target=target, scaled=scaled) for k in range(9)]
  assert extra == EXTRA[schedule, most, scaled] + [0] * 4
  allocator = staged.dars(start=8, most=most, target=target, scaled=scaled)
  verdicts = [[1] * k + [0] * (8 - k) for k in range(5)]
  round = a_round([0.5] * 5, wave=1, verdicts=verdicts)
  assert counts(allocator, round, 200) == extra[:5]
  # Less than they want: in proportion, all of it.
  cut = counts(allocator, round, 10)
  assert sum(cut) == 10 and cut == sorted(cut, reverse=True)


@pytest.mark.parametrize("scaled", [False, True])
def test_second_stage_reaches_its_target_and_not_more(scaled):
  spread = lambda p: 2 * (p * (1 - p)) ** 0.5 if scaled else 2 * p * (1 - p)
  for n in (5, 8, 12, 31):
    for k in range(1, n):
      wants = {}
      for target, factor in (
        (staged.equal_treatment, 1.0),
        (staged.hardness_weighted, 2 * (1 - k / n)),
      ):
        more = staged.dars_extra(k, n, 10**6, target=target, scaled=scaled)
        goal = factor * n * spread(0.5)
        if 2 * k >= n:
          assert more == 0
        else:
          assert (n + more) * spread(k / n) >= goal - 1e-9
          assert (n + more - 1) * spread(k / n) < goal - 1e-12 or more == 0
        wants[target] = more
      assert wants[staged.hardness_weighted] >= wants[staged.equal_treatment]
  whole = staged.dars_extra(1, 12, 99, target=staged.hardness_weighted, scaled=False)
  assert whole == 60  # exactly reached: rounding must not make it 61


def test_second_stage_finds_more_successes():
  """p = 0.1, eight rollouts, up to 32: a success in 0.570 of the groups before, in 0.965 after."""
  before = 1 - 0.9**8
  extra = [staged.dars_extra(k, 8, 32, target=staged.equal_treatment, scaled=False) for k in (0,)]
  after = 1 - 0.9 ** (8 + extra[0])
  assert before == pytest.approx(0.570, abs=0.001) and after == pytest.approx(0.965, abs=0.002)


def test_errors():
  for allocator in (staged.staged(start=4), staged.pilot_commit(pilot=4), staged.dars(start=4)):
    with pytest.raises(ValueError, match="a budget of 11 rows is less than start=4 for each of 3"):
      allocator.plan(3, 11)
    assert allocator.plan(3, 13)[0] == 12
  for build in (
    lambda: staged.staged(start=0),
    lambda: staged.staged(chunk=0),
    lambda: staged.topped_up(wants=None, start=0),
    lambda: staged.pilot_commit(commit=-1),
    lambda: staged.pilot_commit(low=0.8, high=0.2),
    lambda: staged.dars(start=8, most=7),
  ):
    with pytest.raises(ValueError):
      build()
