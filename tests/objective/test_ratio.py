"""The clipped objective: worked numbers, the rule of the clip, and exact policy gradients.

Exact means by enumeration: over three symbols and one or two tokens every response can be listed, so that
an expectation is a sum.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.types import TokenStats
from rlvr_jax.objective import aggregate, ratio
from tests import toy

UGLY = (np.nan, np.inf, -np.inf, 200.0, -200.0)

# The worked example: two rows of three tokens, the last of the second row is not trained.
P_OLD = np.array([[0.5, 0.2, 0.4], [0.3, 0.6, 0.5]])
P_NEW = np.array([[0.7, 0.1, 0.4], [0.9, 0.5, 0.5]])
MASK = [[True] * 3, [True, True, False]]


def prompted(x):
  """[N,R] -> [N,1+R], as if the prompt had one token."""
  return jnp.pad(jnp.asarray(x, jnp.float32), ((0, 0), (1, 0)))


def example():
  rows = toy.rows(masks=MASK, full_logprobs=prompted(np.log(P_OLD)))
  return TokenStats(prompted(np.log(P_NEW))), rows, prompted([[1.0] * 3, [-1.0] * 3])


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({}, [[-1.2, -0.5, -1.0], [3.0, 0.83333, 0.0]]),
    ({"low": 0.2, "high": 0.28}, [[-1.28, -0.5, -1.0], [3.0, 0.83333, 0.0]]),
    ({"low": 0.1, "high": 0.28}, [[-1.28, -0.5, -1.0], [3.0, 0.9, 0.0]]),
  ],
)
def test_worked_example(options, expect):
  loss, _ = ratio.clipped(**options).loss(*example(), {})
  np.testing.assert_allclose(loss, prompted(expect), atol=1e-5)


def test_worked_example_of_the_token_mean():
  stats, rows, advantage = example()
  loss, _ = ratio.clipped(low=0.2, high=0.28).loss(stats, rows, advantage, {})
  numerator, denominator = aggregate.token_mean()(loss, rows.loss_mask.astype(jnp.float32), rows)
  assert denominator == 5
  assert numerator / denominator == pytest.approx(0.21067, abs=1e-5)


def test_T22_metrics_by_hand():
  # Ratios 1.4 .5 1 with A = 1; 3 .8333 with A = -1.
  _, metrics = ratio.clipped(low=0.1, high=0.28).loss(*example(), {})
  rho = np.array([1.4, 0.5, 1.0, 3.0, 5 / 6])
  assert float(metrics["policy/clip_frac_high"]) == pytest.approx(1 / 5)  # 1.4
  assert float(metrics["policy/clip_frac_low"]) == pytest.approx(1 / 5)  # .8333
  assert float(metrics["policy/ratio_max"]) == pytest.approx(3.0, rel=1e-5)
  assert float(metrics["policy/kl_old"]) == pytest.approx((rho - 1 - np.log(rho)).mean(), rel=1e-5)


def test_T19_kl_old_estimates_the_kl_from_the_sampler_without_bias():
  # Tokens come from the old policy: with these rows the mean is the expectation under it.
  old, new = np.array([0.5, 0.25, 0.25]), np.array([0.2, 0.7, 0.1])
  drawn = [0, 0, 1, 2]
  rows = toy.rows(masks=[[True]] * 4, full_logprobs=prompted(np.log(old[drawn])[:, None]))
  stats = TokenStats(prompted(np.log(new[drawn])[:, None]))
  _, metrics = ratio.clipped().loss(stats, rows, jnp.zeros((4, 2)), {})
  exact = (old * np.log(old / new)).sum()
  assert float(metrics["policy/kl_old"]) == pytest.approx(exact, rel=1e-5)


def one_token(d, a, **options):
  """Loss and its gradient with respect to the log-prob, for log ratio d and advantage a."""
  rows = toy.rows(masks=[[True]], full_logprobs=prompted([[-1.0]]))

  def loss(logprob):
    stats = TokenStats(prompted(logprob.reshape(1, 1)))
    return ratio.clipped(**options).loss(stats, rows, prompted([[a]]), {})[0][0, 1]

  return jax.value_and_grad(loss)(jnp.asarray(d - 1.0))


@given(st.floats(-3, 3), st.floats(-4, 4))
def test_the_clip_stops_only_what_has_gone_too_far(d, a):
  low, high = 0.2, 0.28
  rho = np.exp(d)
  if min(abs(rho - 1 + low), abs(rho - 1 - high)) < 1e-4:
    return  # on the bound rounding decides
  value, grad = one_token(d, a, low=low, high=high)
  stopped = (a > 0 and rho > 1 + high) or (a < 0 and rho < 1 - low)
  bound = 1 + high if rho > 1 else 1 - low
  assert value == pytest.approx(-a * (bound if stopped else rho), rel=1e-4, abs=1e-5)
  assert grad == pytest.approx(0 if stopped else -a * rho, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("a", [2.0, -2.0])
@pytest.mark.parametrize(
  ("low", "high"), [(0.2, 0.2), (0.0, 0.2), (0.2, 0.0), (0.0, 0.0), (1.0, 9.0)]
)
def test_on_policy_nothing_is_clipped_whatever_the_bounds(a, low, high):
  value, grad = one_token(0.0, a, low=low, high=high)
  assert (value, grad) == (pytest.approx(-a), pytest.approx(-a))


@pytest.mark.parametrize("d", [200.0, -200.0, np.inf, -np.inf])
@pytest.mark.parametrize("a", [1.0, -1.0, 0.0])
def test_T5_a_ratio_far_off_stays_finite(d, a):
  assert np.isfinite(one_token(d, a)).all()


# --------------------------------------------------------------------------------------------------
# Enumeration

VOCAB, PROMPT, END = 3, 1, 2
REWARDS = np.random.default_rng(3).normal(size=VOCAB * VOCAB).astype(np.float32)


def every_response(length, ends):
  """tokens [N,1+length] and mask [N,length] of all responses; with `ends` symbol END stops one."""
  tokens = toy.continuations(VOCAB, length)
  mask = np.ones(tokens.shape, bool)
  if ends and length == 2:
    short = tokens[:, 0] == END
    tokens, mask[short, 1] = tokens.copy(), False
    keep = ~short | (tokens[:, 1] == 0)  # once each
    tokens, mask = tokens[keep], mask[keep]
  return np.pad(tokens, ((0, 0), (1, 0)), constant_values=PROMPT), mask


def expected_reward(params, tokens, mask):
  """J: sum over responses of probability times reward."""
  total = jnp.where(np.pad(mask, ((0, 0), (1, 0))), toy.logprobs(params, tokens), 0.0).sum(1)
  return (jnp.exp(total) * REWARDS[: len(tokens)]).sum(), jnp.exp(total)


def expected_loss(objective, params, behavior, tokens, mask):
  """The objective with raw rewards as advantages, in expectation over responses of `behavior`."""
  rows = toy.rows(masks=mask, tokens=tokens, full_logprobs=toy.logprobs(behavior, tokens))
  probability = expected_reward(behavior, tokens, mask)[1]
  on_tokens = lambda x: jnp.where(rows.loss_mask, x[:, None], 0.0)
  stats = TokenStats(toy.logprobs(params, tokens))
  advantage = on_tokens(jnp.asarray(REWARDS[: len(tokens)]))
  loss, _ = objective.loss(stats, rows, advantage, {})
  return aggregate.token_mean()(loss, on_tokens(probability), rows)[0]


def table(seed):
  return toy.table_policy(VOCAB, 2).init(jax.random.key(seed))


@pytest.mark.parametrize(("length", "ends"), [(1, False), (2, False), (2, True)])
def test_T9_on_policy_the_expected_gradient_is_the_policy_gradient(length, ends):
  tokens, mask = every_response(length, ends)
  params = table(0)
  assert float(expected_reward(params, tokens, mask)[1].sum()) == pytest.approx(1, rel=1e-5)
  exact = jax.grad(lambda p: expected_reward(p, tokens, mask)[0])(params)["table"]
  got = jax.grad(lambda p: expected_loss(ratio.clipped(), p, params, tokens, mask))(params)["table"]
  assert float(jnp.abs(exact).max()) > 0.05
  np.testing.assert_allclose(got, -exact, atol=1e-6)


def test_off_policy_inside_the_bounds_the_surrogate_is_the_expected_reward():
  tokens, mask = every_response(1, False)
  behavior, params = table(0), table(1)
  wide = ratio.clipped(low=1.0, high=1e6)
  value, got = jax.value_and_grad(lambda p: expected_loss(wide, p, behavior, tokens, mask))(params)
  exact = lambda p: expected_reward(p, tokens, mask)[0]
  assert float(value) == pytest.approx(-float(exact(params)), rel=1e-5)
  np.testing.assert_allclose(got["table"], -jax.grad(exact)(params)["table"], atol=1e-6)


# --------------------------------------------------------------------------------------------------
# Masks


def loss_and_gradient(rows, logprobs, advantage):
  weight = rows.loss_mask.astype(jnp.float32)

  def loss(x):
    per_token, metrics = ratio.clipped().loss(TokenStats(x), rows, advantage, {})
    numerator, denominator = aggregate.token_mean()(per_token, weight, rows)
    return numerator / denominator, (per_token, metrics)

  (value, aux), grad = jax.value_and_grad(loss, has_aux=True)(logprobs)
  return value, aux, grad


@pytest.mark.parametrize("where", ["logprobs", "full_logprobs", "advantage", "all"])
@pytest.mark.parametrize("bad", UGLY)
def test_T5_T6_what_is_masked_changes_nothing(where, bad):
  stats, rows, advantage = example()
  dirty = lambda name, x: jnp.where(rows.loss_mask | (where not in (name, "all")), x, bad)
  clean = loss_and_gradient(rows, stats.logprobs, advantage)
  other = loss_and_gradient(
    rows.replace(full_logprobs=dirty("full_logprobs", rows.full_logprobs)),
    dirty("logprobs", stats.logprobs),
    dirty("advantage", advantage),
  )
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(other))
  jax.tree.map(np.testing.assert_array_equal, other, clean)


def test_T7_an_empty_row_and_a_padding_row_add_nothing():
  stats, rows, advantage = example()
  value, _, grad = loss_and_gradient(rows, stats.logprobs, advantage)
  longer = toy.rows(
    masks=[*MASK, [False] * 3, [True] * 3],
    valid=[True, True, True, False],
    full_logprobs=jnp.pad(rows.full_logprobs, ((0, 2), (0, 0))),
  )
  pad = lambda x: jnp.pad(x, ((0, 2), (0, 0)), constant_values=jnp.nan)
  more, _, grad_more = loss_and_gradient(longer, pad(stats.logprobs), pad(advantage))
  assert float(more) == pytest.approx(float(value), rel=1e-6)
  np.testing.assert_allclose(grad_more[:2], grad, rtol=1e-6)
  np.testing.assert_array_equal(grad_more[2:], 0)


def test_T24_the_ratio_is_under_the_whole_softmax():
  stats, rows, advantage = example()
  truncated = rows.replace(behavior_logprobs=rows.full_logprobs + 0.5)
  a, b = (ratio.clipped().loss(stats, r, advantage, {})[0] for r in (rows, truncated))
  np.testing.assert_array_equal(a, b)
  np.testing.assert_allclose(
    jnp.exp(ratio.log_ratio(stats, rows)[:, 1:]), np.where(MASK, P_NEW / P_OLD, 1), rtol=1e-5
  )


@pytest.mark.parametrize(
  ("args", "message"),
  [({"low": -0.1}, "low must"), ({"low": 1.1}, "low must"), ({"high": -1}, "high must")],
)
def test_errors(args, message):
  with pytest.raises(ValueError, match=message):
    ratio.clipped(**args)
