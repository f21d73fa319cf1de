"""Steps on shapes alone: recipes that go together pass, and what is missing is named before a run begins."""

import pytest

from launch import dry_run
from rlvr_jax.core.types import plain_table
from rlvr_jax.recipes.compose import compose
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.config import Config
from rlvr_jax.train.rehearse import rehearse
from rlvr_jax.train.rewards import RewardFunction, Scorer
from tests.contract.test_recipe import build

SIZES = {"prompts": 3, "budget": 12, "max_new_tokens": 3, "sources": ("a",)}
judge = lambda completions: [0.0] * len(completions)


# Knobs of sources, of the batch and of a learned head; waves, replay, forks, a critic, two policies.
@pytest.mark.parametrize("name", ["dump", "d3s", "arrol", "vcrl", "april", "spark", "sao", "poise"])
def test_recipes_pass(name):
  rehearse(build(name), plain_table(6), **SIZES)


@pytest.mark.parametrize(
  ("name", "slots", "message"),
  [
    ("grpo", {"select": "by_source()"}, "reads the knob 'source_weights'; control has"),
    ("grpo", {"select": "tests.train.test_rehearse:by_mood"}, r"select reads 'mood'.* \['temper"),
    ("grpo", {"allocate": "binned()"}, "no knob 'prompt_bin'"),
    ("d3s", {"control": "constant(temperature=1.0)"}, "weigh reads '(rows|tokens)_share'"),
    ("greso", {"control": "constant(temperature=1.0)"}, "posterior reads 'keep_"),
    ("gdro_prompt", {"control": "constant(temperature=1.0)"}, "weigh reads 'bin_loss'"),
    ("fapo", {}, "reward/flawed"),
    ("uniqueness", {}, "reward/strategy"),
    ("sao", {"advantage": "poise()"}, "prediction"),
  ],
)
def test_what_is_missing_is_named(name, slots, message):
  with pytest.raises(ValueError, match=message):
    rehearse(compose(name, {}, slots), plain_table(6), **SIZES)


def by_mood():
  return lambda key, candidates, num, knobs: knobs["mood"]


def test_what_feeds_a_controller_is_named():
  recipe = grpo()
  control = recipe.control._replace(update=lambda state, feedback: feedback.rows.extras["mood"])
  with pytest.raises(ValueError, match=r"control reads 'mood'"):
    rehearse(recipe._replace(control=control), plain_table(6), **SIZES)


def test_reward_functions_count():
  with Scorer([RewardFunction("flawed", 0.0, judge)], []) as scorer:
    rehearse(compose("fapo"), plain_table(6), scorer=scorer, **SIZES)


def test_dry_runs_rehearse():
  sizes = {"task_args": {"train_size": 20, "eval_size": 4}, "prompts": 4, "budget": 16}
  with pytest.raises(ValueError, match="reward/flawed"):
    dry_run.budget(Config(recipe="fapo", **sizes))
  config = Config(recipe="fapo", rewards={"rlvr_jax.reward.judges:flawed": 0}, **sizes)
  assert dry_run.budget(config)["rows a round"] == 16
  with pytest.raises(ValueError, match="a reward of its own"):
    dry_run.budget(Config(recipe="fapo", rewards={"correct": 1}, **sizes))
