"""Studies: their configs build, and what their tables compute is right."""

import importlib

import numpy as np
import pytest

from experiments.selection import frozen, tables
from experiments.selection.task import PARTS, mixed_difficulty, start_pairs
from experiments.structures import tables as structures
from experiments.structures.hints import wording
from rlvr_jax.core.records import Texts
from rlvr_jax.recipes.compose import compose
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.tasks.arithmetic import arithmetic
from rlvr_jax.train.config import Config


@pytest.mark.parametrize("study", ["credit", "selection", "structures"])
def test_every_run_of_a_sweep_builds(study):
  runs = importlib.import_module(f"experiments.{study}.config").get_sweep()
  assert len(runs) >= 45
  for name, config in runs.items():
    assert isinstance(config, Config), name
    recipe = compose(config.recipe, config.recipe_args, config.slots)
    waves = recipe.allocate.plan(config.prompts, config.budget)
    assert 0 < sum(waves) <= config.budget, name


@pytest.mark.parametrize("study", ["quickstart", "smoke"])
def test_a_config_builds(study):
  config = importlib.import_module(f"experiments.{study}.config").get_config()
  assert compose(config.recipe, config.recipe_args, config.slots)


def test_the_task_has_three_parts():
  task = mixed_difficulty(train_size=30, eval_size=9)
  assert task.sources == tuple(PARTS)
  for examples, each in ((task.train, 10), (task.evals["heldout"], 3)):
    assert [e.source for e in examples].count("learnable") == each == len(examples) // 3
  solved, hopeless = task.train[0], task.train[-1]
  assert isinstance(solved.prompt, str) and isinstance(hopeless.prompt, str) and task.tokenizer
  assert solved.prompt[:-1] == solved.answer and len(solved.answer) == 2
  a, b = hopeless.prompt[:-1].split("*")
  assert int(hopeless.answer) == int(a) * int(b)
  pairs = start_pairs(train_size=30)
  wrong = sum(
    task.tokenizer.decode(answer) != task.tokenizer.decode(prompt)[:-1] for prompt, answer in pairs
  )
  assert len(pairs) == 30 and 10 < wrong <= 27  # products count as wrong here, all ten


def test_hints_of_digits():
  task = arithmetic(operations=["copy"], digits=2, train_size=2, eval_size=0)
  assert task.tokenizer is not None
  example = task.train[0]._replace(prompt="1234=", answer="1234")
  words = wording(Texts([example], task.tokenizer))
  text = task.tokenizer.decode
  assert text(words.ask(0, 2)) == "1234="  # the policy copies the answer
  assert words.read(task.tokenizer.encode("1294"), 2) == [
    "12",
    "1294",
  ]  # its own reply, right or not
  assert words.read([], 2) == [None, None]
  assert text(words.put(0, "12")) == "12=1234="


def test_curves_and_goals():
  rows = [
    {"step": 0, "eval/heldout/pass@1": 0.2, "tokens/generated": 100.0},
    {"step": 1, "tokens/generated": 200.0},
    {"step": 2, "eval/heldout/pass@1": 0.6, "tokens/generated": 300.0},
    {"step": 3, "eval/heldout/pass@1": 0.5},
  ]
  tokens, values = tables.curve(rows, tables.ACCURACY)
  assert tokens.tolist() == [0, 200, 300] and values.tolist() == [0.2, 0.6, 0.5]
  assert tables.reached(tokens, values, 0.4) == pytest.approx(100)
  assert tables.reached(tokens, values, 0.7) == np.inf


def test_structures_are_compared_with_grpo_of_the_same_seed():
  def run(before, after):
    """One update that spends all tokens; accuracy lies on the line between its two evaluations."""
    made = {"tokens/generated": 24_000.0, "tokens/trained": 12_000.0, "policy/lr": 1.0}
    accuracy = structures.ACCURACY
    return [{"step": 0, accuracy: before, **made}, {"step": 1, accuracy: after}]

  runs = {"grpo": {0: run(0.0, 0.3), 1: run(0.3, 0.6)}, "latr": {1: run(0.3, 0.9)}}
  *_, base, latr = structures.table(runs).splitlines()
  assert (
    base == "| grpo | 2 | 0.250 | 0.350 | 0.450 |" + " +0.000 ± 0.000 |" * 2 + " 1 | 24000 | 0.50 |"
  )
  assert latr.startswith("| latr | 1 | 0.500 | 0.700 | 0.900 | +0.200 ± 0.000 | +0.300 ± 0.000 |")


def test_the_frozen_policy_is_what_it_says():
  """Uniform groups of two: the share of mixed groups is the mean of 2 p (1 - p) over the prompts."""
  steps, num = 12, 64
  made, _ = frozen.play(grpo(), num_prompts=num, prompts=num, budget=2 * num, steps=steps, seed=0)
  logits, lengths = frozen.world(num, 0)
  rates = 1 / (1 + np.exp(-(logits[None] + 0.01 * np.arange(steps)[:, None])))
  expected = (2 * rates * (1 - rates)).sum()
  assert all(one["groups"] == num and one["tokens"] == 2 * lengths.sum() for one in made)
  assert abs(sum(one["mixed"] for one in made) - expected) < 4 * np.sqrt(expected)
