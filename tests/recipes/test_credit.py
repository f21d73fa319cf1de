"""What the recipes that change rewards and advantages fill their slots with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage import anchored
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Belief, Candidates, Prompts, Round, plain_table
from rlvr_jax.recipes import v0_5 as v0_5_module
from rlvr_jax.recipes.blockwise import block, blockwise
from rlvr_jax.recipes.dr_grpo import dr_grpo
from rlvr_jax.recipes.fapo import fapo
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.recipes.mc_grpo import mc_grpo
from rlvr_jax.recipes.pvpo import pvpo
from rlvr_jax.recipes.reinforce_pp import reinforce_pp
from rlvr_jax.recipes.remax import remax
from rlvr_jax.recipes.soft_compression import soft_compression
from rlvr_jax.recipes.uniqueness import uniqueness
from rlvr_jax.recipes.v0_5 import look_ahead, v0_5
from tests import toy, toy_run

pytestmark = pytest.mark.usefixtures("compiled_once")

KEY = jax.random.key(0)


def loss_of(recipe, rows, per_token=1.0):
  """The recipe's weights, and its aggregate of a loss of `per_token` on every place."""
  weight = recipe.weigh(KEY, rows, recipe.advantage(rows), {})
  numerator, denominator = recipe.aggregate(jnp.full(rows.tokens.shape, per_token), weight, rows)
  return np.asarray(weight), numerator / denominator, denominator


def test_mc_grpo_drops_one_row_a_group_from_loss_and_denominator():
  masks = [[True, True]] * 3 + [[True, False]] * 3
  rows = toy.rows([0, 0, 0, 5, 5, 5], [1, 0, 0, 0.2, 0.4, 0.9], masks)
  weight, loss, tokens = loss_of(mc_grpo(mc_scale="none"), rows)
  assert loss == 1 and tokens == 2 * 2 + 2
  np.testing.assert_array_equal(weight.any(1), [True, False, True, True, False, True])


def test_dr_grpo_divides_by_a_constant():
  rows = toy.rows([0, 0], [1, 0], [[True, True], [True, False]])
  _, loss, _ = loss_of(dr_grpo(norm=4.0), rows)
  assert loss == pytest.approx((2 / 4 + 1 / 4) / 2)


def test_reinforce_pp_with_and_without_a_baseline():
  rows = toy.rows([0, 0, 1, 1], [1, 0, 1, 1])
  np.testing.assert_allclose(reinforce_pp().advantage(rows)[:, 1], [0.5, -1.5, 0.5, 0.5], rtol=1e-4)
  out = reinforce_pp(baseline=True).advantage(rows)[:, 1]
  np.testing.assert_allclose(out, np.array([0.5, -0.5, 0, 0]) / (0.5 / 3) ** 0.5, rtol=1e-4)
  with pytest.raises(ValueError, match="leave gamma at 1"):
    reinforce_pp(baseline=True, gamma=0.9)


def test_remax_judges_against_the_greedy_row_and_does_not_train_it():
  rows = toy.rows([0, 0, 0, 4, 4], [0.5, 1, 0, 1, 0], temperature=[0, 1, 1, 1, 1])
  recipe = remax()
  # The second group has no greedy row: nothing can be said.
  np.testing.assert_allclose(recipe.advantage(rows)[:, 1], [0, 0.5, -0.5, 0, 0])
  weight, _, _ = loss_of(recipe, rows)
  np.testing.assert_array_equal(weight[:, 1], [0, 1, 1, 1, 1])


def test_remax_rolls_the_first_row_of_each_group_out_greedily():
  run = toy_run.run(remax(), 1)
  rows, table = run.steps[0].rows, run.start.learner.params["table"]
  greedy = np.flatnonzero(rows.temperature == 0)
  assert len(greedy) == toy_run.PROMPTS and set(rows.group[greedy].tolist()) == {0, 1, 2}
  for n in greedy:
    for t in range(rows.response_start[n], rows.length[n]):
      assert rows.tokens[n, t] == table[t - 1, rows.tokens[n, t - 1]].argmax()


C, Q = [1, 1, 1, 0, 0, 0], [0.9, 0.6, 0.8, 0.7, 0.2, 0.1]


