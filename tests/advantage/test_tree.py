"""Credit of stretches between forks, on hand-worked trees, and the clipped loss of shared tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.advantage.tree import tree
from rlvr_jax.core import trees
from rlvr_jax.core.types import TokenStats
from rlvr_jax.keep.tree import once
from rlvr_jax.objective import aggregate, ratio
from tests import toy
from tests.core.test_trees import example

HALF = 0.5**0.5


def credit(rows, **options):
  return np.asarray(jax.jit(tree(**options))(rows))


def test_siblings_are_compared_where_they_part():
  """Leaves 1, 0 and 0.5: row 1 left row 0 after two tokens, row 2 left row 1 one token later."""
  rows = example([1, 0, 0.5])
  out = credit(rows)
  # 10 11 has no sibling; 12 13 (1) is beside 14 (0.25); 15 16 (0) beside 17 (0.5).
  np.testing.assert_allclose(
    out[:, 2:],
    [[0, 0, HALF, HALF, 0], [0, 0, -HALF, -HALF, -HALF], [0, 0, -HALF, HALF, 0]],
    atol=1e-4,
  )
  delta = credit(rows, mode="value_minus_parent", values="child")
  top = (1 + 0.25) / 2
  np.testing.assert_allclose(
    delta[2, 2:6], [0, 0, 0.25 - top, 0.25], atol=1e-6
  )  # the prompt's value is its only child's
  out = credit(rows, mode="mix", mix=1.0)
  np.testing.assert_allclose(out, credit(rows), atol=1e-6)


def test_without_forks_it_is_grpo():
  rows = toy.random_rows(3)
  for mode in ("sibling", "leaf_group"):
    expected = np.asarray(group_mean(ddof=1)(rows))
    sizes = np.asarray(trees.leaves_through(rows))
    np.testing.assert_allclose(credit(rows, mode=mode), np.where(sizes > 0, expected, 0), atol=1e-5)
  # Stretches from the prompt alone are all of depth 1.
  np.testing.assert_allclose(credit(rows, mode="depth"), group_mean(ddof=1)(rows), atol=1e-4)


def test_a_row_without_a_reward_is_left_out_with_what_leads_to_it_alone():
  rows = example([1, 0, 0.5])
  rows = rows.replace(reward=rows.reward.at[1].set(jnp.nan))
  out = credit(rows)
  assert not out[1].any()
  # Rows 0 and 2 part at 12 and 14.
  np.testing.assert_allclose(out[[0, 2], 4:6], [[HALF, HALF], [-HALF, -HALF]], atol=1e-4)


def test_softmax_weighs_children_by_their_mean_log_probs():
  logprobs = np.zeros((3, 7), np.float32)
  logprobs[0, 4:6] = [-1, -3]  # 12 13: mean -2
  logprobs[1:, 4] = -1  # 14
  rows = example([1, 0, 0]).replace(full_logprobs=jnp.asarray(logprobs))
  out = credit(rows, mode="value_minus_parent", values="softmax")
  top = np.exp(-2) / (np.exp(-2) + np.exp(-1))
  np.testing.assert_allclose([out[0, 4], out[1, 4]], [1 - top, -top], atol=1e-6)


def test_once_counts_each_token_of_a_tree_once():
  weight = np.asarray(once()(None, example(), None, {}))
  np.testing.assert_array_equal(
    weight, [[0, 0, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 1, 0]]
  )
  for wrong in ({"mode": "best"}, {"values": "policy"}, {"mix": 2.0}):
    with pytest.raises(ValueError, match="must"):
      tree(**wrong)


def test_the_clip_of_a_shared_token_is_that_of_each_leaf():
  """Leaf-wise equals -[min(r, 1 + e) Apos + max(r, 1 - e) Aneg] over unique tokens, gradient included.

  Apos and Aneg sum the positive and negative advantages of the leaves through a token, over all leaf tokens.
  """
  rows = example()
  advantage = jnp.where(rows.loss_mask, jnp.asarray([1, -0.5, -0.5])[:, None], 0.0)
  through = np.asarray(trees.leaves_through(rows))
  assert through[np.asarray(trees.owned(rows))].sum() == rows.loss_mask.sum() == 13
  at = [[0, 1, 2, 3], [0, 1, 4, 5, 6], [0, 1, 4, 7]]
  token = np.zeros((3, 7), np.int32)
  for n, line in enumerate(at):
    token[n, 2 : 2 + len(line)] = line
  pos, neg = np.zeros(8), np.zeros(8)
  for n, line in enumerate(at):
    for u in line:
      a = [1, -0.5, -0.5][n] / 13
      pos[u] += max(a, 0)
      neg[u] += min(a, 0)
  np.testing.assert_allclose(pos, [1 / 13] * 4 + [0] * 4, atol=1e-7)
  np.testing.assert_allclose(neg, [-1 / 13] * 2 + [0] * 2 + [-1 / 13] + [-0.5 / 13] * 3, atol=1e-7)
  assert np.round(pos[0], 4) == 0.0769 and np.round(neg[5], 4) == -0.0385

  objective, mean = ratio.clipped(low=0.2, high=0.2), aggregate.token_mean()

  def leafwise(logr):
    stats = TokenStats(jnp.where(rows.loss_mask, logr[token], 0.0))
    loss, _ = objective.loss(stats, rows, advantage, {})
    top, bottom = mean(loss, rows.loss_mask.astype(jnp.float32), rows)
    return top / bottom

  def shared(logr, pos=pos, neg=neg):
    r = jnp.exp(logr)
    return -(jnp.minimum(r, 1.2) * pos + jnp.maximum(r, 0.8) * neg).sum()

  # Both clips act on tokens that leaves of both signs share (the first two), and on others.
  logr = jnp.asarray([0.5, -0.6, 0.4, -0.1, -0.7, 0.6, 0.05, 0.0])
  got, want = (jax.value_and_grad(f)(logr) for f in (leafwise, shared))
  np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
  np.testing.assert_allclose(got[1], want[1], atol=1e-7)
  assert (np.asarray(want[1])[:2] != 0).all()
  # The sum of the advantages alone would not do: the first token's is 0.
  naive = lambda logr: shared(logr, np.maximum(pos + neg, 0), np.minimum(pos + neg, 0))
  assert abs(float(jax.grad(naive)(logr)[0]) - float(got[1][0])) > 0.05
