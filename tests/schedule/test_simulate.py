"""The simulator against numbers worked out by hand and by an independent program, and against bounds."""

import numpy as np
import pytest

from rlvr_jax.schedule import simulate
from rlvr_jax.schedule.simulate import Cost

TINY = [3, 9, 2, 4, 5, 5, 20, 1, 6, 2, 4, 4, 7, 3, 1, 8, 2, 2, 3, 3, 5, 1, 4, 4]
MANY = simulate.lengths(8192)
SOME = MANY[:1024]


def test_lengths():
  np.testing.assert_allclose(simulate.lcg(3), [0.51387, 0.175741, 0.308652], atol=5e-7)
  assert MANY[:8].tolist() == [1032, 432, 638, 1081, 4306, 426, 1612, 509]
  assert (round(MANY.mean(), 4), np.median(MANY)) == (1461.4922, 1003.5)
  assert round((MANY == 8000).mean(), 4) == 0.0107
  assert simulate.lengths(5, 500, 1.1, 4000, 7).tolist() == [655, 280, 310, 868, 4000]
  together = simulate.grouped_lengths(48, 8)[:8]
  assert together.tolist() == [742, 863, 1060, 1814, 738, 1238, 791, 1024]


@pytest.mark.parametrize(
  "slots, static, refill, used",
  [(64, 111824, 29782, 0.7950), (128, 62890, 18150, 0.6522), (256, 32000, 12345, 0.4795)],
)
def test_batches_and_slots(slots, static, refill, used):
  assert simulate.static_ticks(SOME, slots) == static
  spent = simulate.refill(SOME, slots)
  assert (spent.ticks, spent.time, round(spent.use, 4)) == (refill, refill, used)
  assert simulate.refill_ticks(SOME, slots) == refill


def test_the_longest_first_and_the_price_of_a_row():
  order = np.argsort(-SOME, kind="stable")
  spent = simulate.refill(SOME, 128, order=order)
  assert (spent.ticks, round(spent.use, 4)) == (11940, 0.9914)
  cost = Cost(row=1 / 128)
  assert simulate.static(SOME, 128, cost=cost).time == 125780.0
  assert simulate.refill(SOME, 128, cost=cost).time == 29987.71875


@pytest.mark.parametrize("seed", range(5))
def test_slots_against_a_loop_over_ticks(seed):
  rng = np.random.default_rng(seed)
  work, slots = rng.integers(0, 9, 20), int(rng.integers(1, 7))
  group, groups = np.repeat(np.arange(5), 4), int(rng.integers(1, 6))
  queue, busy, left, ticks = [i for i in range(20) if work[i]], [], work.copy(), 0
  done = lambda: sum(not left[group == g].any() for g in range(5))
  while done() < groups:
    while queue and len(busy) < slots:
      busy.append(queue.pop(0))
    for i in busy:
      left[i] -= 1
    busy, ticks = [i for i in busy if left[i]], ticks + 1
  spent, got = simulate.until_groups(work, group.tolist(), slots, groups)
  assert spent.ticks == ticks
  np.testing.assert_array_equal(got, work - left)
  whole = simulate.refill(work, slots)
  low, mean = max(work.sum() / slots, work.max()), work.sum() / slots
  assert low <= whole.ticks <= mean + (1 - 1 / slots) * work.max()
  assert simulate.refill(work, 1).ticks == work.sum()
  assert whole.use >= simulate.static(work, slots).use
  assert simulate.until_groups(work, group.tolist(), slots, 5)[0].ticks == whole.ticks


def test_work_of_resumed_rows():
  """A tick a kept token, or all of them in one; nothing for a row that had ended."""
  work = simulate.resumed_work([5, 5, 5, 5, 0], [0, 16, 17, 18, 9])
  assert work.tolist() == [5, 21, 22, 6, 0]


# --------------------------------------------------------------------------------------------------
# Carried over


@pytest.mark.parametrize(
  "slots, drawn, time, trained, oldest, share",
  [
    (8, 2, 35, 65, 0, 0.0),
    (8, 4, 16, 54, 1, 0.2593),
    (4, None, 20, 54, 1, 0.3704),
    (8, None, 9, 48, 2, 0.4583),
  ],
)
def test_a_few_groups_that_are_carried_over(slots, drawn, time, trained, oldest, share):
  run = simulate.carry_over(TINY, 2, groups=2, slots=slots, steps=3, drawn=drawn)
  assert (run.time, run.trained, run.max_age) == (time, trained, oldest)
  assert round(run.stale_share, 4) == share
  assert run.generated == run.trained + run.held_tokens


def test_many_groups_that_are_carried_over():
  work = simulate.lengths(24000)
  carry = lambda **args: simulate.carry_over(work, 8, groups=32, steps=20, **args)
  cost = Cost(row=1 / 256)
  sync = carry(slots=256, drawn=32)
  assert sync.time == 158752 and sync.max_age == sync.held == 0
  assert simulate.static_ticks(work[: 20 * 256], 256) == 158752
  assert carry(slots=256, drawn=32, cost=cost).time == pytest.approx(188067.1484, abs=1e-4)
  april = carry(slots=512, drawn=64, cost=cost)
  assert april.time == pytest.approx(83047.3359, abs=1e-4)
  assert round(april.trained / april.time, 4) == 89.6718
  assert (april.mean_age, april.max_age) == (pytest.approx(0.9359, abs=5e-5), 3)
  assert round(april.stale_share, 4) == 0.6928
  assert round(april.trained / april.rows, 2) == 1454.49
  assert april.held == april.peak == 32
  assert april.generated == april.trained + april.held_tokens
  copris = carry(slots=256)
  assert copris.time == 32001 and round(copris.trained / copris.time, 2) == 230.83
  assert (round(copris.mean_age, 4), copris.max_age) == (2.3619, 6)
  assert round(copris.stale_share, 4) == 0.8681


