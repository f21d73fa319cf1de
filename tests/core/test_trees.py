"""Trees of rows against hand-worked ones and plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core import trees
from tests import toy

# prompt [50,51], then 10 11 | 12 13, | 14 | 15 16 and | 17: row 1 forks off row 0 at 4, row 2 off row 1 at 5.
TOKENS = [[50, 51, 10, 11, 12, 13, 0], [50, 51, 10, 11, 14, 15, 16], [50, 51, 10, 11, 14, 17, 0]]
LENGTH = [6, 7, 6]
MASKS = [[p < n for p in range(2, 7)] for n in LENGTH]


def example(rewards=(1, 0, 0)):
  return toy.rows(
    [0, 0, 0], rewards, MASKS, tokens=TOKENS, prompt=2, length=LENGTH, parent=[-1, 0, 1], fork_at=[0, 4, 5],
  )  # fmt: skip


def test_each_token_has_one_owner():
  rows = example()
  owned = np.asarray(trees.owned(rows))
  assert [np.asarray(rows.tokens)[n][owned[n]].tolist() for n in range(3)] == [
    [10, 11, 12, 13], [14, 15, 16], [17],
  ]  # fmt: skip
  np.testing.assert_array_equal(
    trees.leaves_through(rows),
    [[0, 0, 3, 3, 1, 1, 0], [0, 0, 3, 3, 2, 1, 1], [0, 0, 3, 3, 2, 1, 0]],
  )


def test_nodes_of_the_example():
  nodes = jax.jit(trees.nodes)(example())
  # 10 11 is node 0; 12 13, how row 0 goes on after row 1 left, 3 + 1; 14 is 1; 15 16 is 3 + 2; 17 is 2.
  np.testing.assert_array_equal(
    nodes.of, [[9, 9, 0, 0, 4, 4, 9], [9, 9, 0, 0, 1, 5, 5], [9, 9, 0, 0, 1, 2, 9]]
  )
  assert nodes.leaf.tolist() == [4, 5, 2]
  assert nodes.parent.tolist() == [6, 0, 1, -1, 0, 1, -1, -1, -1]
  assert np.asarray(nodes.depth)[np.asarray(nodes.used)].tolist() == [0, 1, 2, 1, 2, 0]
  assert np.flatnonzero(nodes.used).tolist() == [0, 1, 2, 4, 5, 6]
  np.testing.assert_array_equal(nodes.is_leaf, np.isin(np.arange(9), [2, 4, 5]))


values = jax.jit(trees.tree_values, static_argnames="mode")
advantage = jax.jit(trees.tree_advantage, static_argnames=("mode", "carry"))

# BranchGRPO's example: ten nodes, six of them leaves.
PARENT = jnp.array([-1, 0, 0, 0, 1, 1, 2, 2, 3, 3], jnp.int32)
REWARD = np.array([0, 0, 0, 0, 1, 0, 1, 1, 0, 0.5], np.float32)
LEAF = np.arange(10) >= 4
DEPTH = jnp.array([0, 1, 1, 1, 2, 2, 2, 2, 2, 2], jnp.int32)
EDGE = jnp.array([0, -1, -0.5, -0.8, -0.2, -1.2, -0.9, -0.3, -0.6, -0.4], jnp.float32)
ALL = np.ones(10, bool)


def test_values_and_credit_by_depth_of_the_example():
  value = values(PARENT, REWARD, LEAF, mode="leaf")
  np.testing.assert_allclose(value, [0.5833, 0.5, 1, 0.25, 1, 0, 1, 1, 0, 0.5], atol=5e-5)
  credit = lambda v, **more: advantage(v, PARENT, LEAF, ALL, mode="depth", depth=DEPTH, **more)
  expected = [0, -0.2182, 1.0911, -0.8729, 0.8476, -1.1866, 0.8476, 0.8476, -1.1866, -0.1695]
  np.testing.assert_allclose(credit(value), expected, atol=5e-5)
  soft = values(PARENT, REWARD, LEAF, mode="softmax", weight=EDGE)
  np.testing.assert_allclose(soft, [0.7017, 0.7311, 1, 0.2749, 1, 0, 1, 1, 0, 0.5], atol=5e-5)
  np.testing.assert_allclose(credit(soft)[:4], [0, 0.1702, 0.904, -1.0742], atol=5e-5)
  # What is added to all rewards, or multiplies them, changes nothing.
  np.testing.assert_allclose(credit(3 * value + 7), expected, atol=5e-5)


def test_a_row_that_ended_early_stands_in_deeper_levels_if_carried():
  value = jnp.array([0.5, 1, 1, 0, 0.75], jnp.float32)
  credit = lambda carry: np.asarray(
    advantage(
      value,
      jnp.array([4, 4, 0, 0, -1], jnp.int32),
      jnp.array([0, 1, 1, 1, 0], bool),
      jnp.array([1, 1, 1, 1, 0], bool),
      mode="depth",
      depth=jnp.array([1, 1, 2, 2, 0], jnp.int32),
      carry=carry,
    )
  )
  half = 0.5**0.5
  np.testing.assert_allclose(credit(False), [-half, half, half, -half, 0], atol=1e-5)
  third = np.std([1, 1, 0], ddof=1)
  np.testing.assert_allclose(credit(True)[2:4], [(1 / 3) / third, (-2 / 3) / third], atol=1e-5)


def test_the_other_modes():
  leaf = values(PARENT, REWARD, LEAF, mode="leaf")
  child = values(PARENT, REWARD, LEAF, mode="child")
  np.testing.assert_allclose(child, leaf, atol=1e-6)  # the tree is balanced
  even = values(PARENT, REWARD, LEAF, mode="policy", weight=jnp.ones(10))
  np.testing.assert_allclose(even, child, atol=1e-6)
  odd = values(PARENT, REWARD, LEAF, mode="policy", weight=jnp.arange(10.0))
  assert odd[1] == pytest.approx(4 / 9) and odd[0] == pytest.approx((4 / 9 + 2 + 3 * 4.5 / 17) / 6)
  lopsided = jnp.array([-1, 0, 0, 1, 1], jnp.int32)
  both = [
    values(lopsided, jnp.array([0.0, 0, 1, 0, 0]), np.arange(5) >= 2, mode=m)[0]
    for m in ("leaf", "child")
  ]
  np.testing.assert_allclose(both, [1 / 3, 1 / 2], atol=1e-6)

  credit = lambda mode, **more: np.asarray(advantage(leaf, PARENT, LEAF, ALL, mode=mode, **more))
  delta = credit("value_minus_parent")
  np.testing.assert_allclose(delta[[0, 1, 5, 9]], [0, 0.5 - 7 / 12, -0.5, 0.25], atol=1e-6)
  sibling = credit("sibling")
  half = 0.5**0.5
  np.testing.assert_allclose(sibling[[0, 4, 5, 6, 7]], [0, half, -half, 0, 0], atol=1e-5)
  np.testing.assert_allclose(sibling[1:4].sum(), 0, atol=1e-6)
  whole = credit("leaf_group")
  z = (REWARD[LEAF] - REWARD[LEAF].mean()) / (REWARD[LEAF].std(ddof=1) + 1e-6)
  np.testing.assert_allclose(whole[LEAF], z, atol=1e-5)
  np.testing.assert_allclose(whole[:4], [0, z[:2].mean(), z[2:4].mean(), z[4:].mean()], atol=1e-5)
  np.testing.assert_allclose(credit("mix", mix=0.3), 0.3 * sibling + 0.7 * whole, atol=1e-6)
  only = advantage(
    jnp.ones(2),
    jnp.array([-1, 0]),
    jnp.array([False, True]),
    jnp.ones(2, bool),
    mode="sibling",
  )
  assert not np.asarray(only).any()
  for wrong in ({"mode": "best"}, {"mode": "depth"}):
    with pytest.raises(ValueError, match=r"advantages of a tree|needs the depths"):
      credit(**wrong)
  with pytest.raises(ValueError, match="need a weight"):
    values(PARENT, REWARD, LEAF, mode="softmax")


# --------------------------------------------------------------------------------------------------
# Any tree


def paths(parent, fork_at, length):
  """Each row as a list of (row that owns the token, place)."""

  def one(n, end):
    if n < 0:
      return []
    return one(parent[n], fork_at[n]) + [(n, t) for t in range(fork_at[n], end)]

  return [one(n, length[n]) for n in range(len(parent))]


@st.composite
def forests(draw):
  """(parent, fork_at, length, gone) of up to seven rows; a row's parent comes before it."""
  parent, fork_at, length = [], [], []
  for n in range(draw(st.integers(1, 7))):
    p = draw(st.integers(-1, n - 1))
    f = 0 if p < 0 else draw(st.integers(fork_at[p] + 1, length[p]))
    parent.append(p)
    fork_at.append(f)
    length.append(f + draw(st.integers(1, 3)))
  gone = draw(st.lists(st.booleans(), min_size=len(parent), max_size=len(parent)))
  return parent, fork_at, length, gone


