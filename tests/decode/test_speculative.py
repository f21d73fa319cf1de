"""Drafts on a Markov chain whose laws are known, and on a transformer against rollouts without drafts."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, OPEN
from rlvr_jax.decode.speculative import tolerated, verify
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.rollout.linear import linear
from rlvr_jax.rollout.speculative import speculative
from tests import toy

VOCAB, NEW, NUM, SLOTS = 3, 3, 8192, 16
POLICY = toy.table_policy(VOCAB, 1 + NEW)
OLD_LAW, NEW_LAW = [0.5, 0.3, 0.2], [0.2, 0.5, 0.3]


def _params(first, seed):
  """The first token has the law given, the others one of their own."""
  table = 0.5 * jax.random.normal(jax.random.key(seed), (1 + NEW, VOCAB, VOCAB))
  return {"table": table.at[0].set(jnp.log(jnp.asarray(first, jnp.float32)))}


OLD, NOW = _params(OLD_LAW, 0), _params(NEW_LAW, 1)


def _seeds(key, num=NUM, policy_places=1 + NEW, prompts=((0,),)):
  group = jnp.arange(num, dtype=jnp.int32) % len(prompts)
  return rows_lib.fresh(
    jnp.asarray(prompts, jnp.int32),
    jnp.full(len(prompts), len(prompts[0]), jnp.int32),
    group=group,
    valid=jnp.ones(num, bool),
    uid=keys.row_uids(jax.random.key(key), 0, group, jnp.arange(num)),
    num_places=policy_places,
    max_new_tokens=policy_places - len(prompts[0]),
    temperature=1.0,
  )


def _roll(how, params, rows, *, policy=POLICY, version=1, eos=-1):
  return how(
    policy, params, rows, version, jnp.array([eos]), num_contexts=2,
    prompt_places=int(rows.response_start.max()),
  )  # fmt: skip


def _as_drafts(rows, seeds):
  """`seeds` with the responses of `rows` as drafts."""
  return seeds.replace(
    tokens=rows.tokens, length=rows.length, behavior_logprobs=rows.behavior_logprobs
  )


@functools.cache
def _old():
  return _roll(linear(slots=SLOTS), OLD, _seeds(0), version=0)[0]


@functools.cache
def _again(log_lenience):
  """The rows of the new policy with drafts of the old one; None: coupled."""
  seeds = _seeds(0 if log_lenience is None else 1)
  mode = {"coupled": True} if log_lenience is None else {"log_lenience": log_lenience}
  how = speculative(slots=SLOTS, **mode)
  return jax.device_get(_roll(how, NOW, _as_drafts(_old(), seeds)))


def test_worked_acceptance():
  old = np.array([[0.5, 0.4, 0.9, 0.2, 0.7, 1], [0.6, 0.5, 0.3, 0.8, 1, 1], [0.9] * 6])
  new = [[0.6, 0.3, 0.5, 0.1, 0.8, 1], [0.5, 0.1, 0.4, 0.9, 1, 1], [0.9, 0.8, 0.3, 0.9, 0.9, 0.9]]
  u = [[0.99, 0.95, 0.9, 0.85, 0.5, 1], [0.8, 0.3, 0.1, 0.1, 1, 1], [0.3, 0.95, 0.6, 0.2, 0.9, 0.1]]
  length = np.array([5, 4, 6])

  def cut(b):
    keep = np.array(tolerated(jnp.array(u), jnp.log(jnp.array(new)), jnp.log(jnp.array(old)), b))
    keep &= np.arange(6) < length[:, None]
    return np.cumprod(keep, 1).sum(1).tolist()

  assert cut(0.5) == [3, 4, 2] and cut(0.0) == [1, 1, 1]
  assert cut(np.inf) == [5, 4, 6] and cut(-np.inf) == [0, 0, 0]
  # The probability of acceptance, at its edge: row 0, t = 3, and row 1, t = 1.
  for p, q, accept in ((0.1, 0.2, 0.82436), (0.1, 0.5, 0.32974), (0.3, 0.9, 0.54957)):
    near = [accept - 1e-4, accept + 1e-4]
    got = tolerated(jnp.array(near), jnp.log(jnp.array(p)), jnp.log(jnp.array(q)), 0.5)
    assert got.tolist() == [True, False]


@pytest.mark.parametrize(
  "b, accept, law", [(0.0, 0.7, [0.26, 0.45, 0.29]), (0.5, 0.8297, [0.36380, 0.38513, 0.25108])]
)
def test_the_law_of_one_token_under_lenience(b, accept, law):
  """Printed for one position; the deviations allowed are four standard errors."""
  rows, counts = _again(b)
  assert np.mean(counts.accepted > 0) == pytest.approx(accept, abs=0.021)
  seen = np.bincount(rows.tokens[:, 1], minlength=3) / NUM
  np.testing.assert_allclose(seen, law, atol=0.022)
  assert not np.allclose(seen, NEW_LAW, atol=0.03)


def _chi_square(rows):
  """p-value of whole responses against the chain's own probabilities."""
  every = toy.continuations(VOCAB, NEW)
  whole = np.concatenate([np.zeros((len(every), 1), np.int32), every], 1)
  expected = np.exp(np.asarray(toy.logprobs(NOW, whole), np.float64).sum(1))
  code = rows.tokens[:, 1:] @ VOCAB ** np.arange(NEW)[::-1]
  seen = np.bincount(code, minlength=len(every))
  assert expected.min() * NUM > 5
  return stats.chisquare(seen, expected / expected.sum() * NUM).pvalue


