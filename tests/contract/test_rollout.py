"""What every way of rolling rows out must do; a Markov chain says what the log-probs should be."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax import rollout as package
from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, KILLED, LENGTH
from tests import toy

VARIANTS = {"linear": [{"slots": 2}, {"top_k": 2}, {"top_p": 0.8}, {"min_p": 0.3}]}
FORKS = ("rlvr_jax.rollout.horizon",)  # its rows are not one straight continuation each
MODULES = [module for module in toy.modules(package) if module.__name__ not in FORKS]
FACTORIES = toy.factories(*MODULES, variants=VARIANTS)
VOCAB, PLACES, END = 3, 7, 2
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = POLICY.init(jax.random.key(0))
VERSION = 4


@functools.cache
def grown(index):
  """Six rows of two prompts before and after: five rolled out, the last one padding."""
  roll = FACTORIES[index].values[0]()
  prompts = jnp.array([[0, 1, 1], [1, 0, 0]], jnp.int32)
  group = jnp.array([0, 0, 1, 1, 1, 0], jnp.int32)
  before = rows_lib.fresh(
    prompts,
    jnp.array([3, 2], jnp.int32),
    group=group,
    valid=jnp.arange(6) < 5,
    uid=keys.row_uids(jax.random.key(1), 0, group, jnp.arange(6)),
    num_places=PLACES,
    max_new_tokens=4,
    temperature=jnp.array([1.0, 0.7, 1.0, 1.0, 1.3, 1.0]),
  )
  f = lambda params, rows: roll(
    POLICY, params, rows, VERSION, jnp.array([END]), num_contexts=2, prompt_places=3
  )
  return before, *f(PARAMS, before)


@pytest.mark.parametrize("index", range(len(FACTORIES)), ids=[f.id for f in FACTORIES])
def test_rollouts(index):
  before, after, counts = grown(index)
  assert toy.kinds(after) == toy.kinds(before)
  total = 0
  for n in range(5):
    start, end = int(after.response_start[n]), int(after.length[n])
    tokens = np.asarray(after.tokens[n])
    # The prompt is as it was, the response ends at an end token or at the limit, nothing follows.
    assert tokens[:start].tolist() == before.tokens[n, :start].tolist()
    assert start < end <= int(after.limit[n]) and not tokens[end:].any()
    assert END not in tokens[start : end - 1]
    assert int(after.status[n]) == (EOS if tokens[end - 1] == END else LENGTH)
    if tokens[end - 1] != END:
      assert end == int(after.limit[n])
    inside = (np.arange(PLACES) >= start) & (np.arange(PLACES) < end)
    np.testing.assert_array_equal(after.response_mask[n], inside)
    np.testing.assert_array_equal(after.version[n], np.where(inside, VERSION, -1))
    # Log-probs and entropies of the chain at the row's temperature, token by token.
    cool = {"table": PARAMS["table"] / before.temperature[n]}
    expect = np.where(inside, toy.logprobs(cool, tokens[None], start)[0], 0)
    np.testing.assert_allclose(after.full_logprobs[n], expect, atol=1e-5)
    assert (after.behavior_logprobs[n] >= after.full_logprobs[n] - 1e-5).all()
    for p in range(start, end):
      law = np.asarray(jax.nn.softmax(cool["table"][p - 1, tokens[p - 1]]))
      assert float(after.entropy[n, p]) == pytest.approx(-(law * np.log(law)).sum(), abs=1e-5)
    total += end - start
  assert int(counts.generated.sum()) == total
  assert int(counts.prefilled.sum()) == 3 + 2  # each prompt once
  for x, y in zip(jax.tree.leaves(toy.take(before, [5])), jax.tree.leaves(toy.take(after, [5]))):
    np.testing.assert_array_equal(x, y)  # padding is left alone
  assert int(after.status[5]) == KILLED


def test_slots_change_nothing_but_the_schedule():
  labels = [f.id for f in FACTORIES]
  plain, few = (grown(labels.index(f"linear.linear({args})"))[1] for args in ("", "slots=2"))
  np.testing.assert_array_equal(plain.tokens, few.tokens)
  np.testing.assert_allclose(plain.full_logprobs, few.full_logprobs, atol=1e-6)
