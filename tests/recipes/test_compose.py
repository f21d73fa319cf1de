"""Recipes by name with slots filled in another way, and the list of recipes."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Recipe, TokenStats
from rlvr_jax.recipes import RECIPES, __main__
from rlvr_jax.recipes.compose import SLOTS, compose, fill, functions
from tests import toy

ROWS = toy.rows([0] * 4, [1.0, 0.0, 0.0, 0.5])


def test_a_name_is_the_recipe():
  np.testing.assert_allclose(
    compose("grpo", {"ddof": 1}).advantage(ROWS)[:, 1],
    [1.30558, -0.78335, -0.78335, 0.26112], atol=1e-5,
  )  # fmt: skip


@pytest.mark.parametrize(
  "text", ["group_mean(scale=False)", "rlvr_jax.advantage.group:group_mean(scale=False)"]
)
def test_a_slot_is_filled(text):
  recipe = compose("dapo", slots={"advantage": text})
  np.testing.assert_allclose(recipe.advantage(ROWS)[:, 1], [0.625, -0.375, -0.375, 0.125])
  assert recipe.refill.rounds == 4  # the rest is as it was


def test_choices_within_a_slot():
  text = "surrogate(scope=prefix(own=True), bounds=sat(quantile=0.9, kernel=gaussian, floor=.2))"
  recipe = compose("grpo", slots={"objective": text})
  assert recipe.objective.reads == "prefix" and recipe.annotate == ("old",)
  text = "in_loss(base=clipped(high=0.28), coefficient=0.01, estimate=k2)"
  recipe = compose("rlad", slots={"objective": text})
  assert recipe.objective.needs == ("reference",)
  assert recipe.annotate == ("teacher", "reference")
  recipe = compose("grpo", slots={"weigh": "top_tokens", "aggregate": "token_mean(over=kept)"})
  assert recipe.weigh.denominator == recipe.aggregate.denominator == "kept"
  assert compose("grpo", slots={"refill": "Refill(rounds=3)"}).refill.rounds == 3


@pytest.mark.parametrize("name", ["grpo", "cispo", "rlad"])
def test_a_kl_term_is_added_to_any_objective(name):
  """log pi is 0.5 above the reference in every token: corrected k3 is exp(-0.5) - 0.5 there."""
  recipe, plain = compose(name, kl_coef=0.1), compose(name)
  assert recipe.annotate == (*plain.annotate, "reference")
  logprobs = ROWS.full_logprobs
  extras = {"reference_logprobs": logprobs - 0.5, "teacher_logprobs": logprobs}
  rows, stats = ROWS.replace(extras=extras), TokenStats(logprobs, jnp.zeros_like(logprobs))
  advantage = recipe.advantage(rows)
  loss, without = (r.objective.loss(stats, rows, advantage, {})[0] for r in (recipe, plain))
  np.testing.assert_allclose((loss - without)[:, 1], 0.1 * (np.exp(-0.5) - 0.5), rtol=1e-5)
  with pytest.raises(ValueError, match="at least 0"):
    compose(name, kl_coef=-0.1)


def test_every_slot_has_functions():
  for slot in SLOTS:
    assert slot in Recipe._fields and functions(slot), slot
  assert {"group_mean"} <= set(functions("advantage"))
  assert not any(name.startswith("_") for name in functions("objective"))


@pytest.mark.parametrize(
  ("name", "slots", "message"),
  [
    ("grpo", {"advantages": "group_mean"}, "unknown slot 'advantages'; did you mean advantage"),
    (
      "grpo",
      {"advantage": "group_maen"},
      "unknown advantage 'group_maen'; did you mean group_mean",
    ),
    ("grpo", {"advantage": "group_mean(scal=True)"}, "'scal'; did you mean scale"),
    ("grpo", {"advantage": "group_mean("}, "is not an expression"),
    ("grpo", {"advantage": "1 + 1"}, "must be the name of a function"),
    ("grpo", {"advantage": "group_mean(True)"}, "give the arguments of group_mean by name"),
    ("grpo", {"advantage": "group_mean(ddof=1+x)"}, "cannot read"),
    ("grpo", {"advantage": "no_such_module:f"}, "cannot load"),
    ("nat_rpc", {"objective": "surrogate(scope=sequence())"}, "needs every token"),
    ("nat_urs", {"objective": "surrogate(scope=prefix())"}, "cuts suffixes only"),
    ("gspo", {"weigh": "random_prefix"}, "needs every token"),
    ("grpo", {"weigh": "random_tokens"}, "divided by 'every' tokens, aggregate divides by 'live'"),
    ("grpo", {"control": "constant(beta=1.0)"}, "no knob 'temperature'"),
    ("nat_rpc", {"objective": "surrogate(mode=gmpo(), scope=sequence(own=False))"}, "every token"),
  ],
)
def test_what_does_not_go_together_is_refused(name, slots, message):
  with pytest.raises(ValueError, match=message):
    compose(name, slots=slots)


def test_a_prefix_ratio_goes_with_cut_suffixes():
  recipe = compose("nat_rpc", slots={"objective": "surrogate(scope=prefix())"})
  assert recipe.objective.reads == "prefix" and recipe.weigh.skips == "suffix"


def test_every_recipe_goes_together():
  for name in RECIPES:
    assert isinstance(compose(name), Recipe)


def test_a_function_itself_and_values_of_all_kinds():
  weigh = fill("weigh", "sure_steps(separators=(3, 4), think_end=-1, confidence=steadiness)")
  rows = toy.rows(tokens=[[0, 3, 4, 1, 1]], full_logprobs=-np.ones((1, 5)), correct=[1])
  assert weigh(None, rows, None, {}).shape == (1, 5)
  assert jnp.isfinite(weigh(None, rows, None, {})).all()


def test_the_list_of_recipes():
  lines = __main__.main([]).splitlines()
  assert len(lines) == 1 + len(RECIPES)
  row = next(line for line in lines if line.startswith("nat_rpc"))
  for part in ("arXiv 2603.06619", "optimise", "weigh aggregate", "notes"):
    assert part in row
  assert "minimum" not in row
  text = __main__.main(["sas"])
  assert "Step-level Advantage Selection" in text.replace("Step-Level", "Step-level")
  with pytest.raises(ValueError, match="unknown recipe 'saz'"):
    __main__.main(["saz"])


@pytest.mark.parametrize(
  ("slot", "text", "match"),
  [
    (
      "posterior",
      "beta",
      "makes a BeliefModel, not the slot.s PromptPosterior; a belief model needs",
    ),
    ("posterior", "variance", "not the slot.s PromptPosterior"),
    ("allocate", "contrast", "not the slot.s Allocator"),
    ("objective", "ppo", "not the slot.s Objective"),
    ("refill", "Condition", "not the slot.s Refill"),
    ("refill", "Refill(rounds=0)", "at least 1 round"),
    ("rollout", "schedule", "not a function"),
    ("control", "constant(temperature=-1.0)", "temperature must be positive"),
    ("weigh", "max_variance(within=random_prefix())", "divided by 'every' token"),
  ],
)
def test_what_does_not_belong_in_a_slot(slot, text, match):
  with pytest.raises(ValueError, match=match):
    compose("dps", {}, {slot: text})
