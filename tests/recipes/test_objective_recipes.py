"""Recipes that change the loss: worked numbers, and the limits in which they are GRPO, bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import plain_table
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.asyncwebrl import asyncwebrl, episode_mean
from rlvr_jax.recipes.d3s import d3s
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.recipes.nat import nat_rpc
from rlvr_jax.recipes.sas import sas
from tests import toy, toy_run

pytestmark = pytest.mark.usefixtures("compiled_once")


def episodes():
  """Four episodes of one group, with 3, 5, 12 and 14 steps and rewards 1 1 0 0; a token a step."""
  size = np.array([3, 5, 12, 14])
  episode = np.repeat([7, 1, 30, 12], size)
  extras = {"episode": episode.astype(np.int32), "num_steps": np.repeat(size, size)}
  rows = toy.rows(np.zeros(34, int), np.repeat([1.0, 1, 0, 0], size), extras=extras)
  return rows, size, np.cumsum(size) - size


def test_worked_step_normaliser():
  rows, _, first = episodes()
  a = episode_mean()(rows)[:, 1]
  np.testing.assert_allclose(a[first], [1, 1, -1, -1], atol=1e-5)
  for steps, each, total in (
    (10.0, [0.1, 0.1, -0.1, -0.1], [0.3, 0.5, -1.2, -1.4]),
    (0.0, [0.33333, 0.2, -0.08333, -0.07143], [1, 1, -1, -1]),
  ):
    combine = aggregate.step_mean(steps=steps)
    weight = rows.loss_mask.astype(jnp.float32)
    per_token = jax.grad(lambda x: combine(x, weight, rows)[0])(jnp.zeros((34, 2)))[:, 1] * a  # noqa: B023
    np.testing.assert_allclose(per_token[first], each, atol=1e-5)
    np.testing.assert_allclose(np.add.reduceat(np.asarray(per_token), first), total, atol=1e-4)
    assert combine(jnp.zeros((34, 2)), weight, rows)[1] == 34


def test_one_success_of_eight_episodes():
  rows = toy.rows([0] * 8, [1.0] + [0.0] * 7)
  a = asyncwebrl().advantage(rows)[:, 1]
  np.testing.assert_allclose(a, [np.sqrt(7)] + [-np.sqrt(1 / 7)] * 7, rtol=1e-4)


def test_an_episode_ignores_rows_that_are_not_valid():
  rows, _, first = episodes()
  noise = rows.replace(
    valid=rows.valid.at[first[0]].set(False), reward=rows.reward.at[first[0]].set(9.0)
  )
  a = episode_mean()(noise)
  assert not a[first[0]].any() and float(a[first[0] + 1, 1]) == pytest.approx(1, abs=1e-5)


def test_shares_of_d3s_grow():
  recipe = d3s(ramp_steps=5)
  state = recipe.control.init(plain_table(3))
  for rows, tokens in (
    (0.25, 0.2),
    (0.3, 0.26),
    (0.35, 0.32),
    (0.4, 0.38),
    (0.45, 0.44),
    (0.5, 0.5),
  ):
    knobs = recipe.control.value(state)
    assert float(knobs["rows_share"]) == pytest.approx(rows)
    assert float(knobs["tokens_share"]) == pytest.approx(tokens)
    state = recipe.control.update(state, None)
  knobs = recipe.control.value(recipe.control.update(state, None))
  assert float(knobs["rows_share"]) == pytest.approx(0.5)  # and no further
  assert float(knobs["temperature"]) == 1
  with pytest.raises(ValueError, match="shares of rows"):
    d3s(rows_start=0.0)
  with pytest.raises(ValueError, match="ramp_steps"):
    d3s(ramp_steps=0)


@functools.cache
def plain():
  """Every row has an advantage, so that all denominators are the same."""
  return toy_run.run(grpo(), 2, verify=toy_run.alternates)


@pytest.mark.parametrize(
  "recipe",
  [
    nat_rpc(minimum=1.0),
    sas(ratio=0.0, kl_coefficient=0.0),
    d3s(rows_start=1.0, rows_end=1.0, tokens_start=1.0, tokens_end=1.0),
  ],
)
def test_with_nothing_left_out_it_is_grpo_bit_for_bit(recipe):
  a, b = plain(), toy_run.run(recipe, 2, verify=toy_run.alternates)
  jax.tree.map(np.testing.assert_array_equal, a.end.learner.params, b.end.learner.params)
  jax.tree.map(np.testing.assert_array_equal, a.end.ledger, b.end.ledger)