def padded(forest, num=7):
  parent, fork_at, length, gone = (list(x) for x in forest)
  more = num - len(parent)
  pad = lambda x, value, kind: np.array(x + [value] * more, kind)
  return (
    pad(parent, -1, np.int32),
    pad(fork_at, 0, np.int32),
    pad(length, 0, np.int32),
    pad(gone, True, bool),
  )


@settings(max_examples=40)
@given(forests())
def test_rows_that_go_leave_every_token_of_the_others_owned_once(forest):
  parent, fork_at, length, gone = padded(forest)
  before = paths(parent, fork_at, length)
  new_parent, new_fork = (np.asarray(x) for x in jax.jit(trees.adopt)(parent, fork_at, gone))
  assert (new_parent[gone] == -1).all() and not np.isin(new_parent, np.flatnonzero(gone)).any()
  after = paths(new_parent, new_fork, length)
  stay = np.flatnonzero(~gone)
  for n in stay:
    assert (new_parent[n] < 0) == (new_fork[n] == 0)
    for m in stay:
      # Two rows share what they shared before.
      assert len(set(before[n]) & set(before[m])) == len(set(after[n]) & set(after[m]))
  owned = sum(length[n] - new_fork[n] for n in stay)
  assert owned == len({token for n in stay for token in before[n]})


