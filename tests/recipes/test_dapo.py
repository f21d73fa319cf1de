"""DAPO against GRPO, and what dynamic sampling does when nothing can be learned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.types import TokenStats
from rlvr_jax.recipes.dapo import dapo
from rlvr_jax.recipes.grpo import grpo
from tests import toy, toy_run

pytestmark = pytest.mark.usefixtures("compiled_once")


def test_clips_higher():
  rows = toy.rows(masks=[[True], [True]])
  stats = TokenStats(jnp.log(jnp.array([[1.0, 2.0], [1.0, 0.5]])))
  advantage = jnp.array([[0.0, 1.0], [0.0, -1.0]])
  loss = lambda recipe: recipe.objective.loss(stats, rows, advantage, {})[0][:, 1]
  np.testing.assert_allclose(loss(dapo()), [-1.28, 0.8], rtol=1e-5)
  np.testing.assert_allclose(loss(dapo(clip_low=0.1, clip_high=0.5)), [-1.5, 0.9], rtol=1e-5)


def test_options_of_grpo_pass_through():
  rows = toy.rows([0] * 4, [1.0, 0.0, 0.0, 0.5])
  recipe = dapo(scale=False, temperature=0.5, updates=2)
  np.testing.assert_allclose(recipe.advantage(rows)[:, 1], [0.625, -0.375, -0.375, 0.125])
  assert float(recipe.control.value(())["temperature"]) == 0.5 and recipe.updates == 2


def test_with_mixed_groups_only_and_one_clip_it_is_grpo_bit_for_bit():
  verify = toy_run.alternates
  a = toy_run.run(grpo(updates=2), 3, verify=verify)
  b = toy_run.run(dapo(clip_high=0.2, updates=2), 3, verify=verify)
  jax.tree.map(np.testing.assert_array_equal, a.end, b.end)


def test_T57_rounds_are_capped_when_no_group_is_mixed():
  run = toy_run.run(dapo(rounds=2), 2, verify=toy_run.always_wrong)
  for step in run.steps:
    assert step.metrics["rollout/rounds"] == 2 and not step.rows.valid.any()
    assert step.metrics["group/trained"] == 0 and step.metrics["group/frac_all_0"] == 1
    assert step.tally.drawn.sum() == 2 * toy_run.BUDGET
    assert step.tally.drawn.max() == toy_run.BUDGET // toy_run.PROMPTS  # new prompts each round
  totals = ledger.totals(run.end.ledger)
  assert totals["rejected"] == totals["generated"] > 0
  assert totals["batched"] == totals["trained"] == totals["computed"] == 0
  np.testing.assert_array_equal(run.end.learner.params["table"], run.start.learner.params["table"])
  # What was thrown away still taught the belief: four wrong ones a step, two steps.
  np.testing.assert_array_equal(run.end.collector.posterior.failures, [8] * toy_run.NUM_PROMPTS)


def test_T58_a_round_that_is_short_of_mixed_groups_is_followed_by_another():
  # Prompts 0, 1 and 2 are hopeless.
  verify = lambda ids, texts: [
    v._replace(correct=v.correct * (i > 2)) for i, v in zip(ids, toy_run.alternates(ids, texts))
  ]
  run = toy_run.run(dapo(rounds=2), 4, verify=verify)
  for step in run.steps:
    valid = step.rows.valid
    assert set(step.rows.prompt_id[valid].tolist()) == {3, 4, 5}
    assert valid.all() and step.metrics["group/trained"] == 3
  assert {s.metrics["rollout/rounds"] for s in run.steps} <= {1, 2}
  totals = ledger.totals(run.end.ledger)
  assert totals["rejected"] > 0 and totals["generated"] == totals["batched"] + totals["rejected"]


@pytest.mark.parametrize("rounds", [0, -1])
def test_errors(rounds):
  with pytest.raises(ValueError, match="rounds must be at least 1"):
    dapo(rounds=rounds)
