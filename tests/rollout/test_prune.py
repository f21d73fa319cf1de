"""Survival on its worked example and by enumeration; pruned rollouts against plain ones."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.control.quality import quality
from rlvr_jax.core import keys, survival
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import KILLED, Feedback, plain_table
from rlvr_jax.decode import reading
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.rollout.linear import linear
from rlvr_jax.rollout.prune import prune
from tests import toy

TILTED, SYSTEMATIC = jax.jit(survival.tilted), jax.jit(survival.systematic)
SCORES = [0.95, 0.88, 0.91, 0.83, 0.72, 0.64, 0.35, 0.12]
RIGHT = [1, 2, 3, 4, 6, 9, 12, 18, 40, 60]
SEEN = [20, 18, 15, 14, 15, 17, 18, 24, 46, 62]
ONE, ALL = jnp.zeros(8, jnp.int32), jnp.ones(8, bool)


def _survive(p, places, share=0.5, active=ALL):
  each = lambda x: jnp.full(8, x, jnp.float32)
  return np.asarray(TILTED(jnp.asarray(p, jnp.float32), ONE, active, each(places), each(share)))


def _draw(s, u, active=ALL):
  return np.asarray(SYSTEMATIC(jnp.asarray(s), ONE, active, jnp.full(8, u, jnp.float32)))


def test_worked_survival():
  p = survival.posterior(jnp.array(RIGHT, jnp.float32), jnp.array(SEEN), jnp.array(SCORES))
  expected = [0.9531, 0.8542, 0.9531, 0.8542, 0.7308, 0.65, 0.3125, 0.15]
  np.testing.assert_allclose(p, expected, atol=6e-5)
  s = _survive(p, 4)
  printed = [0.1566, 0.2558, 0.1566, 0.2558, 0.4715, 0.7036, 1, 1]
  np.testing.assert_allclose(s, printed, atol=2e-4)
  assert (s * p).sum() / s.sum() == pytest.approx(0.5, abs=1e-5)
  assert np.flatnonzero(_draw(s, 0.5)).tolist() == [2, 5, 6, 7]


def test_survival_at_its_edges():
  s = _survive([1, 1, 0, 1, 1, 0, 1, 1], 4)
  np.testing.assert_allclose(s, [1 / 3, 1 / 3, 1, 1 / 3, 1 / 3, 1, 1 / 3, 1 / 3], atol=1e-4)
  np.testing.assert_allclose(_survive([0.3] * 8, 4), 0.5, atol=1e-5)  # nothing to steer by
  # Out of reach: the three lowest, of .9 .9 .9 .1.
  s = _survive([0.9, 0.9, 0.9, 0.1] + [0.0] * 4, 3, active=ALL.at[4:].set(False))
  np.testing.assert_allclose(s, [2 / 3, 2 / 3, 2 / 3, 1, 0, 0, 0, 0], atol=1e-4)
  assert _survive(SCORES, 8).tolist() == [1] * 8 and not _survive(SCORES, 0).any()


def test_as_many_survive_as_there_are_places_each_as_often_as_it_should():
  for places in (1, 3, 4, 7):
    s = _survive(SCORES, places)
    kept = np.array([_draw(s, u) for u in np.arange(500) / 500])
    assert (kept.sum(1) == places).all()
    np.testing.assert_allclose(kept.mean(0), s, atol=5e-3)


VOCAB, PLACES, END, DETECT = 5, 14, 4, 3
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = POLICY.init(jax.random.key(0))
PARAMS = {"table": PARAMS["table"].at[:, :, END].add(-1.0)}


def _roll(how, **more):
  group = jnp.asarray([0] * 8 + [1] * 5 + [1], jnp.int32)
  rows = rows_lib.fresh(
    jnp.array([[0], [1]], jnp.int32),
    jnp.ones(2, jnp.int32),
    group=group,
    valid=jnp.arange(14) < 13,
    uid=keys.row_uids(jax.random.key(2), 0, group, jnp.arange(14)),
    num_places=PLACES,
    max_new_tokens=PLACES - 1,
    temperature=1.0,
  )
  zeros = {"detected": jnp.zeros((14, 8)), "inclusion": jnp.zeros(14)} if more else {}
  return jax.device_get(
    how(
      POLICY, PARAMS, rows.replace(extras=zeros), 1, jnp.array([END]), num_contexts=2,
      prompt_places=1, **more,
    )
  )  # fmt: skip


@functools.cache
def _pruned(acts, keep=0.5):
  know = quality(features=8, warmup=0 if acts else 5).value
  state = quality(features=8).init(plain_table(1))
  return _roll(prune(detect=DETECT, features=8, slots=4, keep=keep), knobs=know(state))


@functools.cache
def _plain():
  return _roll(linear(slots=4))


@pytest.mark.parametrize("acts, keep", [(False, 0.5), (True, 1.0)])
def test_nothing_is_cut_off_in_the_warm_up_or_if_all_are_kept(acts, keep):
  rows, counts = _pruned(acts, keep)
  for name in (*rows_lib.BY_PLACE, "length", "status", "valid"):
    np.testing.assert_array_equal(getattr(rows, name), getattr(_plain()[0], name))
  assert not counts.pruned.any()


def test_survivors_come_out_as_they_would_and_the_others_cost_no_more():
  rows, counts = _pruned(True)
  plain, spent = _plain()
  ended = plain.valid & (plain.length - 1 <= DETECT) & (plain.status != 2)
  cut = plain.valid & ~rows.valid
  assert cut.any() and ended.any() and not (cut & ended).any()
  for g, size in ((0, 8), (1, 5)):
    mine = (rows.group == g) & plain.valid
    assert (rows.valid & mine).sum() == max(-(-size // 2), (ended & mine).sum())
  for name in (*rows_lib.BY_PLACE, "length", "status"):
    np.testing.assert_array_equal(getattr(rows, name)[rows.valid], getattr(plain, name)[rows.valid])
  assert (rows.status[cut] == KILLED).all() and (rows.response_length[cut] == DETECT).all()
  np.testing.assert_array_equal(counts.pruned, np.where(cut, DETECT, 0))
  np.testing.assert_array_equal(counts.generated, np.where(cut, DETECT, spent.generated))
  chance = rows.extras["inclusion"]
  going = rows.valid & ~ended
  assert (chance[going] > 0).all() and not chance[~going].any()
  assert rows.extras["detected"][going].any(1).all()
  assert not rows.extras["detected"][ended].any()


def test_the_head_learns_with_the_weights_of_those_that_were_cut_off():
  control = quality(features=2, width=8, bins=4, decay=0.5, learning_rate=0.05, warmup=2)
  state = control.init(plain_table(1))
  assert not survival.Quality.of_knobs(control.value(state)).acts
  x = jnp.array([[1, 0], [0, 1], [1, 0], [0, 1], [9, 9]], jnp.float32)
  rows = toy.rows(rewards=[1, 0, 1, 1, 0], extras={"detected": x, "inclusion": [1.0, 0.5, 1, 1, 0]})
  none = jnp.zeros((), jnp.int32)
  feed = Feedback(rows, jnp.zeros((5, 2)), jnp.zeros(()), None, none, none)  # pyright: ignore
  update = jax.jit(control.update)
  state = update(state, feed)
  # All scores are 1/2 at first: bin 2.
  np.testing.assert_allclose(state.seen, [0, 0, 5, 0])
  np.testing.assert_allclose(state.right, [0, 0, 3, 0])
  for _ in range(150):
    state = update(state, feed)
  know = survival.Quality.of_knobs(control.value(state))
  score = jax.nn.sigmoid(survival.logit(know.head, x[:2]))
  # The second kind is right with weight 1 of 3.
  np.testing.assert_allclose(score, [1, 1 / 3], atol=0.05)
  assert know.acts and know.seen.sum() == pytest.approx(10, abs=1e-3)


def test_the_hidden_state_of_the_last_token_is_that_of_a_forward_by_itself():
  policy = decoder(tiny(16, num_layers=1, embed_dim=32, mlp_dim=64))
  params = policy.init(jax.random.key(0))
  tokens = jax.random.randint(jax.random.key(1), (11, 70), 0, 16)
  length = jnp.asarray([1, 70, 64, 65, 3, 7, 9, 11, 30, 40, 50], jnp.int32)
  rows = rows_lib.blank(11, 70).replace(tokens=tokens, length=length)
  wanted = jnp.arange(11) != 4
  read = jax.jit(lambda p, r: reading.last_hidden(policy.hidden, policy.init_cache, p, r, wanted))
  got = read(params, rows)
  at = jnp.broadcast_to(jnp.arange(70, dtype=jnp.int32), (11, 70))
  whole, _ = jax.jit(policy.hidden)(
    params, tokens, at, at < length[:, None], policy.init_cache(11, 70)
  )
  expect = np.asarray(whole)[np.arange(11), np.asarray(length) - 1]
  np.testing.assert_allclose(got, np.where(wanted[:, None], expect, 0), atol=1e-5)


def test_numbers_out_of_range_are_refused():
  for wrong in (
    lambda: prune(keep=0.0), lambda: prune(share=2.0), lambda: prune(detect=0)
  ):  # fmt: skip
    with pytest.raises(ValueError, match="need"):
      wrong()
  with pytest.raises(ValueError, match="need decay"):
    quality(decay=0.0)
