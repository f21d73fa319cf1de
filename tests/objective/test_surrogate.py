"""Every member of the ratio family: numbers worked by hand, what it reduces to, exact gradients.

Worked numbers are printed to five digits. Gradients are checked by enumeration: over three symbols and one
or two tokens every response can be listed, so that an expectation is a sum.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import TokenStats
from rlvr_jax.keep import veto
from rlvr_jax.objective import aggregate, anchors, bounds, modes, ratio, scopes
from tests import toy

OFF = {"atol": 1.5e-5}


def prompted(x):
  """[N,R] -> [N,1+R], as if the prompt had one token."""
  return jnp.pad(jnp.asarray(x, jnp.float32), ((0, 0), (1, 0)))


def batch(new, sampled, advantage, mask=None, **extras):
  """(stats, rows, advantage) from probabilities [N,R] of the tokens and the advantage of each row."""
  new, sampled = np.array(new, np.float32), np.array(sampled, np.float32)
  mask = np.ones(new.shape, bool) if mask is None else np.array(mask, bool)
  extras = {f"{k}_logprobs": prompted(np.log(v)) for k, v in extras.items()}
  rows = toy.rows(masks=mask, full_logprobs=prompted(np.log(sampled)), extras=extras)
  a = np.array(advantage, np.float32)
  a = np.broadcast_to(a[:, None] if a.ndim == 1 else a, new.shape)
  return TokenStats(prompted(np.log(new))), rows, prompted(a)


TOKENS, ROWS = aggregate.token_mean(), aggregate.sequence_mean_token_mean()


@functools.partial(jax.jit, static_argnums=0)
def run(objective, stats, rows, advantage):
  """Loss of each token, gradient of their sum, metrics, mean over tokens and over rows: one program."""

  def total(x):
    loss, metrics = objective.loss(TokenStats(x), rows, advantage, {})
    return loss.sum(), (loss, metrics)

  grad, (loss, metrics) = jax.grad(total, has_aux=True)(stats.logprobs)
  ones = rows.loss_mask.astype(jnp.float32)
  means = [n / d for n, d in (combine(loss, ones, rows) for combine in (TOKENS, ROWS))]
  return loss[:, 1:], grad[:, 1:], metrics, means


def losses(objective, args):
  """[N,R]: the loss of each token."""
  return np.asarray(run(objective, *args)[0])


def gradient(objective, args):
  """[N,R]: of the summed loss, by log-prob."""
  return np.asarray(run(objective, *args)[1])


def mean(objective, args):
  return float(run(objective, *args)[3][0])


def mean_of_rows(objective, args):
  return float(run(objective, *args)[3][1])


def same(a, b, args):
  np.testing.assert_allclose(losses(a, args), losses(b, args), rtol=1e-6)
  np.testing.assert_allclose(gradient(a, args), gradient(b, args), rtol=1e-6)


def noisy(seed=0, shape=(4, 6), spread=0.4):
  """Random policies of a few tokens, rows partly masked, advantages of both signs."""
  rng = np.random.default_rng(seed)
  old = rng.uniform(0.2, 0.6, shape)
  new = old * np.exp(spread * rng.normal(size=shape))
  return batch(new, old, rng.normal(size=shape[0]), rng.random(shape) < 0.8)


# The example of the baselines: two rows of three tokens, the last of the second row is not trained.
P_OLD = [[0.5, 0.2, 0.4], [0.3, 0.6, 0.5]]
P_NEW = [[0.7, 0.1, 0.4], [0.9, 0.5, 0.5]]
BASE = batch(P_NEW, P_OLD, [1, -1], [[1, 1, 1], [1, 1, 0]])
HIGHER = bounds.clip(low=0.2, high=0.28)
GSPO = ratio.surrogate(scope=scopes.sequence(), bounds=HIGHER)
GMPO = ratio.surrogate(
  scope=scopes.sequence(own=False), bounds=bounds.log_clip(), mode=modes.gmpo()
)


def test_worked_dual_clip():
  args = batch([[0.95], [0.95]], [[0.1], [0.1]], [-1, 1])
  np.testing.assert_allclose(losses(ratio.clipped(dual=3.0), args), [[3.0], [-1.2]], **OFF)
  assert not gradient(ratio.clipped(dual=3.0), args).any()
  np.testing.assert_allclose(losses(ratio.clipped(), args)[0], [9.5], **OFF)


def test_worked_gspo():
  stats, rows, advantage = BASE
  np.testing.assert_allclose(losses(GSPO, BASE)[:, 0], [-0.88790, 1.58114], **OFF)
  assert mean_of_rows(GSPO, BASE) == pytest.approx(0.34662, abs=1e-5)
  # The order of tokens in a row does not matter; one token a row is PPO.
  order = jnp.array([0, 2, 1, 3])
  turned = toy.take(rows, [0]).replace(full_logprobs=rows.full_logprobs[:1, order])
  swapped = TokenStats(stats.logprobs[:1, order]), turned, advantage[:1]
  np.testing.assert_allclose(losses(GSPO, swapped), losses(GSPO, BASE)[:1], rtol=1e-6)
  one = noisy(shape=(6, 1))
  same(GSPO, ratio.surrogate(bounds=HIGHER), one)


def test_worked_cispo():
  cispo = ratio.surrogate(bounds=bounds.clip(low=1.0, high=0.28), mode=modes.cispo())
  expect = [[0.45654, 1.15129, 0.91629], [-0.13486, -0.57762, 0.0]]
  np.testing.assert_allclose(losses(cispo, BASE), expect, **OFF)
  rho = np.minimum(np.array(P_NEW) / P_OLD, 1.28) * [[-1], [1]]
  rho[1, 2] = 0
  np.testing.assert_allclose(gradient(cispo, BASE), rho, rtol=1e-5)  # never 0 inside the mask


def test_worked_gmpo():
  np.testing.assert_allclose(losses(GMPO, BASE)[:, 0], [-0.88790, 1.58114], **OFF)
  assert mean_of_rows(GMPO, BASE) == pytest.approx(0.34662, abs=1e-5)
  # One token a row: PPO with bounds exp(+-0.4).
  one = noisy(shape=(6, 1), spread=0.8)
  log_clip = ratio.surrogate(bounds=bounds.log_clip())
  same(GMPO, log_clip, one)


def test_a_correction_enters_gmpo_as_its_geometric_mean():
  args = batch(P_NEW, P_OLD, [1, -1], old=[[1.0, 0.1, 0.4], [0.3, 0.3, 0.5]])
  weighted = ratio.surrogate(
    scope=scopes.sequence(own=False), bounds=bounds.log_clip(), mode=modes.gmpo(),
    correction=anchors.correction(cap=1.5),
  )  # fmt: skip
  by = np.exp(np.log([[1.5, 0.5, 1.0], [1.0, 0.5, 1.0]]).mean(1, keepdims=True))
  np.testing.assert_allclose(losses(weighted, args), losses(GMPO, args) * by, rtol=1e-5)


def test_worked_aggregates():
  ones = BASE[1].loss_mask.astype(jnp.float32)
  loss = ratio.clipped(low=0.2, high=0.28).loss(*BASE, {})[0]
  for combine, expect in (
    (aggregate.token_mean(), 0.21067),
    (aggregate.sequence_mean_token_mean(), 0.49500),
    (aggregate.sequence_mean_token_sum(norm=1), 0.52667),
    (aggregate.sequence_mean_token_sum(norm=10), 0.05267),
    (aggregate.sequence_mean_token_sum(), 0.52667 / 3),  # three tokens were allowed
  ):
    numerator, denominator = combine(loss, ones, BASE[1])
    assert float(numerator / denominator) == pytest.approx(expect, abs=1e-5)


def test_worked_prefix_ratios():
  old, rho = 0.4, np.array([[1.2, 0.75, 1.0, 1.4], [0.5, 1.2, 1 / 1.8, 1.0]])
  args = batch(rho * old, np.full((2, 4), old), [1, -1], [[1] * 4, [1, 1, 1, 0]])
  stats, rows, _ = args
  d = ratio.log_ratio(stats, rows)
  w = jnp.exp(scopes.prefix()(d, rows.loss_mask))[:, 1:]
  expect = [[1.2, 0.94868, 0.96549, 1.05948], [0.5, 0.77460, 0.69336, 1.0]]
  np.testing.assert_allclose(w, expect, **OFF)
  s = jnp.exp(scopes.sequence()(d, rows.loss_mask))[:, 1]
  np.testing.assert_allclose(s, [1.05948, 0.69336], **OFF)
  pnpo = ratio.surrogate(scope=scopes.prefix(), bounds=HIGHER)
  assert mean_of_rows(pnpo, args) == pytest.approx(-0.12171, abs=1e-5)
  assert mean_of_rows(ratio.surrogate(bounds=HIGHER), args) == pytest.approx(-0.06208, abs=1e-5)
  # On policy: what each token gets through all the weights behind it.
  even = batch(np.full((1, 4), old), np.full((1, 4), old), [1])
  np.testing.assert_allclose(-gradient(pnpo, even), [[2.08333, 1.08333, 0.58333, 0.25]], **OFF)
  own = ratio.surrogate(scope=scopes.prefix(own=True), bounds=HIGHER)
  np.testing.assert_allclose(gradient(own, even), [[-1.0] * 4], rtol=1e-6)


def test_prefix_ratios_skip_what_is_masked():
  old, mask = 0.4, [[1, 0, 1, 1]]
  args = batch([[0.5, 0.9, 0.3, 0.4]], [[old] * 4], [1], mask)
  short = batch([[0.5, 0.3, 0.4]], [[old] * 3], [1])
  pnpo = ratio.surrogate(scope=scopes.prefix(), bounds=HIGHER)
  np.testing.assert_allclose(losses(pnpo, args)[:, [0, 2, 3]], losses(pnpo, short), rtol=1e-6)
  np.testing.assert_allclose(gradient(pnpo, args)[:, [0, 2, 3]], gradient(pnpo, short), rtol=1e-6)


# --------------------------------------------------------------------------------------------------
# Filter, veto


def test_worked_double_sided_filter():
  p, rho = np.array([[0.45, 0.60, 0.05, 0.45]]), np.array([[0.9, 1.5, 1 / 6, 0.9]])
  args = batch(p, p / rho, [[0.8, -0.4, 0.8, 1.0]])
  dis = ratio.surrogate(bounds=bounds.clip(low=0.3, high=5.0), mode=modes.filtered())
  assert mean(dis, args) == pytest.approx(0.24677, abs=1e-5)
  np.testing.assert_allclose(-gradient(dis, args), [[0.72, -0.6, 0.0, 0.9]], **OFF)
  # Whatever the sign of the advantage.
  stats, rows, advantage = args
  turned = gradient(dis, (stats, rows, -advantage))
  np.testing.assert_array_equal(turned, -gradient(dis, args))
  metrics = run(dis, *args)[2]
  assert metrics["policy/clip_frac_low"] == 0.25 and metrics["policy/clip_frac_high"] == 0


# Mu-GRPO's example; the last token of the last row is padding.
RHO = np.array(
  [[1 / 1.2, 0.04, 1.0, 1.2, 0.5], [1 / 1.2, 0.04, 1.0, 1.2, 0.5], [1.5, 0.8, 1 / 12, 1, 1]]
)
STALE = batch(RHO * 0.3, np.full((3, 5), 0.3), [1, -1, -0.5], [[1] * 5, [1] * 5, [1] * 4 + [0]])
RELAXED = bounds.clip(low=0.8, high=4.0)


def test_worked_veto():
  with_veto = ratio.surrogate(bounds=RELAXED, veto=veto.stale_suffix(low=0.1))
  expect = [[-0.83333, -0.04, -1.0, -1.2, -0.5], [0.83333, 0.2, 0, 0, 0], [0.75, 0.4, 0.1, 0, 0]]
  np.testing.assert_allclose(losses(with_veto, STALE), expect, **OFF)
  assert mean(with_veto, STALE) == pytest.approx(-0.09214, abs=1e-5)
  assert mean(ratio.surrogate(bounds=RELAXED), STALE) == pytest.approx(0.13643, abs=1e-5)
  assert mean(ratio.clipped(), STALE) == pytest.approx(0.22214, abs=1e-5)
  metrics = run(with_veto, *STALE)[2]
  assert float(metrics["policy/vetoed_frac"]) == pytest.approx(4 / 14)
  grad = gradient(with_veto, STALE)
  assert not grad[1, 1:].any() and not grad[2, 2:].any()  # at the trigger the clip acts
  assert grad[0, 1:].any()


def test_a_veto_that_never_acts_is_the_clip_alone():
  same(
    ratio.surrogate(bounds=RELAXED, veto=veto.stale_suffix(low=0.0)),
    ratio.surrogate(bounds=RELAXED), STALE,
  )  # fmt: skip
  keeps = [
    veto.stale_suffix(low=low)(jnp.log(jnp.asarray(RHO)), -jnp.ones((3, 5)), jnp.ones((3, 5), bool))
    for low in (0.9, 0.1, 0.05, 0.0)
  ]
  for tight, loose in itertools.pairwise(keeps):
    assert (loose | ~tight).all() and loose.sum() >= tight.sum()


# --------------------------------------------------------------------------------------------------
# SAT

D = np.array([[0.02, -0.05, 0.22, 0.01, -0.12], [0.03, 0.20, -0.30, -0.02, 0.24]])
LAGGING = batch(0.3 * np.exp(D), np.full((2, 5), 0.3), [1, -1], old=0.3 * np.exp(D))


def surveyed(objective, args):
  return args[0], objective.survey(args[1]), args[2]


def test_worked_sat():
  sat = ratio.surrogate(bounds=bounds.sat(quantile=0.6))
  args = surveyed(sat, LAGGING)
  np.testing.assert_allclose(args[1].extras["staleness"], [0.152, 0.152], rtol=1e-5)
  low, high = bounds.sat(quantile=0.6)(jnp.asarray(prompted(D)), LAGGING[2], args[1])
  np.testing.assert_allclose(high[0, 1:], [1.28, 1.28, 1.17901, 1.28, 1.28], **OFF)
  np.testing.assert_allclose(low[1, 1:], [0.8, 0.85416, 0.92446, 0.8, 0.88790], **OFF)
  np.testing.assert_allclose(low[0], 0.8, rtol=1e-6)
  np.testing.assert_allclose(high[1], 1.28, rtol=1e-6)
  nominal = ratio.surrogate(bounds=HIGHER)
  more = losses(sat, args) - losses(nominal, LAGGING)
  np.testing.assert_allclose(more, [[0, 0, 0.06707, 0, 0], [0, 0, 0.12446, 0, 0]], **OFF)
  assert mean(sat, args) == pytest.approx(0.03804, abs=1e-5)
  assert mean(nominal, LAGGING) == pytest.approx(0.01888, abs=1e-5)


@pytest.mark.parametrize("options", [{"quantile": 1.0}, {"floor": 1.0, "quantile": 0.2}])
def test_sat_without_a_tail_or_contraction_is_ppo(options):
  sat = ratio.surrogate(bounds=bounds.sat(**options))
  same(sat, ratio.surrogate(bounds=HIGHER), surveyed(sat, LAGGING))


def test_sat_is_relative_to_the_batch_and_fresh_data_are_ppo():
  sat = ratio.surrogate(bounds=bounds.sat(quantile=0.6))
  fresh = batch([[0.3, 0.4]], [[0.3, 0.4]], [1], old=[[0.3, 0.4]])
  same(sat, ratio.surrogate(bounds=HIGHER), surveyed(sat, fresh))
  limit = lambda scale: sat.survey(
    batch(0.3 * np.exp(scale * D), np.full((2, 5), 0.3), [1, -1], old=0.3 * np.exp(scale * D))[1]
  ).extras["staleness"][0]
  assert float(limit(0.5)) == pytest.approx(0.076, rel=1e-5)
  empty = LAGGING[1].replace(valid=jnp.zeros(2, bool))
  np.testing.assert_array_equal(sat.survey(empty).extras["staleness"], 0)


@pytest.mark.parametrize(
  ("kernel", "expect"),
  [(bounds.exponential, np.exp(-1)), (bounds.gaussian, np.exp(-1)), (bounds.rational, 0.5)],
)
def test_kernels_of_sat_at_twice_the_quantile(kernel, expect):
  sat = bounds.sat(kernel=kernel)
  rows = LAGGING[1].replace(extras={"staleness": jnp.full(2, 0.1, jnp.float32)})
  d = jnp.full((2, 6), 0.2, jnp.float32)
  low, high = sat(d, LAGGING[2], rows)
  np.testing.assert_allclose(high[0, 1:], 1 + 0.28 * expect, rtol=1e-5)
  assert (low <= 1).all() and (low >= 0.8 - 1e-6).all() and (high <= 1.28 + 1e-6).all()


def test_staleness_of_whole_rows_counts_a_row_once():
  sat = ratio.surrogate(scope=scopes.sequence(), bounds=bounds.sat(quantile=0.5))
  # Row means of 0.1 (five tokens) and 0.3 (one token): the median of two rows is 0.2.
  d = np.array([[0.1] * 5, [0.3] * 5])
  args = batch(
    0.3 * np.exp(d), np.full((2, 5), 0.3), [1, 1], [[1] * 5, [1] + [0] * 4], old=0.3 * np.exp(d)
  )
  assert float(sat.survey(args[1]).extras["staleness"][0]) == pytest.approx(0.2, rel=1e-5)


# --------------------------------------------------------------------------------------------------
# Anchors and corrections

P_PROX, P_BEHAVE = [[0.4, 0.25, 0.1]], [[0.3, 0.3, 0.015]]


def test_worked_decoupled_loss():
  args = batch([[0.5, 0.2, 0.4]], P_BEHAVE, [[0.1, -0.1, 0.1]], old=P_PROX)
  part = ratio.surrogate(anchor=anchors.proximal(), mode=modes.ppo(dual=3.0))
  np.testing.assert_allclose(losses(part, args), [[-0.12, 0.08, -0.12]], **OFF)
  whole = ratio.surrogate(
    anchor=anchors.proximal(), mode=modes.ppo(dual=3.0),
    correction=anchors.correction(cap=5.0, limit=anchors.drop),
  )  # fmt: skip
  np.testing.assert_allclose(losses(whole, args), [[-0.16, 0.06667, 0.0]], **OFF)
  assert mean(whole, args) == pytest.approx(-0.03111, abs=1e-5)
  assert not gradient(whole, args)[0, 2]
  metrics = run(whole, *args)[2]
  assert float(metrics["policy/vetoed_frac"]) == pytest.approx(1 / 3)


def test_worked_areal_loss():
  theta = np.exp([[-1, -0.5, -2, -0.1], [-0.7, -1.2, -0.3, -1]])
  prox = np.exp([[-1.1, -0.9, -1.9, -0.2], [-0.9, -1, -0.3, -2]])
  behave = np.exp([[-1.2, -0.9, -3.4, -0.25], [-0.8, -1.1, -0.5, -3]])
  args = batch(theta, behave, [1, -1], [[1] * 4, [1, 1, 1, 0]], old=prox)
  decoupled = lambda **options: ratio.surrogate(
    anchor=anchors.proximal(), correction=anchors.correction(**options)
  )
  for objective, expect in (
    (decoupled(cap=float("inf")), -0.629575),
    (decoupled(cap=2.0, limit=anchors.drop), -0.050261),
    (decoupled(cap=2.0), -0.308786),
    (ratio.clipped(), -0.218632),
  ):
    assert mean(objective, args) == pytest.approx(expect, abs=1e-6)


def test_without_lag_the_decoupled_loss_is_ppo():
  stats, rows, advantage = noisy()
  rows = rows.replace(extras={"old_logprobs": rows.full_logprobs})
  for level in (anchors.each_token, anchors.product, anchors.geometric_mean):
    whole = ratio.surrogate(
      anchor=anchors.proximal(), correction=anchors.correction(level=level, cap=1.5)
    )
    same(whole, ratio.clipped(), (stats, rows, advantage))


def test_worked_truncated_weights():
  args = batch([[0.1] * 3], [[0.1] * 3], [1], old=[[0.4, 0.06, 0.1]])
  rows = args[1]
  weight = lambda **options: np.exp(anchors.correction(**options)(rows)[0, 1:])
  np.testing.assert_allclose(weight(), [2.0, 0.6, 1.0], rtol=1e-5)
  np.testing.assert_allclose(weight(level=anchors.product, cap=3.0), [2.4] * 3, rtol=1e-5)
  mean_ = (4 * 0.6) ** (1 / 3)
  np.testing.assert_allclose(weight(level=anchors.geometric_mean), [mean_] * 3, rtol=1e-5)
  np.testing.assert_allclose(weight(limit=anchors.drop), [0.0, 0.6, 1.0], rtol=1e-5)


def test_worked_teacher_in_the_ratio():
  own, teacher = [[0.2, 0.2, 0.5, 0.5]], [[0.4, 0.05, 0.8, 0.1]]
  args = batch(own, own, [[1, 1, -1, -1]], teacher=teacher)
  mixed = ratio.surrogate(anchor=anchors.teacher_mixture(alpha=0.5))
  np.testing.assert_allclose(losses(mixed, args), [[-0.707107, -1.2, 0.8, 2.236068]], atol=1e-6)
  np.testing.assert_array_equal(gradient(mixed, args) != 0, [[True, False, False, True]])
  same(ratio.surrogate(anchor=anchors.teacher_mixture(alpha=1.0)), ratio.clipped(), args)
  like = batch(own, own, [[1, 1, -1, -1]], teacher=own)
  same(mixed, ratio.clipped(), like)
  capped = ratio.surrogate(anchor=anchors.teacher_mixture(), mode=modes.ppo(dual=1.5))
  assert losses(capped, args).max() == 1.5


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_tokens_that_the_teacher_cannot_score_are_judged_without_it(alpha):
  own = [[0.2, 0.2, 0.5]]
  stats, rows, advantage = batch(own, own, [1], teacher=[[np.nan, 0.1, 0.1]])
  scores = rows.extras["teacher_logprobs"].at[0, 3].set(-jnp.inf)
  args = stats, rows.replace(extras={"teacher_logprobs": scores}), advantage
  objective = ratio.surrogate(anchor=anchors.teacher_mixture(alpha=alpha))
  assert losses(objective, args)[0, 0] == -1
  assert np.isfinite(losses(objective, args)).all() and np.isfinite(gradient(objective, args)).all()
  assert losses(objective, args)[0, 2] == (-1 if alpha == 1 else pytest.approx(-1.2))


# --------------------------------------------------------------------------------------------------
# Enumeration

VOCAB = 3
REWARD = np.random.default_rng(3).normal(size=VOCAB * VOCAB).astype(np.float32)
CHAIN = toy.table_policy(VOCAB, 2)


def enumerated(objective, params, behavior, length, coefficient=None):
  """Expected loss over all responses that `behavior` can draw, each row weighing its chance.

  With `coefficient` [length]: instead the sum over tokens of coefficient * reward * log-prob.
  """
  tokens = np.pad(toy.continuations(VOCAB, length), ((0, 0), (1, 0)), constant_values=1)
  logprobs = lambda p: toy.logprobs(p, tokens)
  chance = jax.lax.stop_gradient(jnp.exp(logprobs(behavior)[:, 1:].sum(1)))[:, None]
  reward = jnp.asarray(REWARD[: len(tokens)])[:, None]
  if coefficient is not None:
    return -(chance * reward * coefficient * logprobs(params)[:, 1:]).sum()
  extras = {"old_logprobs": logprobs(behavior), "staleness": np.ones(len(tokens), np.float32)}
  rows = toy.rows(tokens=tokens, full_logprobs=logprobs(behavior), extras=extras)
  advantage = reward * rows.loss_mask
  loss, _ = objective.loss(TokenStats(logprobs(params)), rows, advantage, {})
  return (chance * loss).sum()


def table(seed):
  return CHAIN.init(jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=(0, 3))
def slope(objective, params, behavior, length, coefficient=None):
  """Gradient of `enumerated` by the table."""
  f = lambda p: enumerated(objective, p, behavior, length, coefficient)
  return jax.grad(f)(params)["table"]


@pytest.mark.parametrize(
  ("objective", "coefficient"),
  [
    (GSPO, (1, 1)),
    (GMPO, (1, 1)),
    (ratio.surrogate(mode=modes.cispo()), (1, 1)),
    (ratio.surrogate(mode=modes.filtered()), (1, 1)),
    (ratio.surrogate(mode=modes.reinforce()), (1, 1)),
    (ratio.surrogate(bounds=bounds.sat()), (1, 1)),
    (ratio.surrogate(anchor=anchors.proximal(), correction=anchors.correction()), (1, 1)),
    (ratio.surrogate(scope=scopes.prefix(own=True)), (1, 1)),
    (ratio.surrogate(scope=scopes.prefix()), (1.5, 0.5)),  # 1 + 1/2, 1/2
  ],
)
def test_T9_on_policy_gradients_by_enumeration(objective, coefficient):
  params = table(0)
  got = slope(objective, params, params, 2)
  exact = slope(None, params, params, 2, jnp.asarray(coefficient)[None])
  assert float(jnp.abs(exact).max()) > 0.05
  np.testing.assert_allclose(got, exact, atol=1e-6)


@pytest.mark.parametrize("cap", [0.5, 1e6])
def test_off_policy_gradients_by_enumeration(cap):
  """One token: the weight of each symbol is known, so is the gradient of each mode."""
  behavior, params = table(0), table(1)
  rho = np.exp(toy.logprobs(params, [[1, s] for s in range(3)])[:, 1])
  rho /= np.exp(toy.logprobs(behavior, [[1, s] for s in range(3)])[:, 1])
  clip = bounds.clip(low=1.0, high=cap)
  for mode, weight in (
    (modes.cispo(), np.minimum(rho, 1 + cap)),
    (modes.filtered(), np.where(rho < 1 + cap, rho, 0)),
    (modes.ppo(), np.where((rho > 1 + cap) & (REWARD[:3] > 0), 0, rho)),
  ):
    got = slope(ratio.surrogate(bounds=clip, mode=mode), params, behavior, 1)
    exact = slope(None, params, behavior, 1, jnp.asarray(weight)[:, None])
    np.testing.assert_allclose(got, exact, atol=1e-6)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: modes.ppo(dual=0.5), "dual must be 0 or above 1"),
    (lambda: bounds.log_clip(low=-1), "at least 0"),
    (lambda: bounds.sat(quantile=1.5), "quantile and floor"),
    (lambda: anchors.teacher_mixture(alpha=2), "alpha must lie"),
    (lambda: anchors.correction(cap=0), "cap must be positive"),
    (lambda: veto.stale_suffix(low=-1), "0 <= low < high"),
    (lambda: aggregate.sequence_mean_token_sum(norm=-1), "norm must be"),
    (lambda: aggregate.step_mean(steps=-1), "steps must be"),
  ],
)
def test_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_what_was_not_prepared_is_named():
  stats, rows, advantage = noisy()
  with pytest.raises(ValueError, match="no log-probs of 'old'"):
    ratio.surrogate(anchor=anchors.proximal()).loss(stats, rows, advantage, {})
  with pytest.raises(ValueError, match="staleness"):
    ratio.surrogate(bounds=bounds.sat()).loss(stats, rows, advantage, {})
  with pytest.raises(ValueError, match="num_steps"):
    aggregate.step_mean(steps=0)(advantage, advantage, rows)
