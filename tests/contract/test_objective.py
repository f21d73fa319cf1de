"""What every loss and every aggregation must do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import objective as package
from rlvr_jax.core.types import TokenStats
from rlvr_jax.objective import aggregate
from rlvr_jax.train import metrics as names
from tests import toy

VARIANTS = {"clipped": [{"low": 0.2, "high": 0.28}, {"low": 0.0, "high": 0.0}]}
OBJECTIVES = toy.factories(
  *(m for m in toy.modules(package) if m is not aggregate), variants=VARIANTS
)
AGGREGATES = toy.factories(aggregate)


@pytest.fixture(params=OBJECTIVES)
def objective(request):
  return request.param()


def sample(seed, shift=0.3):
  """Rows, stats that are off policy by about `shift`, and advantages."""
  rows = toy.random_rows(seed)
  noise = jax.random.normal(jax.random.key(seed), (2, *rows.tokens.shape))
  stats = TokenStats(rows.full_logprobs + shift * noise[0])
  return rows, stats, jnp.where(rows.loss_mask, noise[1], 0.0)


def gradient(objective, rows, stats, advantage):
  f = lambda x: objective.loss(TokenStats(x), rows, advantage, {})[0].sum()
  return jax.grad(f)(stats.logprobs)


def test_on_policy_the_gradient_is_the_policy_gradient(objective):
  rows, stats, advantage = sample(0, shift=0.0)
  got = gradient(objective, rows, stats, advantage)
  np.testing.assert_allclose(got, -advantage, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 200.0, -200.0])
def test_T5_T6_nothing_masked_is_seen(objective, bad):
  rows, stats, advantage = sample(1)
  loss, metrics = objective.loss(stats, rows, advantage, {})
  assert loss.shape == rows.tokens.shape and loss.dtype == jnp.float32
  assert np.isfinite(loss).all() and not loss[~rows.loss_mask].any()
  dirty = lambda x: jnp.where(rows.loss_mask, x, bad)
  args = toy.soiled(rows, bad), TokenStats(dirty(stats.logprobs)), dirty(advantage)
  again, more = objective.loss(args[1], args[0], args[2], {})
  np.testing.assert_array_equal(again, loss)
  jax.tree.map(np.testing.assert_array_equal, more, metrics)
  grad = gradient(objective, *args)
  np.testing.assert_array_equal(grad, gradient(objective, rows, stats, advantage))
  assert np.isfinite(grad).all() and not grad[~rows.loss_mask].any()


def test_a_row_depends_on_itself_alone(objective):
  rows, stats, advantage = sample(2)
  whole, _ = objective.loss(stats, rows, advantage, {})
  for n in range(len(rows.valid)):
    one = toy.take((stats, rows, advantage), [n])
    np.testing.assert_allclose(objective.loss(*one, {})[0][0], whole[n], rtol=1e-6)


def test_without_advantage_there_is_nothing_to_learn(objective):
  if not objective.needs_advantage:
    pytest.skip("has a loss of its own")
  rows, stats, advantage = sample(3)
  some = advantage.at[:4].set(0.0)
  assert not objective.loss(stats, rows, some, {})[0][:4].any()
  assert not gradient(objective, rows, stats, some)[:4].any()


def test_metrics_are_numbers_with_declared_names(objective):
  _, metrics = objective.loss(*(sample(4)[i] for i in (1, 0, 2)), {})
  for name, value in metrics.items():
    names.find(name)
    assert value.shape == () and value.dtype == jnp.float32 and np.isfinite(value), name
  none = toy.rows(masks=[[False, False]])
  _, metrics = objective.loss(TokenStats(jnp.zeros((1, 3))), none, jnp.zeros((1, 3)), {})
  assert all(np.isfinite(x) for x in metrics.values())


@pytest.mark.parametrize("factory", AGGREGATES)
@pytest.mark.parametrize("seed", range(3))
def test_aggregates_add_up_over_any_split(factory, seed):
  combine = jax.jit(factory())
  rows, stats, _ = sample(seed)
  weight = rows.loss_mask * jnp.where(stats.logprobs > -0.5, 0.0, 2.0)
  loss = jnp.where(rows.loss_mask, stats.logprobs, jnp.nan)
  numerator, denominator = combine(loss, weight, rows)
  for x in (numerator, denominator):
    assert x.shape == () and x.dtype == jnp.float32 and np.isfinite(x)
  here = np.arange(8) < 3
  parts = [
    combine(loss, weight, rows.replace(valid=rows.valid & jnp.array(side)))
    for side in (here, ~here)
  ]
  # This is what lets the learner go bin by bin: one denominator for all of them.
  assert float(sum(p[0] for p in parts)) == pytest.approx(float(numerator), rel=1e-5)
  assert combine(jnp.zeros_like(loss), weight, rows)[1] == denominator
  assert float(combine(3 * loss, weight, rows)[0]) == pytest.approx(3 * float(numerator), rel=1e-5)
  grad = jax.grad(lambda x: combine(x, weight, rows)[0])(loss)
  assert np.isfinite(grad).all() and not grad[weight == 0].any()
  assert combine(loss, 0 * weight, rows)[0] == 0
