"""Ways to grow trees, on a Markov chain: shapes of the trees, and the same rows as without forks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.rollout.linear import linear
from rlvr_jax.rollout.tree import late, schedule, tree
from tests import toy

N, P, NEW = 16, 3, 8
POLICY = toy.table_policy(5, P + NEW)
PARAMS = POLICY.init(jax.random.key(0))
END = 4


@functools.cache
def fresh():
  """Two prompts with eight rows each."""
  group = jnp.repeat(jnp.arange(2, dtype=jnp.int32), 8)
  return rows_lib.fresh(
    jnp.asarray([[0, 1, 2], [3, 2, 0]], jnp.int32), jnp.asarray([3, 2], jnp.int32), group=group,
    valid=jnp.ones(N, bool), uid=keys.row_uids(jax.random.key(1), 0, group, jnp.arange(N)),
    num_places=P + NEW, max_new_tokens=NEW, temperature=1.0,
  )  # fmt: skip


def roll(rollout, rows=None, end=-1):
  rows = fresh() if rows is None else rows
  out = rollout(POLICY, PARAMS, rows, 0, jnp.asarray([end]), num_contexts=2, prompt_places=P)
  return jax.device_get(out)


SCHEDULE = schedule()


def test_a_binary_tree_draws_what_the_formula_says():
  rows, counts = roll(tree(SCHEDULE))
  assert rows.valid.all() and (rows.response_length == NEW).all()
  # 1, 2, 4 and 8 rows for a quarter each.
  assert counts.generated.sum() == 2 * (1 + 2 + 4 + 8) * NEW // 4
  assert np.asarray(trees.owned(rows)).sum() == counts.generated.sum()
  for group in (0, 1):
    mine = rows.group == group
    forks = (rows.fork_at - rows.response_start)[mine & (rows.parent >= 0)]
    assert sorted(forks.tolist()) == [2, 4, 4, 6, 6, 6, 6]
    depth = np.asarray(trees.nodes(rows).depth)[np.asarray(trees.nodes(rows).leaf)[mine]]
    assert (depth == 3).all()


def test_roots_are_what_they_would_be_without_forks_and_slots_change_nothing():
  rows, _ = roll(tree(SCHEDULE), end=END)
  plain, _ = roll(linear(), end=END)
  root = rows.valid & (rows.parent < 0)
  assert root.sum() == 2
  np.testing.assert_array_equal(rows.tokens[root], plain.tokens[root])
  few, _ = roll(tree(SCHEDULE, slots=3), end=END)
  texts = lambda rows: sorted(
    (int(g), tuple(t)) for g, t, v in zip(rows.group, rows.tokens.tolist(), rows.valid) if v
  )
  assert texts(few) == texts(rows)


def test_too_few_rows_for_a_schedule_raise():
  rows = fresh()
  with pytest.raises(ValueError, match=r"the rows ran out: \d+ forks found none"):
    roll(tree(SCHEDULE), rows.replace(valid=rows.valid & (jnp.arange(N) % 8 < 6)))


def test_late_forks_lie_where_the_entropy_was_highest():
  rows, counts = roll(tree(late(3, begin=0.5)))
  assert rows.valid.all()
  root = np.flatnonzero(rows.parent < 0)
  assert len(root) == 4
  for r in root:
    start = rows.response_start[r]
    entropy = rows.entropy[r, start + NEW // 2 : start + NEW]
    expected = start + NEW // 2 + np.argsort(-entropy, kind="stable")[:3]
    assert sorted(rows.fork_at[rows.parent == r].tolist()) == sorted(expected.tolist())
  assert counts.generated.sum() == np.asarray(trees.owned(rows)).sum()


@pytest.mark.parametrize(
  "wrong, message",
  [
    (lambda: schedule((0.5, 0.25)), "ascend"),
    (lambda: schedule((0.0,)), "ascend"),
    (lambda: schedule((1.0,)), "ascend"),
    (lambda: schedule(children=1), "at least 2"),
    (lambda: late(0), "at least 1"),
    (lambda: late(begin=1.0), "begin"),
    (lambda: tree(SCHEDULE, slots=-1), "slots"),
  ],
)
def test_options_out_of_range_raise(wrong, message):
  with pytest.raises(ValueError, match=message):
    wrong()