def test_blockwise_worked_example_through_the_separator():
  # Prompt, then one to three tokens of solution, then 7 8, the separator, and a number.
  lines = [[1, 7, 8, 5, 0, 0], [1, 2, 7, 8, 5, 0], [1, 2, 3, 7, 8, 5]] * 2
  length = np.array([5, 6, 7] * 2)
  masks = [[t + 1 < n for t in range(6)] for n in length]
  rows = toy.rows(
    [0] * 6, C, masks, tokens=[[7, *line] for line in lines], length=length,
    extras={"reward/confidence": jnp.array(Q, jnp.float32)},
  )  # fmt: skip
  recipe = blockwise(separator=(7, 8))
  second = np.asarray(block(rows, (7, 8)))
  np.testing.assert_array_equal(second[:3], [
    [0, 0, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1]
  ])  # fmt: skip
  expect = np.where(second, np.array([0.06, -0.09, 0.03, -0.31, 0.14, 0.17])[:, None],
                    np.array([0.5, 0.5, 0.5, -0.5, -0.5, -0.5])[:, None])  # fmt: skip
  mask = np.asarray(rows.loss_mask)
  np.testing.assert_allclose(recipe.advantage(rows), np.where(mask, expect, 0), atol=1e-5)
  # Each block is a mean over its tokens: a row with both weighs 2, whatever their lengths.
  weight, loss, num = loss_of(recipe, rows)
  np.testing.assert_allclose(weight.sum(1), 2, rtol=1e-6)
  assert loss == pytest.approx(2) and num == 6
  lost = rows.replace(extras={"reward/confidence": jnp.full(6, jnp.nan)})
  np.testing.assert_array_equal(np.asarray(recipe.advantage(lost))[second == 1], 0)


def test_blockwise_without_a_separator_is_dr_grpo_with_means_of_rows():
  rows = toy.rows([0, 0, 0], [1, 0, 0], [[True, True], [True, False], [True, True]])
  recipe = blockwise()
  np.testing.assert_array_equal(recipe.advantage(rows), grpo(scale=False).advantage(rows))
  weight, loss, _ = loss_of(recipe, rows)
  np.testing.assert_allclose(weight[:, 1:], [[0.5, 0.5], [1, 0], [0.5, 0.5]])
  assert loss == 1
  with pytest.raises(ValueError, match="unknown score 'brierr'; did you mean brier"):
    blockwise(score="brierr")
  q = blockwise(separator=(7,), score="log", baseline="none")
  both = toy.rows([0, 1], [1, 0], tokens=[[1, 7, 7]] * 2,
                  extras={"reward/confidence": jnp.array([1.0, 0.25], jnp.float32)})  # fmt: skip
  np.testing.assert_allclose(q.advantage(both)[:, 1], [np.log(0.999), np.log(0.75)], rtol=1e-4)


def test_uniqueness_and_fapo_without_their_plug_in_are_grpo():
  rows = toy.rows([0] * 4, [1, 0, 0, 0.5])
  a, b = uniqueness(strategy="", ddof=0), grpo()
  np.testing.assert_array_equal(a.advantage(rows), b.advantage(rows))
  np.testing.assert_array_equal(fapo(flaw="").reward(rows, {}), [1, -1, -1, -1])
  shaped = fapo(flaw="", buffer=1).reward(rows, {})  # every row ends at its limit
  np.testing.assert_array_equal(shaped, [0, -2, -2, -2])


def test_soft_compression_has_phases():
  control = soft_compression(accuracy_steps=1, compression_steps=2, temperature=0.5).control
  state, on = control.init(plain_table(3)), []
  for _ in range(5):
    knobs = control.value(state)
    on.append(float(knobs["compression"]))
    assert knobs["temperature"] == 0.5
    state = control.update(state, None)
  assert on == [0, 1, 1, 0, 0]
  endless = soft_compression().control
  assert float(endless.value(endless.init(3))["compression"]) == 1
  with pytest.raises(ValueError, match="steps must be at least 0"):
    soft_compression(accuracy_steps=-1)


