"""The budget planner against the published law (arXiv 2603.12151), and laws fitted to known ones."""

import numpy as np
import pytest

from launch import plan as command
from launch.plan import Law


@pytest.mark.parametrize(
  "rollouts, prompts, law, most_rows, best, expected",
  [
    (1e5, 32, Law(), 65536, 10.967396, (8, 390, 0.5e-6)),
    (1e6, 32, Law(), 65536, 64.0, (64, 488, 1.414214e-6)),
    (1e7, 32, Law(), 65536, 373.470614, (512, 610, 4e-6)),
    (1e7, 128, Law(most=128.0), 16384, 103.721221, (128, 610, 4e-6)),
  ],
)
def test_published_plans(rollouts, prompts, law, most_rows, best, expected):
  assert law.best(rollouts) == pytest.approx(best, rel=1e-6)
  found = command.plan(rollouts, prompts, law, most_rows)
  assert (found.group, found.steps) == expected[:2]
  assert found.learning_rate == pytest.approx(expected[2], rel=1e-6)


def test_the_law_rises_between_its_bounds():
  n = Law().best(np.logspace(2, 10, 50))
  assert (np.diff(n) > 0).all() and n.min() >= 8 and n.max() <= 512
  assert Law().best(1e6) == pytest.approx(np.sqrt(8 * 512))
  for rollouts in (1e4, 3e5, 2e6, 5e8):
    found = command.plan(rollouts, 32, Law(), 4096)
    assert found.budget == found.group * 32 <= 4096 and found.group & (found.group - 1) == 0
    assert rollouts - found.budget < found.budget * found.steps <= rollouts
  rate = lambda rows: command.plan(1e7, rows // 8, Law(most=8), rows).learning_rate
  assert rate(4096) == pytest.approx(2 * rate(1024))


def test_errors():
  for rollouts, prompts, rows, message in (
    (100, 32, 4096, "less than one step"),
    (1e6, 1024, 4096, "more than 4096 rows"),
    (0, 32, 4096, "need rollouts"),
  ):
    with pytest.raises(ValueError, match=message):
      command.plan(rollouts, prompts, Law(), rows)
  with pytest.raises(ValueError, match="at least three"):
    command.fit_law([1e4, 1e5, 1e6], [8, 16, 16])
  with pytest.raises(ValueError, match="lacks"):
    command.law_of([{"group": 8, "reward": 1}])
  with pytest.raises(ValueError, match="four parameters"):
    command.fit_curve([1, 2, 3], [1, 2, 3])


def test_record_breaking_points():
  compute, reward = [1, 2, 3, 4, 6, 8], [0.30, 0.34, 0.33, 0.40, 0.40, 0.41]
  assert command.record_breaking(compute, reward).tolist() == [0, 1, 3, 5]
  order = [4, 0, 5, 2, 1, 3]
  found = command.record_breaking(np.array(compute)[order], np.array(reward)[order])
  assert [order[i] for i in found] == [0, 1, 3, 5]


def test_a_known_law_is_found_again():
  x = np.logspace(3.5, 8.5, 30)
  noise = np.random.default_rng(0).normal(0, 0.2, 30)
  law = command.fit_law(x, Law().best(x) * 2**noise)
  assert law.most == pytest.approx(512, rel=0.15) and law.middle == pytest.approx(6, abs=0.15)


def test_the_frontier_of_known_curves_is_found_again():
  """Larger groups start lower and end higher."""
  true = {
    n: command.Curve(0.1, 0.3 + 0.1 * i, 2.0, 4.0 + 0.45 * i) for i, n in enumerate((8, 16, 32, 64))
  }
  x = np.logspace(3, 7, 40)
  fits = {n: command.fit_curve(x, curve.at(x)) for n, curve in true.items()}
  grid = np.logspace(3.2, 6.8, 200)
  assert len(set(command.frontier(true, grid))) == 4
  assert np.mean(command.frontier(fits, grid) == command.frontier(true, grid)) > 0.95
  points = [
    {"group": n, "rollouts": c, "reward": r}
    for n, curve in true.items()
    for c, r in zip(x, curve.at(x))
  ]
  law = command.law_of(points)
  assert 4 < law.least < 16 and 32 < law.most < 128


def test_the_text_says_what_to_set():
  found = command.plan(1e6, 32, Law(), 65536)
  text = command.text(3e8, 300, Law(), False, found)
  for part in ("budget=2048", "prompts=32", "steps=488", "placeholders", "1,000,000 rollouts"):
    assert part in text
