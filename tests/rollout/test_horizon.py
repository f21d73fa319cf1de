"""Cuts of whole responses, against the rows they are cuts of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, LENGTH
from rlvr_jax.rollout.horizon import horizon
from rlvr_jax.rollout.linear import linear
from tests import toy

VOCAB, PROMPT, PLACES, END, TAIL = 5, 1, 21, 4, 2
CUE, RATIOS = (3, 3), (0.25, 0.5, 0.75)
POLICY = toy.table_policy(VOCAB, PLACES)
PARAMS = POLICY.init(jax.random.key(0))
# An end that is rare, but that follows the second prompt at once.
PARAMS = {"table": PARAMS["table"].at[:, :, END].add(-2.0).at[0, 1, END].set(99.0)}


def _seeds():
  """Two groups, of eight and of six rows, and a row of padding between them."""
  group = jnp.asarray([0] * 8 + [0] + [1] * 6, jnp.int32)
  return rows_lib.fresh(
    jnp.array([[0], [1]], jnp.int32),
    jnp.ones(2, jnp.int32),
    group=group,
    valid=jnp.arange(15) != 8,
    uid=keys.row_uids(jax.random.key(1), 0, group, jnp.arange(15)),
    num_places=PLACES,
    max_new_tokens=PLACES - PROMPT,
    temperature=1.0,
  )


@functools.cache
def _grown(train_cue=True):
  how = horizon(ratios=RATIOS, cue=CUE, tail=TAIL, train_cue=train_cue, slots=4)
  return jax.device_get(_roll(how))


def _roll(how):
  return how(POLICY, PARAMS, _seeds(), 3, jnp.array([END]), num_contexts=2, prompt_places=PROMPT)


def test_cuts():
  rows, counts = _grown()
  plain, _ = jax.device_get(_roll(linear(slots=4)))
  parents = {i: i - i % 4 for i in range(8)} | {9 + i: 9 + i - i % 4 for i in range(6)}
  total = np.zeros(2, int)
  assert not rows.valid[8] and rows.length[8] == 0
  for i, p in parents.items():
    end = rows.length[i]
    if i == p:
      np.testing.assert_array_equal(rows.tokens[i], plain.tokens[i])
      assert rows.parent[i] == -1 and rows.status[i] == plain.status[i]
      own = end - PROMPT
    else:
      whole = rows.length[p] - PROMPT
      kept = min(max(int(RATIOS[(i - p) - 1] * whole), 1), whole - 1)
      at = PROMPT + kept
      assert rows.parent[i] == p and rows.fork_at[i] == at
      np.testing.assert_array_equal(rows.tokens[i, :at], rows.tokens[p, :at])
      assert tuple(rows.tokens[i, at : at + 2]) == CUE
      assert 1 <= end - at - 2 <= TAIL
      assert rows.status[i] == (EOS if rows.tokens[i, end - 1] == END else LENGTH)
      own = end - at
    total[rows.group[i]] += own
    np.testing.assert_allclose(
      rows.full_logprobs[i, :end], toy.logprobs(PARAMS, rows.tokens[i : i + 1, :end])[0], atol=1e-5
    )
    assert rows.response_mask[i, PROMPT:end].all() and (rows.version[i, PROMPT:end] == 3).all()
  made = [counts.generated[rows.group == g].sum() for g in (0, 1)]
  np.testing.assert_array_equal(made, total)
  np.testing.assert_array_equal(counts.generated, np.asarray(trees.owned(rows)).sum(1))
  assert len(set(rows.length[rows.valid].tolist())) > 3


def test_a_cue_that_is_not_trained():
  rows, counts = _grown(False)
  with_cue, _ = _grown()
  np.testing.assert_array_equal(rows.tokens, with_cue.tokens)
  for i in np.flatnonzero(rows.parent >= 0):
    at = rows.fork_at[i]
    assert not rows.response_mask[i, at : at + 2].any()
    assert rows.response_mask[i, PROMPT:at].all() and rows.response_mask[i, at + 2]
  np.testing.assert_array_equal(counts.generated, np.asarray(trees.owned(rows)).sum(1))


def test_what_makes_no_sense_is_refused():
  with pytest.raises(ValueError, match="ratios must lie"):
    horizon(ratios=(1.0,))
  with pytest.raises(ValueError, match="tail must be positive"):
    horizon(tail=0)
  with pytest.raises(ValueError, match="no room for a cue of 5"):
    _roll(horizon(ratios=(0.75,), cue=(0,) * 5))
