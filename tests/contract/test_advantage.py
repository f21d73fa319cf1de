"""What every advantage must do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import advantage as package
from tests import toy

VARIANTS = {
  "group_mean": [{"scale": False}, {"ddof": 1}, {"epsilon": 0.1}, {"floor": 0.5}],
  "mc_grpo": [{"scale": "std"}, {"scale": "none"}, {"rescale_nonzero": True}],
  "gapo": [{"keep_single": False}, {"keep_single": False, "centre": "mean", "share": 0.75}],
  "reinforce_pp": [{"gamma": 0.9, "token_reward": "bonus"}],
  "gae": [{"whiten": False, "gamma": 0.9, "lam": 0.5}, {"whiten": False, "alpha": 1.5}],
  "pvpo": [{"anchor": "greedy_reward", "scale": True}],
  "mssr": [{"entropy_bonus": 0.0}],
  "v0_5": [{"prior": "greedy_reward"}],
  "blockwise": [{"baseline": b} for b in ("group", "batch", "none")]
  + [{"shrink": 2.0, "scale": True}],
  "uniqueness": [{"alpha": 0.5, "correct_only": True}, {"renormalise": True}],
}
FACTORIES = toy.factories(*toy.modules(package), variants=VARIANTS)
# Those that judge a row against its own group and nothing else.
OWN_GROUP = ("group_mean(", "rloo(", "opo(", "mc_grpo(", "gapo(keep_single=False", "uniqueness(")
named = lambda *names: [p for p in FACTORIES if any(f".{n}" in str(p.id) for n in names)]
SIZES = (6, 7, 8, 10)
N, MASKS = 10, [[True] * 4] * 10  # one shape, one compilation


@functools.cache
def jitted(factory):
  return jax.jit(factory())


def with_extras(rows, seed=0):
  """The same rows with everything that some advantage reads."""
  rng = np.random.default_rng(seed)
  n, t = rows.tokens.shape
  block_rewards = rng.integers(0, 2, (n, 2)).astype(np.float32)
  block_rewards[rng.random((n, 2)) < 0.2] = np.nan
  extras = {
    "values": rng.random((n, t)),
    "bonus": rng.random((n, t)),
    "greedy_reward": np.asarray(rows.group) / 4,
    "prediction": rng.random(n),
    "block": rng.integers(-1, 3, (n, t)),
    "block_rewards": block_rewards,
    "block_outcomes": rng.integers(0, 2, (n, 2)),
    "reward/strategy": rng.integers(-1, 2, n),
  }
  typed = lambda x: jnp.asarray(x, jnp.int32 if x.dtype.kind == "i" else jnp.float32)
  return rows.replace(extras={k: typed(np.asarray(v)) for k, v in extras.items()})


def soiled(rows):
  """NaN in every float that nobody may look at."""

  def soil(x):
    if not jnp.issubdtype(x.dtype, jnp.floating):
      return x
    seen = rows.loss_mask if x.shape == rows.tokens.shape else rows.valid
    return jnp.where(seen.reshape(seen.shape + (1,) * (x.ndim - seen.ndim)), x, jnp.nan)

  return toy.soiled(rows).replace(extras={k: soil(v) for k, v in rows.extras.items()})


@pytest.fixture(params=FACTORIES)
def advantage(request):
  return jitted(request.param)


def test_shape_mask_padding_order_and_unscored_rows(advantage):
  for seed in range(3):
    rows = with_extras(toy.random_rows(seed, num=N), seed)
    out = advantage(rows)
    assert out.shape == rows.tokens.shape and out.dtype == jnp.float32
    assert np.isfinite(out).all() and not out[~rows.loss_mask].any()
    np.testing.assert_array_equal(advantage(soiled(rows)), out)
    order = np.random.default_rng(seed).permutation(N)
    np.testing.assert_allclose(advantage(toy.take(rows, order)), out[order], rtol=1e-4, atol=1e-5)
    # T17: a reward of None is NaN here. The row gets nothing, the others do not see it.
    lost = jnp.arange(N) == order[0]
    blocks = jnp.where(lost[:, None], jnp.nan, rows.extras["block_rewards"])
    reward = jnp.where(lost, jnp.nan, rows.reward)
    unscored = rows.replace(reward=reward, extras=rows.extras | {"block_rewards": blocks})
    without = advantage(rows.replace(valid=rows.valid & ~lost))
    np.testing.assert_array_equal(advantage(unscored), without)
  # T7: nobody is there at all.
  np.testing.assert_array_equal(advantage(rows.replace(valid=jnp.zeros(N, bool))), 0)


@pytest.mark.parametrize("factory", named(*OWN_GROUP))
def test_against_the_own_group(factory):
  advantage, valid = jitted(factory), [True] * 5 + [False] * 5
  rows = lambda group, reward: with_extras(
    toy.rows(group + [0] * 5, reward + [9.0] * 5, MASKS, valid=valid)
  )
  np.testing.assert_array_equal(advantage(rows([0, 1, 0, 1, 2], [1.0, 0.0, 1.0, 0.0, 1.0])), 0)
  mixed = advantage(rows([3, 3, 3, 1, 1], [1.0, 0.0, 0.0, 0.0, 1.0]))
  a = mixed[:, 1]
  assert a[0] > a[1] and a[0] > a[2] and a[4] > a[3]
  other = advantage(rows([3, 3, 3, 1, 1], [1.0, 0.0, 0.0, 7.0, -2.0]))
  np.testing.assert_array_equal(mixed[:3], other[:3])


@pytest.mark.parametrize(
  "factory",
  named(
    *OWN_GROUP, "gapo()", "reinforce_pp()", "reinforce_pp_b", "blockwise()", "blockwise(shrink"
  ),
)
def test_T14_equal_rewards_give_exactly_zero(factory):
  advantage = jitted(factory)
  for size in SIZES:
    group = [0] * size + [1] * (10 - size)
    for reward in (1000.1, 0.7, 0.1):
      rows = with_extras(toy.rows(group, [reward] * 10, MASKS))
      blocks = {"block_rewards": jnp.full((10, 2), reward, jnp.float32)}
      out = advantage(rows.replace(extras=rows.extras | blocks))
      np.testing.assert_array_equal(out, 0)


def test_what_the_rows_do_not_carry_is_named():
  for factory in named("remax(", "gae()", "poise(", "blockwise()", "uniqueness()"):
    with pytest.raises(ValueError, match=r"needs rows.extras\['.*'\]; the rows carry: none"):
      factory.values[0]()(toy.rows([0, 0], [1.0, 0.0]))
