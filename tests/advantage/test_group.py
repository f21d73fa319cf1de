"""Group advantages against worked numbers and ten lines of plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.advantage import group as family
from rlvr_jax.advantage.group import gapo, group_mean, mc_grpo, opo, remax, rloo
from tests import toy

N = 7  # one shape: one compilation
flat = lambda elements: st.lists(elements, min_size=N, max_size=N)
KINDS = [{"scale": False}, {"ddof": 0}, {"ddof": 1}]


def per_row(rows, **options):
  """[N]: the advantage on the first trained token of each row; checks that all of them agree."""
  out = np.asarray(group_mean(**options)(rows))
  mask = np.asarray(rows.loss_mask)
  assert np.all(out[~mask] == 0)
  first = np.where(mask.any(1), out[np.arange(len(out)), mask.argmax(1)], 0)
  np.testing.assert_array_equal(out, np.where(mask, first[:, None], 0))
  return first


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({"ddof": 1}, [1.30558, -0.78335, -0.78335, 0.26112]),
    ({"ddof": 0}, [1.50755, -0.90453, -0.90453, 0.30151]),
    ({}, [1.50755, -0.90453, -0.90453, 0.30151]),
    ({"scale": False}, [0.625, -0.375, -0.375, 0.125]),
  ],
)
def test_worked_example(options, expect):
  rows = toy.rows([0] * 4, [1.0, 0.0, 0.0, 0.5])
  np.testing.assert_allclose(per_row(rows, **options), expect, atol=1e-5)


@pytest.mark.parametrize("k", range(1, 8))
def test_k_of_eight_right(k):
  a = per_row(toy.rows([0] * 8, [1.0] * k + [0.0] * (8 - k)))
  np.testing.assert_allclose(a[:k], ((8 - k) / k) ** 0.5, rtol=1e-4)
  np.testing.assert_allclose(a[k:], -((k / (8 - k)) ** 0.5), rtol=1e-4)


def test_epsilon_is_added_to_the_deviation():
  rows = toy.rows([0, 0], [1.0, 0.0])
  np.testing.assert_allclose(per_row(rows, epsilon=0.5), [0.5, -0.5], rtol=1e-6)


def simple(reward, group, valid, scale, ddof):
  out = []
  for r, g, v in zip(reward, group, valid):
    mine = [s for s, h, w in zip(reward, group, valid) if h == g and w]
    if not v or len(set(mine)) < 2:
      out.append(0.0)
      continue
    mean = sum(mine) / len(mine)
    std = (sum((s - mean) ** 2 for s in mine) / (len(mine) - ddof)) ** 0.5
    out.append((r - mean) / (std + 1e-6) if scale else r - mean)
  return out


@given(
  flat(st.integers(-8, 8).map(lambda x: x / 4)),
  flat(st.integers(0, N - 1)),
  flat(st.booleans()),
  st.booleans(),
  st.sampled_from([0, 1]),
)
def test_equals_plain_python(reward, group, valid, scale, ddof):
  rows = toy.rows(group, reward, valid=valid)
  expect = simple(reward, group, valid, scale, ddof)
  np.testing.assert_allclose(per_row(rows, scale=scale, ddof=ddof), expect, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
  ("reward", "size"), [(1000.1, 6), (1000.1, 7), (1000.1, 8), (1000.1, 10), (0.7, 7), (0.1, 3)]
)
def test_T14_equal_rewards_give_exactly_zero(options, reward, size):
  np.testing.assert_array_equal(per_row(toy.rows([0] * size, [reward] * size), **options), 0)


@pytest.mark.parametrize("options", KINDS)
def test_T15_a_lone_row_gets_zero(options):
  np.testing.assert_array_equal(per_row(toy.rows([0, 1], [5.0, -3.0]), **options), 0)
  valid = [True] + [False] * 7
  np.testing.assert_array_equal(per_row(toy.rows([0] * 8, [5.0] * 8, valid=valid), **options), 0)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("bad", [100.0, np.nan, np.inf])
def test_T16_a_rejected_sibling_moves_nothing(options, bad):
  group, valid = [0, 0, 0, 0], [True, True, False, True]
  with_it = per_row(toy.rows(group, [1.0, 0.0, bad, 0.5], valid=valid), **options)
  without = per_row(toy.rows([0] * 3, [1.0, 0.0, 0.5]), **options)
  np.testing.assert_allclose(with_it[[0, 1, 3]], without, rtol=1e-6)
  assert with_it[2] == 0


def test_T17_zero_is_a_reward_and_whole_numbers_will_do():
  rows = toy.rows([0, 0, 0], [0.0, 0.0, 1.0])
  whole = rows.replace(reward=jnp.array([0, 0, 1], jnp.int32))
  np.testing.assert_array_equal(per_row(whole), per_row(rows))
  np.testing.assert_allclose(per_row(rows, scale=False), [-1 / 3, -1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("options", KINDS)
def test_T18_groups_do_not_mix_in_any_order(options):
  group, reward = np.array([0, 0, 0, 4, 4]), np.array([10.0, 11.0, 15.0, -1.0, 0.5])
  together = per_row(toy.rows(group, reward), **options)
  for g in (0, 4):  # zero mean for each prompt
    assert np.sum(together[group == g]) == pytest.approx(0, abs=1e-5)
  order = np.array([3, 0, 4, 2, 1])
  shuffled = per_row(toy.rows(group[order], reward[order]), **options)
  np.testing.assert_allclose(shuffled, together[order], rtol=1e-5)
  other = per_row(toy.rows(group, reward + 100 * (group == 4)), **options)
  np.testing.assert_array_equal(other[:3], together[:3])


@pytest.mark.parametrize("options", KINDS)
def test_a_constant_added_to_a_group_changes_nothing(options):
  reward = np.array([1.0, 0.0, 0.25, 0.5])
  a, b = (per_row(toy.rows([0] * 4, reward + c), **options) for c in (0.0, 8.0))
  np.testing.assert_allclose(a, b, atol=1e-5)


def test_T7_rows_and_groups_without_trained_tokens():
  masks = [[True, False], [False, False], [False, False], [False, False]]
  rows = toy.rows([0, 0, 1, 1], [1.0, 0.0, 1.0, 0.0], masks)
  # An empty response is still a rollout of its prompt: it counts in the statistics.
  np.testing.assert_allclose(per_row(rows, scale=False), [0.5, 0, 0, 0])


def test_under_jit():
  f = jax.jit(group_mean())
  rows = toy.rows([0, 0, 1, 1], [1.0, 1.0, 0.0, 1.0])
  np.testing.assert_allclose(f(rows)[:, 1], [0, 0, -1, 1], rtol=1e-5)


@pytest.mark.parametrize(
  ("args", "message"), [({"ddof": 2}, "ddof must be 0 or 1"), ({"epsilon": 0}, "epsilon must be")]
)
def test_errors(args, message):
  with pytest.raises(ValueError, match=message):
    group_mean(**args)


# --------------------------------------------------------------------------------------------------
# The other baselines. All on rows of one shape, so that each compiles once.

SIZE = 8


def of(advantage, reward, *, length=None, groups=None, extras=None):
  """[len(reward)]: the advantage of each row, one group unless `groups`; padded to SIZE rows."""
  n = len(reward)
  length = [1] * n if length is None else length
  pad = SIZE - n
  masks = [[t < k for t in range(3)] for k in [*length, *[1] * pad]]
  rows = toy.rows(
    [*(groups or [0] * n), *[0] * pad], [*reward, *[7.0] * pad], masks,
    valid=[True] * n + [False] * pad,
    extras={k: np.pad(np.asarray(v, np.float32), (0, pad)) for k, v in (extras or {}).items()},
  )  # fmt: skip
  out = np.asarray(advantage(rows))
  mask = np.asarray(rows.loss_mask)
  first = out[:, 1]
  np.testing.assert_array_equal(out, np.where(mask, first[:, None], 0))
  return first[:n]


R = [1.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(
  ("advantage", "expect"),
  [
    (rloo(), [0.83333, -0.5, -0.5, 0.16667]),
    (remax(greedy="g"), [0.5, -0.5, -0.5, 0]),
    (group_mean(ddof=1, floor=0.1), [1.30558, -0.78335, -0.78335, 0.26112]),
    (group_mean(floor=1.0), [0.625, -0.375, -0.375, 0.125]),
  ],
)
def test_worked_baselines(advantage, expect):
  np.testing.assert_allclose(of(advantage, R, extras={"g": [0.5] * 4}), expect, atol=1e-5)


def test_worked_uniform_grpo():
  groups = [0, 0, 0, 0, 1, 1, 1, 1]
  for right, kinds in (
    ([1, 0, 0, 1], [[0.866024, -0.866024], [0.999998, -0.999998], [0.5, -0.5]]),
    ([0, 0, 0, 1], [[1.499997, -0.499999], [1.732047, -0.577349], [0.75, -0.25]]),
  ):
    for options, (gain, loss) in zip(({"ddof": 1}, {}, {"scale": False}), kinds):
      out = of(group_mean(**options), [*right, 1, 1, 1, 1], groups=groups)
      expect = [gain if r else loss for r in right]
      np.testing.assert_allclose(out, [*expect, 0, 0, 0, 0], atol=2e-6)


def test_worked_opo():
  out = of(opo(), R, length=[1, 2, 3, 3])
  np.testing.assert_allclose(out, np.array(R) - 2.5 / 9, atol=1e-6)
  # The published numbers, lengths 10 to 40.
  masks = [[t < k for t in range(40)] for k in (10, 20, 30, 40)]
  long = opo()(toy.rows([0] * 4, R, masks))
  np.testing.assert_allclose(long[:, 1], [0.7, -0.3, -0.3, 0.2], atol=1e-6)
  np.testing.assert_allclose(of(opo(), R), of(group_mean(scale=False), R), atol=1e-6)
  assert not of(opo(), [1.0, 0.0], length=[0, 0]).any()


def test_rloo_is_dr_grpo_stretched_and_both_sum_to_zero():
  reward = np.random.default_rng(0).normal(size=6)
  centred = of(group_mean(scale=False), reward)
  np.testing.assert_allclose(of(rloo(), reward), centred * 6 / 5, rtol=1e-5)
  others = [r - np.delete(reward, i).mean() for i, r in enumerate(reward)]
  np.testing.assert_allclose(of(rloo(), reward), others, atol=1e-5)


@pytest.mark.parametrize(
  ("make", "kept"),
  [(group_mean, 5 / (1 + 1e-6)), (rloo, 5), (opo, 5), (gapo, 5)],
)
def test_T15_a_lone_row_may_keep_its_reward(make, kept):
  assert of(make(keep_single=True), [5.0])[0] == pytest.approx(kept, abs=1e-6)
  np.testing.assert_array_equal(of(make(keep_single=False), [5.0]), 0)


MC = [0.2, 1.0, 0.0, 0.9, 0.4]


@pytest.mark.parametrize(
  ("options", "reward", "expect", "kept"),
  [
    ({}, MC, [-0.49875, 1.49626, -0.99751, 1.24688, 0], [1, 1, 1, 1, 0]),
    ({}, [1, 0, 0], [1000, 0, 0], [1, 0, 1]),
    ({"scale": "std"}, [1, 0, 0], [1.73205, 0, 0], [1, 0, 1]),
    ({"scale": "none"}, [1, 0, 0], [1, 0, 0], [1, 0, 1]),
    ({"rescale_nonzero": True}, [0.5, 0.5, 0.9, 0.1, 0.5], [0, 0, 1000, -1000, 0], [0, 1, 1, 1, 1]),
    ({"scale": "none"}, [0, 1], [0, 1], [0, 1]),
    ({}, [3.0], [0], [0]),
    ({"rescale_nonzero": True}, [1, 1, 1], [0, 0, 0], [0, 1, 1]),
  ],
)
def test_worked_mc_grpo(options, reward, expect, kept):
  np.testing.assert_allclose(of(mc_grpo(**options), reward), expect, rtol=2e-5, atol=1e-5)
  n = len(reward)
  rows = toy.rows([1] * SIZE, [*reward, *[0.4] * (SIZE - n)], valid=[i < n for i in range(SIZE)])
  dropped = np.asarray(family.pivot(rows))
  np.testing.assert_array_equal(dropped[:n], np.array(kept) == 0)
  assert not dropped[n:].any()


def test_one_extreme_reward_moves_no_other_advantage():
  far = [0.2, 1e6, 0.0, 0.9, 0.4]
  keep = [0, 2, 3, 4]
  a, b = (of(mc_grpo(scale="none"), r)[keep] for r in (MC, far))
  np.testing.assert_array_equal(a, b)
  a, b = (of(group_mean(scale=False), r)[keep] for r in (MC, far))
  assert (a != b).all()


def test_sign_flips_of_median_and_mean():
  """Against the sign of r - c: a mean of two flips 1/4 of them, a median of three 1/8."""
  rng = np.random.default_rng(0)
  n = 2 * 3 * 1000
  reward, group = rng.standard_t(1.5, n), np.arange(n) // 3
  rows = toy.rows(group, reward)
  a, dropped = np.asarray(mc_grpo(scale="none")(rows))[:, 1], np.asarray(family.pivot(rows))
  assert (np.sign(a) != np.sign(reward))[~dropped].mean() == pytest.approx(1 / 8, abs=0.02)
  b = np.asarray(group_mean(scale=False)(rows.replace(group=jnp.arange(n, dtype=jnp.int32) // 2)))
  assert (np.sign(b[:, 1]) != np.sign(reward)).mean() == pytest.approx(1 / 4, abs=0.02)


GAPO = [0.1, 0.62, 0.65, 0.66, 0.7, 0.95, 0.3, 0.68]


@pytest.mark.parametrize(
  ("options", "reward", "expect"),
  [
    ({}, GAPO, [-2.04429, -0.17932, -0.07173, -0.03586, 0.10759, 1.00421, -1.327, 0.03586]),
    (
      {"centre": "mean"}, GAPO,
      [-2.04659, -0.18768, -0.08043, -0.04469, 0.09831, 0.99202, -1.33163, 0.02681],
    ),
    (
      {"centre": "mean", "share": 1}, GAPO,
      [-1.83693, 0.14277, 0.25698, 0.29505, 0.44734, 1.39912, -1.07551, 0.37119],
    ),
    ({}, [1, 1, 1, 0], [0, 0, 0, -1.73205]),
    ({}, [1, 0, 0, 1], [1.22474, 0, 0, 1.22474]),
    ({"scale": False}, [0, 0, 1, 1], [0, 0, 1, 1]),
    ({"scale": False, "share": 0.2}, [0.5, 0.2, 0.9], [0.3, 0, 0.7]),
  ],
)  # fmt: skip
def test_worked_gapo(options, reward, expect):
  np.testing.assert_allclose(of(gapo(**options), reward), expect, atol=2e-5)


def test_gapo_of_the_whole_group_is_grpo():
  reward = np.random.default_rng(1).normal(size=7)
  a = of(gapo(share=1, centre="mean"), reward)
  np.testing.assert_allclose(a, of(group_mean(ddof=1), reward), atol=1e-5)
  half = of(gapo(), reward)
  assert (half**2).sum() / 6 == pytest.approx(1, abs=1e-4)
  np.testing.assert_allclose(of(gapo(), reward + 3), half, atol=1e-4)
  np.testing.assert_allclose(of(gapo(), reward * 4), half, atol=1e-5)


def test_a_share_is_counted_in_whole_rows():
  # 0.7 * 10 is 7.000000000000001 in float64 and more in float32: 7 rows, not 8.
  reward = np.array([0, 1, 2, 3, 4, 5, 6, 20, 30, 40], np.float32)
  a = gapo(share=0.7, centre="mean", scale=False)(toy.rows([0] * 10, reward))
  np.testing.assert_allclose(a[:, 1], reward - 3, atol=1e-5)


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    (group_mean, {"floor": -1}, "floor must be"),
    (mc_grpo, {"scale": "madd"}, "unknown scale 'madd'; did you mean mad"),
    (gapo, {"share": 0}, "share must lie"),
    (gapo, {"centre": "mode"}, "unknown centre"),
    (gapo, {"epsilon": 0}, "epsilon must be"),
  ],
)
def test_more_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    make(**args)