@pytest.mark.parametrize("drawn, time, oldest", [(40, 101084, 2), (96, 33063, 5), (128, 24358, 7)])
def test_more_groups_in_hand_are_faster_and_older(drawn, time, oldest):
  work = simulate.lengths(12000)
  run = simulate.carry_over(work, 8, groups=32, slots=512, steps=20, drawn=drawn)
  assert (run.time, run.max_age) == (time, oldest)


def test_prefixes_that_are_computed_again_cost_time_and_change_nothing_else():
  carry = lambda cost: simulate.carry_over(TINY, 2, groups=2, slots=8, steps=3, drawn=4, cost=cost)
  free, paid = carry(Cost()), carry(Cost(again=0.5))
  assert paid._replace(time=free.time) == free
  assert paid.time == free.time + 0.5 * _fed_again()


def _fed_again():
  """Kept tokens of the rows that go on, over the three steps of the run above, tick by tick."""
  done = lambda hand, left: [g for g in hand if not left[2 * g] and not left[2 * g + 1]]
  left, waits, fed, new = list(TINY), [], 0, 0
  for _ in range(3):
    hand = waits[:4]
    while len(hand) < 4:
      hand, new = [*hand, new], new + 1
    rows = [2 * g + i for g in hand for i in range(2) if left[2 * g + i]]
    fed += sum(TINY[row] - left[row] for row in rows)
    while len(done(hand, left)) < 2:
      left = [n - (i in rows and n > 0) for i, n in enumerate(left)]
    waits = [g for g in hand if g not in done(hand, left)[:2]]
  return fed


def test_early_steps_train_what_is_short():
  work = simulate.lengths(24000)
  means = []
  for steps in (5, 10, 20, 40):
    run = simulate.carry_over(work, 8, groups=32, slots=512, steps=steps, drawn=64)
    means.append(round(run.trained / run.rows, 1))
  assert means == [1362.4, 1433.5, 1454.5, 1455.0]


# --------------------------------------------------------------------------------------------------
# Beside updates


def test_pipelines():
  run = lambda mode, eta: simulate.pipeline(MANY, 64, 64, 1500, eta, 40, mode)
  times = {
    "completion": [(336612, 0), (83841, 5), (61641, 7), (61595, 8), (61595, 8)],
    "start": [(336612, 0), (179370, 1), (123735, 2), (83986, 4), (67743, 8)],
    "drop": [(336612, 0), (88015, 1), (64983, 2), (61595, 4), (61595, 7)],
  }
  for mode, expected in times.items():
    runs = [run(mode, eta) for eta in (0, 1, 2, 4, 8)]
    assert [(r.time, r.max_staleness) for r in runs] == expected
    assert [sum(r.histogram.values()) for r in runs] == [40 * 64] * 5
    dropped = [369, 411, 79] if mode == "drop" else [0, 0, 0]
    assert [r.dropped for r in runs] == [0, *dropped, 0]


@pytest.mark.parametrize("broadcast, period", [(12, (102, 51, 50, 50)), (0, (90, 50, 50, 50))])
def test_equal_lengths_have_a_closed_form(broadcast, period):
  """max(train, batch time, (train + broadcast + batch time) / (staleness + 1)): 16 samples on 4 slots."""
  for eta in range(4):
    args = [10] * 2000, 16, 4, 50, eta
    a, b = (simulate.pipeline(*args, n, "start", broadcast).time for n in (40, 100))
    assert (b - a) / 60 == pytest.approx(period[eta])


def test_a_pipeline_that_runs_out_of_samples_says_so():
  run = simulate.pipeline([1] * 10, 4, 4, 1, 0, 40)
  assert run.steps == 2 and run.time == 4
  with pytest.raises(ValueError, match="mode must be"):
    simulate.pipeline([1], 1, 1, 1, 0, 1, "lifo")


@pytest.mark.parametrize(
  "args, room",
  [
    ((128, 0, 0, 2, 0, 64), 128),
    ((128, 100, 64, 2, 1, 64), 28),
    ((128, 40, 250, 2, 1, 64), -34),
    ((64, 60, 10, 4, 0, 64), 4),
    ((128, 64, 0, 0, 0, 64), 0),
  ],
)
def test_capacity(args, room):
  assert simulate.capacity(*args) == room


def test_one_step_off_takes_the_slower_of_the_two():
  """Log-normal rollouts: within 10 % of max(rollout, learn) + transfer, also where both are alike."""
  rollout = [simulate.refill(MANY[i * 128 : (i + 1) * 128], 64).time for i in range(60)]
  mean = float(np.mean(rollout))
  transfer = 0.02 * mean
  for share in (0.3, 1.0, 1.5):
    learn = [share * mean] * 60
    off = simulate.overlap(rollout, learn, transfer)
    period = (off[-2] - off[9]) / 49
    assert period == pytest.approx(max(mean, share * mean) + transfer, rel=0.1)
    one = simulate.overlap(rollout, learn, transfer, ahead=0)
    assert one[-1] == pytest.approx(sum(rollout) + sum(learn) + 60 * transfer)
    assert period < np.diff(one).mean()


def test_sizes_that_make_no_sense_are_refused():
  with pytest.raises(ValueError, match="trains 3 groups must draw as many, got 2"):
    simulate.carry_over(TINY, 2, groups=3, slots=4, steps=1, drawn=2)
  with pytest.raises(ValueError, match="24 rows are not enough for 9 steps"):
    simulate.carry_over(TINY, 2, groups=2, slots=4, steps=9, drawn=2)
  with pytest.raises(ValueError, match="slots must be at least 1"):
    simulate.refill(TINY, 0)