def test_coupled_rows_are_exactly_those_of_the_new_policy():
  rows, counts = _again(None)
  assert 0.3 < counts.accepted.sum() / counts.drafted.sum() < 0.9
  assert _chi_square(rows) > 1e-3
  assert _chi_square(_again(0.0)[0]) < 1e-6  # the test would see it
  plain = jax.device_get(_roll(linear(slots=SLOTS), NOW, _seeds(0))[0])
  for name in (*rows_lib.BY_PLACE, "length", "status"):
    np.testing.assert_allclose(getattr(rows, name), getattr(plain, name), atol=1e-5)


def test_all_of_a_row_speaks_of_the_policy_of_now():
  rows, counts = _again(0.5)
  some = counts.accepted[:64]
  assert 0 < some.sum() < 64 * NEW
  np.testing.assert_array_equal(counts.generated, NEW - counts.accepted)
  np.testing.assert_array_equal(counts.drafted, NEW)
  np.testing.assert_allclose(
    rows.full_logprobs[:64], toy.logprobs(NOW, rows.tokens[:64]), atol=1e-5
  )
  np.testing.assert_array_equal(rows.full_logprobs, rows.behavior_logprobs)
  assert (rows.version[:, 1:] == 1).all() and rows.response_mask[:, 1:].all()
  kept = np.arange(1 + NEW) < 1 + counts.accepted[:, None]
  np.testing.assert_array_equal(rows.tokens[kept], np.asarray(_old().tokens)[kept])


def test_more_lenience_keeps_more_and_each_step_has_numbers_of_its_own():
  drafts = _as_drafts(_old(), _seeds(1))
  count = lambda b, version: verify(
    POLICY, NOW, drafts, version=version, eos_ids=jnp.array([-1]), log_lenience=b
  )[1].accepted  # fmt: skip
  kept = [count(b, 1) for b in (-np.inf, 0.0, 0.5, np.inf)]
  assert not kept[0].any() and (kept[-1] == NEW).all()
  for less, more in itertools.pairwise(kept):
    assert (less <= more).all() and (less < more).any()
  assert (count(0.0, 2) != kept[1]).any()
  same = verify(POLICY, OLD, drafts, version=1, eos_ids=jnp.array([-1]), log_lenience=0.0)[1]
  assert (same.accepted == NEW).all()


def test_what_cannot_be_a_draft_is_refused():
  drafts = _as_drafts(_old(), _seeds(1))
  ask = lambda rows: verify(POLICY, NOW, rows, version=1, eos_ids=jnp.array([-1]))
  with pytest.raises(ValueError, match="2 tokens more than its row may get: raise max_new_tokens"):
    ask(drafts.replace(limit=drafts.limit - 2))
  strange = drafts.tokens.at[:2, 2].set(VOCAB)
  with pytest.raises(ValueError, match="2 drafts have tokens outside"):
    ask(drafts.replace(tokens=strange))
  # In a prompt that has no draft it is decode's business.
  closed = drafts.replace(tokens=strange, status=jnp.full(NUM, EOS, jnp.int32))
  rows, seen = ask(closed)
  assert not seen.drafted.any() and (rows.status != OPEN).all()


def test_on_a_transformer_rows_come_out_as_without_drafts():
  """Eleven rows, two prompts, end tokens, truncated laws: kept, cut and rejected drafts, and none at all."""
  policy = decoder(tiny(16, num_layers=1, embed_dim=32, mlp_dim=64))
  old = policy.init(jax.random.key(0))
  now = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(1), x.shape), old)
  seeds = _seeds(0, 11, 14, ((1, 2, 3), (4, 5, 6)))
  roll = functools.partial(_roll, policy=policy, eos=7)
  drafts, _ = roll(linear(top_p=0.9, slots=4), old, seeds)
  first = jnp.arange(11) < 9
  pick = lambda a, b: jnp.where(first.reshape(-1, *[1] * (a.ndim - 1)), a, b)
  mixed = jax.tree.map(pick, _as_drafts(drafts, seeds), seeds)
  how = speculative(coupled=True, top_p=0.9, slots=4)
  for params in (old, now):
    rows, counts = jax.device_get(roll(how, params, mixed))
    plain, spent = jax.device_get(roll(linear(top_p=0.9, slots=4), params, seeds))
    for name in (*rows_lib.BY_PLACE, "length", "status"):
      np.testing.assert_allclose(getattr(rows, name), getattr(plain, name), atol=2e-5)
    np.testing.assert_array_equal(counts.generated + counts.accepted, spent.generated)
    if params is old:
      assert not counts.generated[:9].any()
  assert 0 < counts.accepted.sum() < counts.drafted.sum()
