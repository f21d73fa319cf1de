"""Pieces that do not go together are refused with the reason."""

import jax.numpy as jnp
import pytest

from rlvr_jax.control.constant import constant
from rlvr_jax.core import traits
from rlvr_jax.core.types import Objective
from rlvr_jax.recipes.grpo import grpo


def objective(reads="token", needs=()):
  return Objective(lambda *args: (jnp.zeros(()), {}), True, reads=reads, needs=needs)


def weigh(**given):
  return traits.declare(lambda key, rows, advantage, knobs: advantage, **given)


@pytest.mark.parametrize(
  ("skips", "reads", "fine"),
  [
    ("tokens", "token", True),
    ("tokens", "prefix", False),
    ("tokens", "row", False),
    ("suffix", "token", True),
    ("suffix", "prefix", True),  # what is kept of a row is a prefix
    ("suffix", "row", False),
    (None, "row", True),
  ],
)
def test_tokens_that_are_skipped_and_tokens_that_are_read(skips, reads, fine):
  recipe = grpo()._replace(weigh=weigh(skips=skips), objective=objective(reads))
  if fine:
    assert traits.check(recipe) is recipe
  else:
    with pytest.raises(ValueError, match="weigh leaves"):
      traits.check(recipe)


def test_a_denominator_that_is_not_the_one_asked_for():
  recipe = grpo()._replace(weigh=weigh(denominator="kept"))
  with pytest.raises(ValueError, match="divided by 'kept' tokens, aggregate divides by 'live'"):
    traits.check(recipe)


def test_log_probs_that_nobody_stores():
  recipe = grpo()._replace(objective=objective(needs=("teacher", "old")))
  with pytest.raises(ValueError, match="log-probs of old, teacher"):
    traits.check(recipe)
  traits.check(recipe._replace(annotate=("old", "teacher")))


def test_a_recipe_without_a_temperature():
  with pytest.raises(ValueError, match="no knob 'temperature', only \\['beta'\\]"):
    traits.check(grpo()._replace(control=constant(beta=1.0)))


def test_what_several_pieces_read_and_need():
  pieces = [traits.declare(lambda: 0, reads=reads, needs=needs) for reads, needs in (
    ("token", ("b",)), ("row", ()), ("prefix", ("a", "b")),
  )]  # fmt: skip
  assert traits.widest(pieces) == "row" and traits.widest([len]) == "token"
  assert traits.needs(*pieces, len) == ("b", "a")
