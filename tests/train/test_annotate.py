"""Log-probs of other policies against plain Python, and what the learner makes of them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core.types import Learner, Tally, plain_table
from rlvr_jax.keep import weigh
from rlvr_jax.objective import aggregate, anchors, bounds, kl, ratio, scopes
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.annotate import Model, make_annotate
from rlvr_jax.train.learn import make_learn
from tests import toy

VOCAB, N, T = 4, 6, 6
POLICY = toy.table_policy(VOCAB, T)
OWN, OTHER = (POLICY.init(jax.random.key(k)) for k in (0, 1))
SIZES = {"num_rows": N, "num_places": T, "num_prompts": N}


def batch():
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, VOCAB, (N, T))
  tokens[:, 0] = 1
  logprobs = toy.logprobs(OWN, tokens)
  return toy.rows(
    [0, 0, 0, 1, 1, 1], [1, 0, 0, 1, 1, 1], [[True] * 5] * 5 + [[True, True, False, False, False]],
    tokens=tokens, full_logprobs=logprobs + 0.1 * rng.normal(size=(N, T)), version=np.zeros((N, T)),
  )  # fmt: skip


def learner(recipe, optimizer):
  params = jax.tree.map(jnp.copy, OWN)
  zeros = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)  # two arrays: both are donated
  return Learner(params, optimizer.init(params), recipe.control.init(plain_table(N)), *zeros)


def step(recipe, rows, models=None):
  """(updated table, metrics, booked) after one update by plain descent."""
  optimizer = optax.sgd(1.0)
  annotate = make_annotate(POLICY, recipe, models or {}, num_rows=N, num_places=T)
  learn = make_learn(POLICY, recipe, optimizer, **SIZES)
  z = jnp.zeros(N, jnp.float32)
  tally = Tally(z, z, jnp.zeros(N, jnp.int32), jnp.zeros(N, jnp.int32))
  new, metrics, booked = learn(
    learner(recipe, optimizer), annotate(OWN, rows), tally, jnp.int32(0), jax.random.key(0)
  )
  return np.asarray(new.params["table"]), metrics, booked


def test_log_probs_and_the_survey_of_the_batch():
  rows = batch()
  sat = ratio.surrogate(bounds=bounds.sat(quantile=1.0))
  recipe = grpo()._replace(objective=sat, annotate=("old", "teacher"))
  teacher = {"teacher": Model(POLICY, OTHER)}
  out = make_annotate(POLICY, recipe, teacher, num_rows=N, num_places=T)(OWN, rows)
  for name, params in (("old", OWN), ("teacher", OTHER)):
    expect = np.where(rows.loss_mask, toy.logprobs(params, rows.tokens), 0)
    np.testing.assert_allclose(out.extras[f"{name}_logprobs"], expect, atol=1e-5)
  stale = np.abs(np.where(rows.loss_mask, toy.logprobs(OWN, rows.tokens) - rows.full_logprobs, 0))
  np.testing.assert_allclose(out.extras["staleness"], stale.max(), rtol=1e-4)


def test_a_model_that_is_not_there():
  recipe = grpo()._replace(annotate=("teacher",))
  with pytest.raises(ValueError, match="log-probs of the model 'teacher': say which it is"):
    make_annotate(POLICY, recipe, {"teachre": Model(POLICY, OTHER)}, num_rows=N, num_places=T)
  wide = toy.table_policy(VOCAB + 1, T)
  with pytest.raises(ValueError, match="vocabulary of 5 tokens, the policy one of 4"):
    make_annotate(POLICY, recipe, {"teacher": Model(wide, OTHER)}, num_rows=N, num_places=T)
  rows = batch()
  assert make_annotate(POLICY, grpo(), {}, num_rows=N, num_places=T)(OWN, rows) is rows


def by_hand(objective, rows, advantage, weight, combine):
  """The table after one step by plain autodiff over unpacked rows."""
  from rlvr_jax.core.types import TokenStats

  def loss(params):
    stats = TokenStats(toy.logprobs(params, rows.tokens))
    per_token, _ = objective.loss(stats, rows, advantage, {})
    numerator, denominator = combine(per_token, weight, rows)
    return numerator / denominator

  return np.asarray(OWN["table"] - jax.grad(loss)(OWN)["table"])


def test_the_learner_trains_on_what_was_stored():
  """Old and reference log-probs reach the loss, of rows without advantage too."""
  rows = batch()
  objective = kl.in_loss(
    base=ratio.surrogate(anchor=anchors.proximal(), correction=anchors.correction(cap=1.1)),
    coefficient=0.5,
  )
  recipe = grpo()._replace(objective=objective, annotate=objective.needs)
  got, metrics, _ = step(recipe, rows, {"reference": Model(POLICY, OTHER)})
  extras = {
    f"{k}_logprobs": toy.logprobs(p, rows.tokens) for k, p in (("old", OWN), ("reference", OTHER))
  }
  stored = rows.replace(extras=extras)
  ones = rows.loss_mask.astype(jnp.float32)
  expect = by_hand(objective, stored, recipe.advantage(rows), ones, recipe.aggregate)
  np.testing.assert_allclose(got, expect, atol=1e-5)
  assert metrics["policy/kl_ref"] > 0.01


@pytest.mark.parametrize(
  ("scope", "share"), [(scopes.token, 0.5), (scopes.prefix, 0.5), (scopes.sequence, 1.0)]
)
def test_what_is_computed_of_a_row(scope, share):
  """A weight of 0 behind the second token: the learner runs what the loss reads, and loses nothing."""
  rows = batch()
  cut = lambda key, rows, advantage, knobs: rows.loss_mask * (jnp.arange(T) < 3)[None] * 1.0
  recipe = grpo()._replace(
    weigh=cut,
    objective=ratio.surrogate(scope=scope()),
    aggregate=aggregate.token_mean(over=aggregate.every),
  )
  got, metrics, booked = step(recipe, rows)
  weight = cut(None, rows, None, {})
  expect = by_hand(recipe.objective, rows, recipe.advantage(rows), weight, recipe.aggregate)
  np.testing.assert_allclose(got, expect, atol=1e-5)
  # Three rows have an advantage (the other group is solved); they share the token they begin with.
  inputs = {
    tuple(r[:t])
    for r in np.asarray(rows.tokens)[:3].tolist()
    for t in range(1, 3 if share < 1 else T)
  }
  assert booked["computed"] == len(inputs)
  assert metrics["mismatch/logp_diff_max"] < 1.0  # of tokens that were computed only


def test_random_prefixes_shorten_the_work():
  rows = batch().replace(reward=jnp.arange(6, dtype=jnp.float32))
  full = step(grpo(), rows)[2]["computed"]
  recipe = grpo()._replace(
    weigh=weigh.random_prefix(minimum=0.2), aggregate=aggregate.token_mean(over=aggregate.every)
  )
  part = step(recipe, rows)[2]
  assert 0 < part["computed"] < full and part["trained"].sum() < 27


def test_models_may_wait_in_host_memory():
  rows = batch()
  sizes = {"num_rows": N, "num_places": T}
  recipe = grpo()._replace(annotate=("teacher",))
  expect = make_annotate(POLICY, recipe, {"teacher": Model(POLICY, OTHER)}, **sizes)(OWN, rows)
  copy = jax.tree.map(lambda x: jnp.array(x, copy=True), OTHER)
  annotate = make_annotate(POLICY, recipe, {"teacher": Model(POLICY, copy)}, **sizes, offload=True)
  jax.tree.map(lambda x: x.delete(), copy)  # nothing on the device is needed any more
  np.testing.assert_array_equal(
    annotate(OWN, rows).extras["teacher_logprobs"], expect.extras["teacher_logprobs"]
  )
