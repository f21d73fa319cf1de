"""What every loss and every aggregation must do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import TokenStats
from rlvr_jax.keep import veto
from rlvr_jax.objective import aggregate, anchors, bounds, kl, modes, ratio, scopes
from rlvr_jax.train import metrics as names
from tests import toy

OBJECTIVES = {
  "clipped": ratio.clipped(),
  "clip-higher, dual": ratio.clipped(low=0.2, high=0.28, dual=3.0),
  "no room": ratio.clipped(low=0.0, high=0.0),
  "prefix": ratio.surrogate(scope=scopes.prefix()),
  "prefix, own": ratio.surrogate(scope=scopes.prefix(own=True)),
  "sequence": ratio.surrogate(scope=scopes.sequence()),
  "sequence, whole": ratio.surrogate(scope=scopes.sequence(own=False)),
  "cispo": ratio.surrogate(mode=modes.cispo()),
  "filtered": ratio.surrogate(mode=modes.filtered(), bounds=bounds.clip(low=0.3, high=5.0)),
  "gmpo": ratio.surrogate(
    scope=scopes.sequence(own=False), bounds=bounds.log_clip(), mode=modes.gmpo(),
    correction=anchors.correction(),
  ),
  "reinforce": ratio.surrogate(mode=modes.reinforce()),
  "sat": ratio.surrogate(bounds=bounds.sat(quantile=0.5)),
  "sat, sequence": ratio.surrogate(bounds=bounds.sat(quantile=0.5), scope=scopes.sequence()),
  "decoupled": ratio.surrogate(
    anchor=anchors.proximal(), correction=anchors.correction(cap=1.1, limit=anchors.drop)
  ),
  "decoupled, product": ratio.surrogate(
    anchor=anchors.proximal(), correction=anchors.correction(level=anchors.product)
  ),
  "teacher": ratio.surrogate(anchor=anchors.teacher_mixture()),
  "veto": ratio.surrogate(veto=veto.stale_suffix(low=0.5)),
  "kl": kl.in_loss(base=ratio.clipped(), coefficient=0.1),
}  # fmt: skip
AGGREGATES = toy.factories(
  aggregate,
  variants={
    "token_mean": [{"over": aggregate.every}, {"over": aggregate.kept}],
    "sequence_mean_token_mean": [{"over": aggregate.every}],
    "sequence_mean_token_sum": [{"norm": 10.0}],
  },
)


@functools.cache
def compiled(name):
  """loss(stats, rows, advantage) and gradient(rows, stats, advantage) of an objective."""
  loss = lambda stats, rows, advantage: OBJECTIVES[name].loss(stats, rows, advantage, {})
  total = lambda x, rows, advantage: loss(TokenStats(x), rows, advantage)[0].sum()
  return jax.jit(loss), jax.jit(jax.grad(total))


@pytest.fixture(params=OBJECTIVES)
def name(request):
  return request.param


def sample(seed, shift=0.3):
  """Rows, stats that are off policy by about `shift`, and advantages."""
  rows = toy.random_rows(seed)
  noise = jax.random.normal(jax.random.key(seed), (5, *rows.tokens.shape))
  logprobs = {f"{k}_logprobs": rows.full_logprobs + shift * x for k, x in zip(OTHERS, noise[2:])}
  rows = rows.replace(extras=logprobs | {"staleness": jnp.full(8, 0.2, jnp.float32)})
  stats = TokenStats(rows.full_logprobs + shift * noise[0])
  advantage = noise[1, :, :1] + jnp.zeros_like(
    noise[1]
  )  # of the row: a ratio may be over all of it
  return rows, stats, jnp.where(rows.loss_mask, advantage, 0.0)


OTHERS = ("old", "reference", "teacher")


def soiled(rows, bad):
  extras = {k: jnp.where(rows.loss_mask, v, bad) for k, v in rows.extras.items() if v.ndim == 2}
  return toy.soiled(rows, bad).replace(extras=rows.extras | extras)


def loss_of(name, stats, rows, advantage):
  return compiled(name)[0](stats, rows, advantage)


def gradient(name, rows, stats, advantage):
  return compiled(name)[1](stats.logprobs, rows, advantage)


def test_on_policy_the_gradient_is_the_policy_gradient(name):
  if not OBJECTIVES[name].needs_advantage:
    pytest.skip("has a loss of its own")
  rows, stats, advantage = sample(0, shift=0.0)
  got = gradient(name, rows, stats, advantage)
  if name == "prefix":  # every token moves the weights behind it: only the sum is the same
    got, advantage = got.sum(1), advantage.sum(1)
  np.testing.assert_allclose(got, -advantage, rtol=1e-5, atol=1e-6)


def test_T5_T6_nothing_masked_is_seen(name):
  rows, stats, advantage = sample(1)
  loss, metrics = loss_of(name, stats, rows, advantage)
  assert loss.shape == rows.tokens.shape and loss.dtype == jnp.float32
  assert np.isfinite(loss).all() and not loss[~rows.loss_mask].any()
  clean = gradient(name, rows, stats, advantage)
  assert np.isfinite(clean).all() and not clean[~rows.loss_mask].any()
  for bad in (np.nan, np.inf, -np.inf, 200.0, -200.0):
    dirty = lambda x: jnp.where(rows.loss_mask, x, bad)  # noqa: B023
    args = soiled(rows, bad), TokenStats(dirty(stats.logprobs)), dirty(advantage)
    again, more = loss_of(name, args[1], args[0], args[2])
    np.testing.assert_array_equal(again, loss)
    jax.tree.map(np.testing.assert_array_equal, more, metrics)
    np.testing.assert_array_equal(gradient(name, *args), clean)


def test_what_it_says_it_reads_is_what_it_reads(name):
  rows, stats, advantage = sample(2)
  n = int(jnp.argmax(rows.loss_mask.sum(1)))
  mine = np.flatnonzero(rows.loss_mask[n])
  loss = lambda x: loss_of(name, TokenStats(x), rows, advantage)[0][n]
  before, middle = loss(stats.logprobs), mine[1]
  after = loss(stats.logprobs.at[n, middle].add(-1.7))
  changed = [t for t in mine if before[t] != after[t]]
  assert len(mine) > 2 and middle in changed
  allowed = {"token": [middle], "prefix": mine[1:], "row": mine}[OBJECTIVES[name].reads]
  assert set(changed) <= set(allowed)


def test_200_nats_off_policy_stay_finite(name):
  for shift in (200.0, -200.0):
    rows, stats, advantage = sample(2)
    far = TokenStats(stats.logprobs + shift)
    out = loss_of(name, far, rows, advantage), gradient(name, rows, far, advantage)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(out))


def test_a_row_depends_on_itself_alone(name):
  rows, stats, advantage = sample(2)
  whole, _ = loss_of(name, stats, rows, advantage)
  for n in range(0, len(rows.valid), 2):
    order = [n] * len(rows.valid)  # of the same shape: nothing compiles again
    one = toy.take((stats, rows, advantage), order)
    np.testing.assert_allclose(loss_of(name, *one)[0][0], whole[n], rtol=1e-6)


def test_without_advantage_there_is_nothing_to_learn(name):
  if not OBJECTIVES[name].needs_advantage:
    pytest.skip("has a loss of its own")
  rows, stats, advantage = sample(3)
  some = advantage.at[:4].set(0.0)
  assert not loss_of(name, stats, rows, some)[0][:4].any()
  assert not gradient(name, rows, stats, some)[:4].any()


def test_metrics_are_numbers_with_declared_names(name):
  rows, stats, advantage = sample(4)
  for batch in (rows, rows.replace(valid=jnp.zeros(8, bool))):
    loss, metrics = loss_of(name, stats, batch, advantage)
    for metric, value in metrics.items():
      names.find(metric)
      assert value.shape == () and value.dtype == jnp.float32 and np.isfinite(value), metric
  assert not loss.any()  # of no valid row


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
