"""What the recipes that choose prompts fill their slots with, and simulations with known solve rates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Candidates, Tally, plain_table
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import BetaState, beta
from rlvr_jax.recipes.dapo import dapo
from rlvr_jax.recipes.dps import dps
from rlvr_jax.recipes.greso import greso
from rlvr_jax.recipes.insight import insight
from rlvr_jax.recipes.vade import vade
from rlvr_jax.recipes.vcrl import highest, variance_share, vcrl
from tests import toy

KEY = jax.random.key(0)


def tally(n, k):
  n = jnp.array(n, jnp.float32)
  return Tally(n, jnp.array(k, jnp.float32), n.astype(jnp.int32), n.astype(jnp.int32))


def pick(recipe, state, num, key=KEY, knobs=None, visited=None):
  """The Selection of `num` among all prompts, as a round makes it."""
  m = max(x.shape[-1] for x in jax.tree.leaves(state) if x.ndim)
  ids = jnp.arange(m, dtype=jnp.int32)
  draw, choose = jax.random.split(key)
  score = recipe.posterior.score(state, draw, ids, knobs or {})
  no = jnp.zeros(m, bool)
  these = Candidates(
    ids, score, ids * 0, recipe.posterior.belief(state, ids), no, no if visited is None else visited
  )
  return recipe.select(choose, these, num, knobs or {})


def test_dapo_worked_example():
  rewards = [[1, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 1]], [
    [1, 1, 1, 1], [0, 0, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]
  ]  # fmt: skip
  pool, used = rows_lib.blank(12, 2), (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
  for r, verdicts in enumerate(rewards):
    rows = toy.rows(np.repeat(np.arange(4), 4), np.ravel(verdicts),
                    prompt_id=np.repeat(np.arange(4), 4) + 10 + 4 * r)  # fmt: skip
    chosen = dapo().choose(KEY, rows, {})
    pool, used, _ = rows_lib.append(pool, used, rows, chosen)[:3]
  assert pool.valid.all() and int(used[1]) == 3
  np.testing.assert_array_equal(pool.prompt_id[::4], [11, 13, 15])


def simulate(recipe, steps, *, m=2000, b=128, seed=0):
  """Share of groups of eight that are mixed, in each step: rates drift, all prompts are candidates."""
  rng = np.random.default_rng(seed)
  logit = jnp.array(rng.normal(-1, 5, m), jnp.float32)
  ids = jnp.arange(m, dtype=jnp.int32)

  def step(state, t):
    key = jax.random.fold_in(jax.random.key(seed), t)
    draw = jax.random.fold_in(key, 1)
    i = pick(recipe, state, b, key).index
    k = jax.random.binomial(draw, 8.0, jax.nn.sigmoid(logit[i] + 0.01 * t))
    n = jnp.zeros(m).at[i].set(8.0)
    new = Tally(n, jnp.zeros(m).at[i].set(k), ids, ids)
    return recipe.posterior.update(state, new), ((k > 0) & (k < 8)).mean()

  run = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps)))
  return np.asarray(run(recipe.posterior.init(plain_table(m)))[1])


def test_dps_finds_mixed_groups():
  share = simulate(dps(), 51)
  assert share[0] == pytest.approx(0.38, abs=0.1)
  assert share[20:].mean() == pytest.approx(0.89, abs=0.05)


def test_vade_and_insight_learn_where_groups_are_mixed():
  for recipe in (vade(), insight()):
    share = simulate(recipe, 51)
    assert share[30:].mean() > share[0] + 0.2


def test_greso_keeps_by_streak():
  recipe = greso()
  state = recipe.posterior.init(plain_table(5))
  state = state.replace(streak=jnp.array([0, -3, -1, 1, 20], jnp.int32))
  score = lambda easy, hard: recipe.posterior.score(
    state, KEY, jnp.arange(5), {"keep_easy": jnp.float32(easy), "keep_hard": jnp.float32(hard)}
  )
  np.testing.assert_allclose(score(0.5, 0.5), [1, 0.125, 0.5, 0.5, 0.01], rtol=1e-5)
  np.testing.assert_allclose(score(0.51, 0.51)[:4], [1, 0.132651, 0.51, 0.51], rtol=1e-5)
  np.testing.assert_array_equal(score(1, 1), 1)


def test_vcrl_variance():
  np.testing.assert_allclose(
    variance_share(jnp.array([1.0, 4, 8, 7, 0]), jnp.full(5, 8.0)), [0.4375, 1, 0, 0.4375, 0]
  )
  for n in (2, 3, 8, 17):
    k = jnp.arange(n + 1.0)
    share = np.asarray(variance_share(k, jnp.full(n + 1, float(n))))
    assert share.max() == pytest.approx(1) and share[n // 2] == pytest.approx(1)
    np.testing.assert_allclose(share, share[::-1], atol=1e-6)
  rows = toy.rows([0] * 8 + [1] * 8 + [2] * 8, [1] + [0] * 7 + [1] * 4 + [0] * 4 + [1] * 8)
  kept = lambda least: (
    vcrl().choose(KEY, rows, {"least_variance": jnp.float32(least)})[::8].tolist()
  )
  assert kept(0.3) == [True, True, False] and kept(0.8) == [False, True, False]
  assert kept(0.4375) == [True, True, False] and kept(0) == [True] * 3


def test_vcrl_bank():
  recipe = vcrl()
  m = 12
  state = recipe.posterior.init(plain_table(m))
  state = state.replace(
    priority=jnp.zeros(m).at[jnp.array([7, 9, 11])].set(jnp.array([0.8, 0.95, 0.4]))
  )
  n, k = np.zeros(m), np.zeros(m)
  n[1:6], k[1:6] = 8, [1, 4, 8, 7, 0]
  update = jax.jit(recipe.posterior.update)
  state = update(state, tally(n, k))
  np.testing.assert_allclose(state.priority[1:6], [0.4375, 1, 0, 0.4375, 0])
  # Two were dropped: two of the bank are due, 2 with priority 1 and 9.
  assert np.flatnonzero(state.due).tolist() == [2, 9]
  out = pick(recipe, state, 5, visited=jnp.ones(m, bool))
  assert set(out.index[out.valid].tolist()) == {2, 9}
  n, k = np.zeros(m), np.zeros(m)
  n[[2, 9]], k[[2, 9]] = 8, [4, 0]
  state = update(state, tally(n, k))
  assert state.priority[2] == 1 and state.priority[9] == 0  # 9 failed and leaves
  state = update(state.replace(due=state.due.at[2].set(True)), tally(n * (np.arange(m) == 2), k))
  assert state.priority[2] == 0 and state.uses[2] == 0  # used twice
  np.testing.assert_array_equal(highest(jnp.array([0.5, 0.9, 0.5, 0, 0.5]), 3), [1, 1, 1, 0, 0])
  np.testing.assert_array_equal(highest(jnp.array([0.5, 0, 0]), 2), [1, 0, 0])
  assert not highest(jnp.array([0.5, 0.1]), 0).any()


def test_beta_means_scored_by_deviations():
  posterior = acquisition.scored(beta(), acquisition.variance(right=0.5, wrong=0.5))
  state = BetaState(jnp.array([0.0, 1, 2, 4]), jnp.array([4.0, 3, 2, 0]))
  mean = posterior.belief(state, jnp.arange(4)).mean
  np.testing.assert_allclose(mean, [0.166667, 0.333333, 0.5, 0.833333], atol=1e-6)
  law = jax.nn.softmax(posterior.score(state, KEY, jnp.arange(4), {}) / 0.1)
  np.testing.assert_allclose(law, [0.121121, 0.325074, 0.432684, 0.121121], atol=1e-5)
