"""Advantages against values, on the numbers worked by hand and by enumeration."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.anchored import fuse, mssr, poise, pvpo, v0_5
from rlvr_jax.advantage.group import group_mean
from tests import toy

f32 = lambda x: jnp.asarray(x, jnp.float32)
PAIRS, PAIRED = [0, 0, 1, 1, 2, 2], [1, 0, 1, 1, 0, 0]


def test_worked_pvpo():
  prior = np.repeat([0.25, 0.75, 0.5], 2)
  rows = toy.rows(PAIRS, PAIRED, prior=prior)
  expect = [0.75, -0.25, 0.25, 0.25, -0.5, -0.5]
  np.testing.assert_allclose(pvpo()(rows)[:, 1], expect, atol=1e-6)
  scaled = pvpo(scale=True)(rows)[:, 1]
  np.testing.assert_allclose(scaled, np.array(expect) / np.std(expect), rtol=1e-4)
  # The anchor at the group's mean, and no anchor at all, are Dr.GRPO.
  plain = group_mean(scale=False)(rows)
  np.testing.assert_allclose(pvpo()(rows.replace(prior=f32([0.5, 0.5, 1, 1, 0, 0]))), plain)
  np.testing.assert_allclose(pvpo()(rows.replace(prior=jnp.full(6, jnp.nan))), plain)
  other = rows.replace(reward=rows.reward.at[1].set(9.0))
  assert pvpo()(other)[0, 1] == pvpo()(rows)[0, 1]


MSSR = {
  "entropy": [[0, 0.1, 2, 0.6], [0, 1.5, 0, 3], [0, 0.2, 0.2, 0.2]],
  "prior": [0.5, 0.75, 0.125],
}


def mssr_rows(**fields):
  return toy.rows([0, 1, 2], [1.0, 0.0, 1.0], [[True] * 3] * 3, **(MSSR | fields))


def test_worked_mssr():
  expect = [
    [0.45983, 0.62975, 0.62975], [-0.77945, -1.37945, -0.68972], [1.03962, 1.03962, 1.03962],
  ]  # fmt: skip
  out = mssr()(mssr_rows())
  np.testing.assert_allclose(out[:, 1:], expect, atol=1e-5)
  plain = np.array([0.41983, -1.37945, 0.95962])
  np.testing.assert_allclose(mssr(entropy_bonus=0)(mssr_rows())[:, 1], plain, atol=1e-5)
  np.testing.assert_array_equal(np.sign(out[:, 1:]), np.sign(plain)[:, None] * np.ones((1, 3)))
  endless = mssr()(mssr_rows(entropy=np.full((3, 4), 1e9)))
  np.testing.assert_allclose(endless[:, 1], plain * [1.5, 0.5, 1.5], atol=1e-5)
  np.testing.assert_allclose(mssr(kappa=1e9)(mssr_rows())[:, 1], plain, atol=1e-5)


def test_mssr_of_one_row_and_of_equal_rows():
  alone = mssr(entropy_bonus=0)(mssr_rows().replace(valid=jnp.array([True, False, False])))
  np.testing.assert_array_equal(alone[:, 1], [0.5, 0, 0])
  same = mssr()(mssr_rows(prior=[0.1, -0.9, 0.1]))
  np.testing.assert_array_equal(same, 0)


@pytest.mark.parametrize(
  ("prediction", "expect"),
  [
    ([0.32513, 0.55498, 1, 1], [-0.55498, 0.67487, 0, 0]),
    ([0.35279, 0.55369, 0.88946, 0.79081], [-0.55369, 0.64721, 0.20919, 0.11054]),
  ],
)
def test_worked_poise(prediction, expect):
  rows = toy.rows([0, 0, 1, 1], [0, 1, 1, 1], extras={"prediction": f32(prediction)})
  a = poise()(rows)[:, 1]
  np.testing.assert_allclose(a, expect, atol=1e-5)
  # What is predicted of a row moves the other one only.
  moved = poise()(rows.replace(extras={"prediction": f32([0.9, *prediction[1:]])}))[:, 1]
  assert moved[0] == pytest.approx(float(a[0]), abs=1e-6)
  assert moved[1] == pytest.approx(0.1, abs=1e-6)


def test_poise_before_there_is_a_probe():
  rows = toy.rows([0, 0, 1, 1], [0, 1, 1, 1], extras={"prediction": jnp.full(4, jnp.nan)})
  np.testing.assert_allclose(poise()(rows)[:, 1], [-1, 0, 0.5, 0.5])  # against the other prompt
  one = rows.replace(group=jnp.zeros(4, jnp.int32))
  np.testing.assert_allclose(poise()(one)[:, 1], [-0.5, 0.5, 0.5, 0.5])
  three = toy.rows([0, 0, 0], [1, 0, 0], extras={"prediction": f32([0.3, 0.6, 0.9])})
  np.testing.assert_allclose(poise()(three)[:, 1], [0.25, -0.6, -0.45], atol=1e-6)


def test_poise_is_unbiased_although_predictions_leak_the_reward():
  """Three arms, two pulls, enumerated: crossed baselines leave the expected gradient what it is."""
  p, r = np.array([0.5, 0.3, 0.2]), np.array([1.0, 0.0, 0.5])
  exact = p * (r - p @ r)  # of the expected reward, with respect to the logits
  pulls = list(itertools.product(range(3), repeat=2))
  group, arms = np.repeat(np.arange(9), 2), np.array(pulls).reshape(-1)
  leak = f32(0.9 * r[arms])
  a = np.asarray(poise()(toy.rows(group, r[arms], extras={"prediction": leak})))[:, 1]
  own = r[arms] - 0.9 * r[arms]
  crossed, wrong = np.zeros(3), np.zeros(3)
  for i, arm in enumerate(arms):
    chance = np.prod(p[list(pulls[i // 2])]) / 2
    score = np.eye(3)[arm] - p
    crossed += chance * a[i] * score
    wrong += chance * own[i] * score
  np.testing.assert_allclose(crossed, exact, atol=1e-6)
  assert np.abs(wrong - exact).max() > 0.05


V05 = [
  ([1, 1, -1, -1], 0.1, 0, 0, 0.1, 0, [0.9, 0.9, -1.1, -1.1]),
  ([1, 1, 1, -1], -0.2, 0.24, 0.4898, 0.1429, 0.0134, [0.8571, 0.8571, 0.8571, -1.1429]),
  ([1, 1, 1, 1], -0.6, 2.31, 0.9023, 0.8438, 0.0415, [0.1562] * 4),
  ([1, 1, 1, 1], 0.5, 0, 0, 0.5, 0, [0.5] * 4),
  ([-1, -1, -1, -1], 0.2, 1.19, 0.8264, -0.7917, 0.0354, [-0.2083] * 4),
]
FUSE = jax.jit(fuse, static_argnames=("num", "low", "high"))


@pytest.mark.parametrize(("reward", "prior", "gap", "weight", "mean", "gain", "expect"), V05)
def test_worked_v0_5(reward, prior, gap, weight, mean, gain, expect):
  from rlvr_jax.recipes import v0_5 as recipe

  rows = toy.rows([2] * 4, reward, prior=[prior] * 4)
  args = rows.reward, rows.prior, rows.group, rows.valid
  fused = FUSE(*args, low=-1.0, high=1.0)
  np.testing.assert_allclose(
    [fused.gap[2], fused.weight[2], fused.baseline[2], recipe.gain(fused.gap, fused.count)[2]],
    [gap, weight, mean, gain], atol=5e-5,
  )  # fmt: skip
  np.testing.assert_allclose(v0_5(low=-1, high=1)(rows)[:, 1], expect, atol=5e-5)
  # The same in [0, 1]: the gap stays in the paper's units.
  half = rows.replace(reward=(rows.reward + 1) / 2, prior=(rows.prior + 1) / 2)
  unit = FUSE(half.reward, half.prior, rows.group, rows.valid)
  np.testing.assert_allclose(unit.gap[2], fused.gap[2], atol=1e-5)
  np.testing.assert_allclose(unit.baseline[2], (fused.baseline[2] + 1) / 2, atol=1e-5)
  np.testing.assert_allclose(v0_5()(half)[:, 1], np.array(expect) / 2, atol=5e-5)


def test_fuse_at_its_ends():
  group, ok = jnp.zeros(4, jnp.int32), jnp.ones(4, bool)
  at = lambda reward, prior, ok=ok: FUSE(f32(reward), jnp.full(4, prior, jnp.float32), group, ok)
  assert at([1, 1, 0, 0], jnp.nan).baseline[0] == 0.5
  assert at([1, 1, 0, 0], jnp.nan).gap[0] == at([1, 1, 0, 0], jnp.nan).weight[0] == 0
  assert at([1, 0, 0, 0], 0.25).baseline[0] == 0.25
  assert at([1, 1, 1, 1], 9.0).baseline[0] == 1.0  # a prior beyond the range is clipped
  sixteen = FUSE(
    jnp.ones(16, jnp.float32), jnp.full(16, -1.0), jnp.zeros(16, jnp.int32), jnp.ones(16, bool),
    low=-1.0, high=1.0,
  )  # fmt: skip
  assert sixteen.weight[0] > 0.98 and abs(sixteen.baseline[0] - 1) < 0.04


@pytest.mark.parametrize(("k", "variance"), [(4, 0.0703), (8, 0.0409)])
def test_variance_of_the_fused_baseline_by_enumeration(k, variance):
  outcomes = np.array(list(itertools.product([-1.0, 1.0], repeat=k)), np.float32)
  group = jnp.repeat(jnp.arange(len(outcomes), dtype=jnp.int32), k)
  reward = f32(outcomes.reshape(-1))
  fused = FUSE(
    reward, jnp.zeros_like(reward), group, jnp.ones(len(reward), bool), len(outcomes),
    low=-1.0, high=1.0,
  )  # fmt: skip
  baseline = np.asarray(fused.baseline)
  assert (baseline**2).mean() == pytest.approx(variance, abs=5e-5)
  assert (
    np.abs(baseline) <= np.abs(outcomes.mean(1)) + 1e-6
  ).all()  # between the mean and the prior
  assert (np.abs(baseline - outcomes.mean(1)) <= k**-0.5 + 1e-6).all()


@pytest.mark.parametrize(
  ("make", "args", "message"),
  [
    (pvpo, {"epsilon": 0}, "epsilon"),
    (mssr, {"kappa": 1}, "kappa must be above 1"),
    (mssr, {"entropy_bonus": -1}, "entropy_bonus"),
    (mssr, {"epsilon": 0}, "epsilon"),
    (v0_5, {"low": 1, "high": 0}, "low must be below high"),
  ],
)
def test_errors(make, args, message):
  with pytest.raises(ValueError, match=message):
    make(**args)
