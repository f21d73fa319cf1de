"""Weights of tokens: worked numbers, and the unbiasedness of random ones by listing every draw."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.keep import steps, weigh
from rlvr_jax.objective import aggregate
from tests import toy

KEY = jax.random.key(0)
LOSS = np.array([0.5, -0.2, 0.3, 0.1, -0.4, 0.6])
ROW = toy.rows(masks=[[True] * 6])
MEAN = aggregate.sequence_mean_token_mean(over=aggregate.every)


def mean(weight, rows=ROW, loss=LOSS):
  padded = jnp.asarray(np.concatenate([[9.0], loss])[None], jnp.float32)
  numerator, denominator = MEAN(padded, jnp.asarray(weight, jnp.float32), rows)
  return float(numerator / denominator)


def draws(make, number=300):
  """The different weights [draws,T] that keys give to a row, and how often."""
  run = jax.jit(jax.vmap(lambda key: make(key, ROW, jnp.ones((1, 7)), {})[0]))
  return np.unique(np.asarray(run(jax.random.split(KEY, number))), axis=0, return_counts=True)


def test_worked_random_prefix():
  # C = ceil(0.3 * 6) = 2: five cuts, equally likely.
  weights, counts = draws(weigh.random_prefix(minimum=0.3))
  assert len(weights) == 5 and counts.min() > 30
  by_cut = {int((w > 0).sum()): w for w in weights}
  assert sorted(by_cut) == [2, 3, 4, 5, 6]
  np.testing.assert_allclose(by_cut[4][1:], [1, 1, 1.25, 1.66667, 0, 0], atol=1e-5)
  assert mean(by_cut[4][None]) == pytest.approx(0.14028, abs=1e-5)
  estimates = [mean(w[None]) for w in by_cut.values()]
  assert np.mean(estimates) == pytest.approx(LOSS.mean(), abs=1e-6) == pytest.approx(0.15)
  kept = np.mean([(w > 0).sum() for w in by_cut.values()]) / 6
  assert kept == pytest.approx(0.66667, abs=1e-5)


def test_random_prefix_that_is_sometimes_whole():
  weights, _ = draws(weigh.random_prefix(minimum=0.3, full=0.25))
  by_cut = {int((w > 0).sum()): w for w in weights}
  chance = [1, 1, 0.85, 0.7, 0.55, 0.4]
  np.testing.assert_allclose(1 / by_cut[6][1:], chance, rtol=1e-5)
  law = {cut: 0.75 / 5 + (0.25 if cut == 6 else 0) for cut in by_cut}
  total = sum(law[cut] * mean(w[None]) for cut, w in by_cut.items())
  assert total == pytest.approx(LOSS.mean(), abs=1e-6)


def test_random_prefix_counts_trained_tokens_only():
  rows = toy.rows(masks=[[True, False, True, True, False]], valid=[True])
  out = np.asarray(weigh.random_prefix(minimum=0.5)(KEY, rows, None, {}))[0]
  assert not out[[0, 2, 5]].any() and (out[[1, 3]] == 1).all()  # ceil(1.5) are always kept


def test_worked_random_tokens():
  np.testing.assert_allclose(mean([[0, 2, 0, 0, 2, 2, 0]]), 0.06667, atol=1e-5)
  weights, _ = draws(weigh.random_tokens(keep=0.5), 1500)
  assert len(weights) == 64 and set(np.unique(weights)) == {0.0, 2.0}
  estimates = [mean(w[None]) for w in weights]  # all masks, equally likely
  assert np.mean(estimates) == pytest.approx(LOSS.mean(), abs=1e-6)
  # A row of which nothing is kept still counts in the denominator.
  assert MEAN(jnp.ones((1, 7)), jnp.zeros((1, 7)), ROW) == (0, 1)


def test_limits_of_the_random_weights_are_all_tokens():
  rows = toy.random_rows(0)
  everything = weigh.all_tokens()(KEY, rows, None, {})
  for make in (weigh.random_tokens(keep=1.0), weigh.random_prefix(minimum=1.0),
               weigh.random_prefix(full=1.0)):  # fmt: skip
    np.testing.assert_array_equal(make(KEY, rows, None, {}), everything)


def spread(values):
  return jnp.pad(jnp.asarray(values, jnp.float32)[:, None], ((0, 0), (1, 0)))


VARIED = jax.jit(weigh.max_variance(share=lambda knobs: knobs["share"]))


def chosen(a, share):
  rows = toy.rows(masks=[[True]] * len(a))
  out = VARIED(KEY, rows, spread(a), {"share": jnp.float32(share)})
  return np.flatnonzero(np.asarray(out)[:, 1]).tolist()


def test_worked_subset_of_largest_variance():
  a = [1.7, -0.6, -0.6, -0.6, 0.9, 0.9, -0.9, -0.9]
  assert np.var(a) == pytest.approx(0.90109, abs=1e-5)
  assert chosen(a, 0.5) == [0, 5, 6, 7]
  assert np.var(np.array(a)[[0, 5, 6, 7]]) == pytest.approx(1.29)
  assert chosen(a, 1.0) == list(range(8))
  assert chosen([0.0] * 4, 0.5) == [2, 3] and chosen(a, 0.01) == [0]


@pytest.mark.parametrize("seed", range(4))
def test_no_subset_varies_more(seed):
  a = np.random.default_rng(seed).normal(size=8).round(1)
  for size in (2, 3, 5, 7):
    best = max(np.var(a[list(s)]) for s in itertools.combinations(range(8), size))
    mine = chosen(a.tolist(), size / 8)
    assert len(mine) == size and np.var(a[mine]) == pytest.approx(best, abs=1e-6)
    assert chosen((3 * a + 1).tolist(), size / 8) == mine


def test_worked_top_tokens():
  rows = toy.rows(masks=[[1, 1, 1], [1, 1, 0]], entropy=[[9, 0.1, 1.2, 0.4], [9, 0.9, 0.2, 9]])
  a = jnp.where(rows.loss_mask, jnp.array([[1.7], [-0.9]]), 0.0)
  run = lambda share: weigh.top_tokens(share=share)(KEY, rows, a, {})
  np.testing.assert_array_equal(run(0.4), [[0, 0, 1, 0], [0, 1, 0, 0]])
  assert run(1e-6).sum() == 1
  np.testing.assert_array_equal(run(1.0), rows.loss_mask)
  # Within the rows of another weigh, and at a share that the knobs say.
  one = lambda key, rows, a, knobs: rows.loss_mask * jnp.array([[0.0], [1.0]])
  mine = weigh.top_tokens(share=lambda knobs: knobs["share"], within=one)
  np.testing.assert_array_equal(mine(KEY, rows, a, {"share": 0.5}), [[0] * 4, [0, 1, 0, 0]])


# --------------------------------------------------------------------------------------------------
# Steps

TOKENS = [[5, 1, 7, 1, 7, 1, 7, 1, 1, 8, 2]]  # a prompt token; 7 ends a step, 8 the thinking part
P = [0.9, 0.8, 0.5, 0.4, 0.95, 0.9, 0.3, 0.6, 0.5, 0.7]
STEPS = {"separators": (7,), "think_end": 8}


def thinking(correct):
  return toy.rows([0], [correct], tokens=TOKENS, full_logprobs=np.pad(np.log(P), (1, 0))[None])


def test_worked_steps():
  rows = thinking(1)
  step = steps.step_ids(rows, **STEPS)
  # The example's steps are 0 0 1 1 2 2 3 3 3 and the rest: here "7" ends the first three.
  np.testing.assert_array_equal(step[0], [-1, 0, 0, 1, 1, 2, 2, 3, 3, -1, -1])


def test_worked_selection():
  tokens = [[5, 1, 7, 1, 7, 1, 7, 1, 1, 1, 8]]  # the end of thinking is token 9: step -1
  rows = thinking(1).replace(tokens=jnp.asarray(tokens, jnp.int32))
  x = rows.full_logprobs
  step = steps.step_ids(rows, **STEPS)
  np.testing.assert_array_equal(step[0], [-1, 0, 0, 1, 1, 2, 2, 3, 3, 3, -1])
  sure = steps.mean_logprob(KEY, x, step, 4)[0]
  np.testing.assert_allclose(sure, [-0.16425, -0.80472, -0.07833, -0.80265], atol=1e-5)
  run = lambda correct, **options: np.asarray(
    steps.sure_steps(**STEPS, **options)(
      KEY, rows.replace(correct=jnp.full(1, correct, jnp.float32)), None, {}
    )
  )[0, 1:]
  np.testing.assert_array_equal(run(1.0), [1, 1, 0, 0, 1, 1, 0, 0, 0, 1])
  np.testing.assert_array_equal(run(0.0), [1, 1, 1, 1, 0, 0, 1, 1, 1, 1])
  np.testing.assert_array_equal(run(0.0, wrong=False), [1] * 10)
  np.testing.assert_array_equal(run(1.0, right=False), [1] * 10)
  for correct in (0.0, 1.0):
    np.testing.assert_array_equal(run(correct, ratio=0.0), [1] * 10)
    np.testing.assert_array_equal(run(correct, ratio=1.0), [0] * 9 + [1])
  # The standard deviations are .0589 .1116 .0270 .2851: the least steady steps are 3 and 1.
  by_spread = run(1.0, confidence=steps.steadiness)
  np.testing.assert_array_equal(by_spread, [1, 1, 0, 0, 1, 1, 0, 0, 0, 1])
  assert run(1.0, confidence=steps.shuffled).sum() in (5, 6, 7)  # two steps, of two or three tokens


def test_the_number_of_steps_that_lose_their_credit():
  width = 11
  tokens = np.full((20, width), 7)
  tokens[:, 0] = 5
  for s in range(1, 11):  # s separators, then the end of thinking
    tokens[[s - 1, s + 9], s + 1 if s < 10 else 0] = 8
  mask = np.array([[t <= min(s + 1, 10) for t in range(1, width)] for s in [*range(1, 11)] * 2])
  rows = toy.rows(
    tokens=tokens, masks=mask, correct=[1] * 10 + [0] * 10,
    full_logprobs=-np.random.default_rng(0).random((20, width)),
  )  # fmt: skip
  out = steps.sure_steps(ratio=0.3, separators=(7,), think_end=8)(KEY, rows, None, {})
  lost = np.asarray((rows.loss_mask & (out == 0)).sum(1))
  count = [*range(1, 10), 9]  # of ten tokens without an end the last is not thinking
  ceil = lambda a, b: -(-a // b)
  assert lost[:10].tolist() == [ceil(3 * s, 10) for s in count]
  assert lost[10:].tolist() == [s - ceil(7 * s, 10) for s in count]


def test_late_steps_are_merged():
  rows = toy.rows(tokens=[[5, 7, 7, 7, 7, 7, 8]])
  step = steps.step_ids(rows, separators=(7,), think_end=8, max_steps=3)
  np.testing.assert_array_equal(step[0], [-1, 0, 1, 2, 2, 2, -1])
  plain = steps.step_ids(rows)  # no separators: one step, all but the last token
  np.testing.assert_array_equal(plain[0], [-1, 0, 0, 0, 0, 0, -1])


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: weigh.random_tokens(keep=0.0), "keep must lie"),
    (lambda: weigh.random_prefix(full=2.0), "minimum and full"),
    (lambda: weigh.max_variance(share=0.0), "share must lie"),
    (lambda: weigh.top_tokens(share=1.5), "share must lie"),
    (lambda: steps.sure_steps(ratio=-1.0), "ratio must lie"),
    (lambda: steps.sure_steps(max_steps=0), "max_steps must be"),
  ],
)
def test_errors(make, message):
  with pytest.raises(ValueError, match=message):
    make()