def test_pvpo_leaves_out_what_the_reference_solves(tmp_path):
  path = tmp_path / "profile.npz"
  np.savez(path, trials=[8, 8, 8, 4, 0], successes=[0, 1, 8, 4, 0])
  recipe = pvpo(profile=str(path))
  state = recipe.posterior.init(plain_table(5))
  score = recipe.posterior.score(state, KEY, jnp.arange(5), {})
  no = jnp.zeros(5, bool)
  belief = recipe.posterior.belief(state, jnp.arange(5))
  ids = jnp.arange(5, dtype=jnp.int32)
  selection = recipe.select(KEY, Candidates(ids, score, ids, belief, no, no), 4, {})
  assert set(np.asarray(selection.index[selection.valid]).tolist()) == {0, 1, 3, 4}
  # Rather a prompt that is solved than none.
  selection = recipe.select(KEY, Candidates(ids, score, ids, belief, no, no), 5, {})
  assert selection.valid.all()
  np.savez(path, trials=[8])
  with pytest.raises(ValueError, match=r"lacks the arrays \['successes'\]"):
    pvpo(profile=str(path))
  with pytest.raises(ValueError, match="sure"):
    pvpo(sure=0)


def test_v0_5_runs_on_as_long_as_a_rollout_pays():
  """The published run: prior -0.2, it goes on at every k from 4 to 13 and stops at 14."""
  reward = np.array([1, 1, 1, -1, 1, -1, 1, 1, -1, 1, 1, 1, 1, -1], np.float32)
  fuse = jax.jit(anchored.fuse, static_argnames=("low", "high"))
  group, prior = jnp.zeros(14, jnp.int32), jnp.full(14, -0.2, jnp.float32)
  gains = []
  for k in range(4, 15):
    fused = fuse(jnp.asarray(reward), prior, group, jnp.arange(14) < k, low=-1.0, high=1.0)
    gains.append(float(v0_5_module.gain(fused.gap, fused.count)[0]))
  assert all(g > 0.0039 for g in gains[:-1]) and gains[-1] < 0.0039
  np.testing.assert_allclose([gains[-2], gains[-1]], [0.0041, 0.0032], atol=5e-5)
  last = [fused.gap[0], fused.weight[0], fused.baseline[0]]
  np.testing.assert_allclose(last, [0.3237, 0.8192, 0.3149], atol=5e-5)


@pytest.mark.parametrize(("gap", "stop"), [(0.25, 12), (1.0, 15), (4.0, 16)])
def test_v0_5_stops_where_published(gap, stop):
  k = 4
  while v0_5_module.gain(gap, k) > 0.0039 and k < 16:
    k += 1
  assert k == stop


def test_v0_5_buys_rows_for_the_prompts_that_surprise():
  allocator = look_ahead(start=4, chunk=2, cost=0.0039)
  assert allocator.plan(3, 12) == (12,) and allocator.plan(3, 26) == (12, 6, 6)
  with pytest.raises(ValueError, match="start=4 for each of 4 prompts"):
    allocator.plan(4, 15)
  ids = jnp.arange(3, dtype=jnp.int32)
  # Prior 0.55: as observed; 0.4 and three of four; 0.2 and all four, but the prompt is padding.
  mean = jnp.array([0.55, 0.4, 0.2], jnp.float32)
  belief = Belief(mean, mean * 0, mean * 0 + 2)
  prompts = Prompts(ids, ids[:, None], ids, ids, mean, belief, jnp.array([True, True, False]))
  rows = rows_lib.blank(12, 2).replace(
    group=jnp.repeat(ids, 4), valid=jnp.ones(12, bool),
    reward=jnp.array([1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1], jnp.float32),
  )  # fmt: skip
  for wave, expect in ((0, [4, 4, 0]), (1, [0, 2, 0])):
    round = Round(prompts, rows, jnp.asarray(wave, jnp.int32), jnp.zeros((), jnp.int32))
    counts, _ = allocator.next((), round, 12, {})
    np.testing.assert_array_equal(counts, expect)
    assert counts.dtype == jnp.int32
  for args in ({"start": 0}, {"chunk": 0}, {"cost": -1}):
    with pytest.raises(ValueError, match="at least"):
      v0_5(**args)
