"""The gains of token value against sums over outcomes, and its split against enumeration."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.allocate import marginal
from rlvr_jax.core.types import Belief, Prompts, Round
from rlvr_jax.posterior import acquisition
from rlvr_jax.recipes.token_value import token_value


def beta_moment(a, b, right, wrong):
  """E p^right (1 - p)^wrong of a Beta law."""
  log = lambda x, y: math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)
  return math.exp(log(a + right, b + wrong) - log(a, b))


def belief(a, b, tokens):
  a, b = np.array(a, np.float32), np.array(b, np.float32)
  n = a + b
  spread = a * b / (n * n * (n + 1))
  return Belief(*(jnp.asarray(x) for x in (a / n, spread, n)), jnp.asarray(tokens, jnp.float32))


def prompts(a, b, tokens):
  num = len(a)
  zeros = jnp.zeros(num, jnp.int32)
  return Prompts(
    zeros, zeros[:, None], zeros, zeros, jnp.ones(num), belief(a, b, tokens), jnp.ones(num, bool)
  )


A, B, TOKENS = [2.0, 1.0, 9.0], [2.0, 1.0, 1.0], [10.0, 30.0, 5.0]


def test_gains_are_chances_that_one_more_differs():
  rows = jnp.broadcast_to(jnp.arange(1, 7, dtype=jnp.float32), (3, 6))
  gains = np.exp(marginal.contrast()(prompts(A, B, TOKENS), {}, rows))
  for i, (a, b) in enumerate(zip(A, B)):
    for j, n in enumerate(range(1, 7)):
      expected = beta_moment(a, b, n, 1) + beta_moment(a, b, 1, n)
      assert gains[i, j] == pytest.approx(expected, rel=1e-4)
  assert (np.diff(gains, axis=1) < 0).all()


def test_the_score_is_the_chance_of_a_mixed_group_a_token():
  score = acquisition.per_token(of=acquisition.mixed(rollouts=4))
  got = score(jax.random.key(0), belief(A, B, TOKENS), {})
  for i, (a, b, t) in enumerate(zip(A, B, TOKENS)):
    expected = 1 - beta_moment(a, b, 4, 0) - beta_moment(a, b, 0, 4)
    assert got[i] == pytest.approx(expected / t, rel=1e-4)


def test_the_split_is_the_best_for_its_tokens():
  these = prompts(A, B, TOKENS)
  recipe = token_value(low=2, high=8)
  width = recipe.allocate.plan(3, 16)[0]
  round = Round(these, None, jnp.int32(0), jnp.int32(0))  # pyright: ignore[reportArgumentType]
  counts, _ = recipe.allocate.next(recipe.allocate.init(these, {}), round, width, {})
  counts = np.asarray(counts)
  value = lambda n: sum(
    1 - beta_moment(a, b, k, 0) - beta_moment(a, b, 0, k) for a, b, k in zip(A, B, n)
  )
  cost = lambda n: float(np.dot(n, TOKENS))
  budget = 0.75 * 16 * np.mean(TOKENS)
  assert counts.sum() <= 16 and cost(counts) <= budget + 1e-3
  splits = [n for n in itertools.product(range(2, 9), repeat=3) if sum(n) <= 16]
  best = max(value(n) for n in splits if cost(n) <= cost(counts) + 1e-6)
  assert value(counts) == pytest.approx(best, rel=1e-5)
  assert value(counts) > value((4, 4, 4)) and cost((4, 4, 4)) <= budget + 1e-3


def test_a_lone_rollout_has_no_contrast():
  with pytest.raises(ValueError, match="at least 2"):
    token_value(rollouts=1)