@settings(max_examples=40)
@given(forests())
def test_nodes_are_the_stretches_that_the_same_leaves_share(forest):
  parent, fork_at, length, _ = padded(forest)
  num = len(forest[0])
  valid = np.arange(7) < num
  t = 22
  # Prompts hold one token, so that places of responses are those above, plus one.
  mask = (np.arange(t)[None] >= 1) & (np.arange(t)[None] < (length + 1)[:, None]) & valid[:, None]
  rows = rows_lib.blank(7, t).replace(
    parent=parent, fork_at=np.where(parent >= 0, fork_at + 1, 0).astype(np.int32), valid=valid,
    length=(length + 1).astype(np.int32), response_start=np.ones(7, np.int32), response_mask=mask,
  )  # fmt: skip
  nodes = jax.device_get(jax.jit(trees.nodes)(rows))
  lines = paths(parent, fork_at, length)
  through = {}
  for n in range(num):
    for place, token in enumerate(lines[n]):
      through.setdefault(token, set()).add((n, place))
  node_of = {}
  for token, where in through.items():
    names = {int(nodes.of[n, place + 1]) for n, place in where}
    assert len(names) == 1
    node_of[token] = names.pop()
  for n in range(num):
    # Along a row a new node begins exactly where some row leaves or the row itself left another.
    cuts = {
      fork_at[m] for m in range(num) if parent[m] >= 0 and _shares(lines, n, m, parent, fork_at)
    }
    changes = {
      i for i in range(1, len(lines[n])) if node_of[lines[n][i]] != node_of[lines[n][i - 1]]
    }
    assert changes == {c for c in cuts if 0 < c < len(lines[n])}
    for i in changes:
      above = nodes.parent[node_of[lines[n][i]]]
      assert above == node_of[lines[n][i - 1]]


def _shares(lines, n, m, parent, fork_at):
  """Whether row n holds the token before row m's fork, as m's parent does."""
  f, p = fork_at[m], parent[m]
  return len(lines[n]) >= f and lines[n][f - 1] == lines[p][f - 1]


def test_children_have_randomness_of_their_own():
  uid = jnp.asarray([[1, 2], [1, 2], [1, 2], [3, 4]], jnp.uint32)
  made = trees.child_uids(uid, jnp.asarray([5, 6, 5, 5]), jnp.asarray([0, 0, 1, 0]))
  assert len({tuple(x) for x in [*np.asarray(made).tolist(), *np.asarray(uid).tolist()]}) == 6
  again = trees.child_uids(uid[:1], jnp.asarray([5]), jnp.asarray([0]))
  np.testing.assert_array_equal(again[0], made[0])


# --------------------------------------------------------------------------------------------------
# Moving rows of trees


def test_append_and_write_keep_parents():
  rows = toy.rows([2, 2, 2, 3], [0, 0, 0, 0], parent=[-1, 0, 1, -1], fork_at=[0, 1, 2, 0], prompt=1)
  pool = rows_lib.blank(6, rows.tokens.shape[1])
  used = (jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))
  chosen = jnp.asarray([True, False, True, True])
  pool, used, _ = rows_lib.append(pool, used, rows, chosen)
  # Row 1 stays out: row 2 shares with row 0 what row 1 did.
  assert pool.parent[:3].tolist() == [-1, 0, -1] and pool.fork_at[:3].tolist() == [0, 1, 0]
  again, _, _ = rows_lib.append(pool, used, rows, jnp.ones(4, bool).at[3].set(False))
  assert again.parent.tolist() == [-1, 0, -1, -1, 3, 4] and again.fork_at[3:].tolist() == [0, 1, 2]
  batch = rows_lib.write(rows_lib.blank(6, rows.tokens.shape[1]), rows, 2)
  assert batch.parent.tolist() == [-1, -1, -1, 2, 3, -1]
