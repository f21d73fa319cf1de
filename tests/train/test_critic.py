"""Learned baselines on the toy policy, against tables and numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.models import heads
from rlvr_jax.train import critic as lib
from tests import toy

VOCAB, PLACES, N = 3, 5, 6
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = POLICY.init(jax.random.key(0))
SIZES = {"num_rows": N, "num_places": PLACES}


def batch(**fields):
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, VOCAB, (N, PLACES))
  tokens[:, :2] = 1  # one prompt
  reward = (tokens[:, 2] == 0).astype(float)
  masks = np.ones((N, PLACES - 2), bool)
  masks[1, 1] = False
  given = {
    "valid": [True] * 5 + [False], "prompt": 2, "temperature": np.ones(N),
    "entropy": rng.random((N, PLACES)),
  } | fields  # fmt: skip
  return toy.rows([0, 0, 0, 1, 1, 1], reward, masks, tokens=tokens, **given)


@pytest.mark.parametrize(("head", "own"), [(heads.scalar(), False), (heads.categorical(), True)])
def test_values_are_read_before_the_token_and_learn_the_return(head, own):
  critic = heads.critic(POLICY, head, own_trunk=own)
  made = lib.make_critic(critic, optax.adam(0.1), updates=3, **SIZES)
  rows = batch()
  state = made.init(PARAMS)
  kernel = jax.random.normal(jax.random.key(1), state.params["kernel"].shape)
  state = state.replace(params=state.params | {"kernel": kernel})
  seen = made.annotate(state, PARAMS, rows)
  hidden = np.asarray(PARAMS["table"])[np.arange(PLACES)[None], np.asarray(rows.tokens)]
  values = np.asarray(head.value(jnp.asarray(hidden @ np.asarray(kernel))))
  expect = np.where(rows.loss_mask, np.roll(values, 1, axis=1), 0)
  np.testing.assert_allclose(seen.extras["values"], expect, atol=1e-5)
  losses = []
  for _ in range(60):
    seen = made.annotate(state, PARAMS, rows)
    state, metrics = made.update(state, PARAMS, seen)
    losses.append(metrics["critic/loss"])
  assert losses[-1] < losses[0] and metrics["critic/explained"] > 0.1 and state.step == 60
  if own:  # a table can hold the mean return after each token of each place
    values = np.asarray(made.annotate(state, PARAMS, rows).extras["values"])
    tokens, mask = np.asarray(rows.tokens), np.asarray(rows.loss_mask)
    for n, t in np.argwhere(mask):
      same = mask[:, t] & (tokens[:, t - 1] == tokens[n, t - 1])
      assert values[n, t] == pytest.approx(np.asarray(rows.reward)[same].mean(), abs=0.05)


def test_frozen_leaves_stay_and_a_loss_that_is_not_finite_changes_nothing():
  critic = heads.critic(POLICY, heads.scalar(), own_trunk=True, frozen=("table",))
  made = lib.make_critic(critic, optax.adamw(0.1, weight_decay=0.1), updates=2, **SIZES)
  rows, start = batch(), made.init(PARAMS)
  state, _ = made.update(start, PARAMS, made.annotate(start, PARAMS, rows))
  np.testing.assert_array_equal(state.params["trunk"]["table"], PARAMS["table"])
  assert np.asarray(state.params["kernel"]).any()
  # An unscored row is left out, like a padding row.
  lost = jnp.arange(N) == 2
  unscored = rows.replace(reward=jnp.where(lost, jnp.nan, rows.reward))
  without = rows.replace(valid=rows.valid & ~lost)
  a, b = (
    made.update(start, PARAMS, made.annotate(start, PARAMS, r))[0] for r in (unscored, without)
  )
  np.testing.assert_allclose(a.params["kernel"], b.params["kernel"], atol=1e-6)
  broken = made.annotate(start, PARAMS, rows)
  broken = broken.replace(extras={"values": broken.extras["values"].at[0, 2].set(jnp.inf)})
  kept, _ = made.update(start, PARAMS, broken.replace(reward=rows.reward.at[0].set(3e38)))
  for x in jax.tree.leaves(kept.params):
    assert np.isfinite(x).all()


def test_the_probe_reads_hidden_states_and_crosses_targets():
  made = lib.make_probe(POLICY, steps=2, last=2, alpha=0.1, **SIZES)
  rows, state = batch(), made.init(PARAMS)
  seen = made.annotate(state, PARAMS, rows)
  assert np.isnan(seen.extras["prediction"]).all()
  hidden = np.asarray(PARAMS["table"])[np.arange(PLACES)[None], np.asarray(rows.tokens)]
  features = np.asarray(seen.extras["features"])
  for n in range(5):
    np.testing.assert_allclose(features[n, :3], hidden[n, :2].mean(0), atol=1e-5)
    e = np.asarray(rows.entropy)[n][np.asarray(rows.loss_mask)[n]]
    np.testing.assert_allclose(features[n, 6:], [e.mean(), e.std(), e.max()], atol=1e-5)
  state, _ = made.update(state, PARAMS, seen)
  reward = np.asarray(rows.reward)[:5]
  others = [
    reward[[1, 2]].mean(),
    reward[[0, 2]].mean(),
    reward[[0, 1]].mean(),
    reward[4],
    reward[3],
  ]
  np.testing.assert_allclose(state.target[0, :5], others, atol=1e-6)
  np.testing.assert_array_equal(state.used, [[1, 1, 1, 1, 1, 0], [0] * 6])
  prediction = made.annotate(state, PARAMS, rows).extras["prediction"][:5]
  x = features[:5] - features[:5].mean(0)
  sd = features[:5].std(0)
  x = x / np.where(sd > 1e-6, sd, 1)
  w = np.linalg.solve(x.T @ x + 0.1 * np.eye(9), x.T @ (others - np.mean(others)))
  np.testing.assert_allclose(prediction, np.clip(x @ w + np.mean(others), 0, 1), atol=1e-3)
  for _ in range(2):  # the first batch is forgotten
    state, metrics = made.update(state, PARAMS, made.annotate(state, PARAMS, rows))
  assert state.used.sum() == 10 and 0 <= metrics["critic/error"] < 1


def test_a_recipe_names_its_baseline():
  with pytest.raises(ValueError, match="unknown baseline 'critics'; did you mean critic"):
    lib.make_baseline(POLICY, ("critics", {}), **SIZES)
  with pytest.raises(ValueError, match="unknown value head 'quantil'; did you mean quantile"):
    lib.make_baseline(POLICY, ("critic", {"head": "quantil"}), **SIZES)
  made = lib.make_baseline(POLICY, ("critic", {"head": "quantile", "updates": 1}), **SIZES)
  calls = []

  def learn(learner, rows, *rest):
    calls.append((rows.extras["values"].shape, rest))
    return learner, {"a": 1.0}, "booked"

  class Learner:
    params = PARAMS

  out = lib.attach(learn, made)(Learner, made.init(PARAMS), batch(), "tally", "epoch", "key")
  assert calls == [((N, PLACES), ("tally", "epoch", "key"))]
  assert out[0] is Learner and out[1].step == 1 and out[3] == "booked"
  assert set(out[2]) == {"a", "critic/loss", "critic/explained"}
