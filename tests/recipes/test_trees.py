"""What the recipes that grow trees fill their slots with."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.decode import tree as engine
from rlvr_jax.recipes import latr as latr_module
from rlvr_jax.recipes.branchgrpo import branchgrpo, stretches
from rlvr_jax.recipes.entropy_tree import entropy_tree
from rlvr_jax.recipes.latr import latr
from rlvr_jax.recipes.spark import holds_pair, spark
from rlvr_jax.rollout.linear import linear
from tests import toy

N, P, NEW = 16, 3, 8
POLICY = toy.table_policy(5, P + NEW)
KEY = jax.random.key(0)


def fresh():
  """Two prompts with eight rows each."""
  group = jnp.repeat(jnp.arange(2, dtype=jnp.int32), 8)
  return rows_lib.fresh(
    jnp.asarray([[0, 1, 2], [3, 2, 0]], jnp.int32), jnp.asarray([3, 2], jnp.int32), group=group,
    valid=jnp.ones(N, bool), uid=keys.row_uids(jax.random.key(1), 0, group, jnp.arange(N)),
    num_places=P + NEW, max_new_tokens=NEW, temperature=1.0,
  )  # fmt: skip


@functools.cache
def params():
  return POLICY.init(jax.random.key(0))


def roll(rollout, weights=None, step=0, end=-1, temperature=1.0):
  rows = fresh()
  rows = rows.replace(temperature=jnp.full_like(rows.temperature, temperature))
  out = rollout(
    POLICY, weights or params(), rows, step, jnp.asarray([end]), num_contexts=2, prompt_places=P
  )  # fmt: skip
  return jax.device_get(out)


def texts(rows):
  return sorted(
    (int(g), tuple(t)) for g, t, v in zip(rows.group, rows.tokens.tolist(), rows.valid) if v
  )


# --------------------------------------------------------------------------------------------------
# Spark


allot = jax.jit(engine._fork, static_argnums=3)


def budget(flags, born, live, size, branch=2):
  """Rows of each row after the engine's allotment, as Spark's b_eff: itself and its new children."""
  n = size
  group = jnp.zeros(n, jnp.int32)
  valid = jnp.arange(n) < len(flags)
  rows = rows_lib.blank(n, 6).replace(
    group=group, valid=valid, length=jnp.full(n, 3, jnp.int32), response_start=jnp.ones(n, jnp.int32),
    status=jnp.where(valid, 0, 3).astype(jnp.int32),
  )  # fmt: skip
  pad = lambda x: jnp.asarray(list(x) + [0] * (n - len(x)), jnp.int32)
  growth = engine.Growth(
    room=jnp.ones(n, bool), born=pad(born), suppressed=pad([]), gone=pad([]), new=jnp.zeros(n, bool)
  )
  at = jnp.where((pad(flags) > 0) & (pad(live) > 0), 3, -1)
  forks = engine.Forks(jnp.broadcast_to(at[:, None], (n, branch - 1)))
  grown, growth, _, _ = allot(rows, forks, growth, False)
  kids = [
    int(((np.asarray(grown.parent) == i) & np.asarray(growth.new)).sum()) for i in range(len(flags))
  ]
  return [1 + k for k in kids], int(grown.valid.sum()), int(growth.suppressed.sum())


def test_spark_gives_the_last_places_to_the_oldest_rows():
  assert budget([1, 0, 1, 1], [0, 1, 2, 3], [1] * 4, 8) == ([2, 1, 2, 2], 7, 0)
  assert budget([1, 1, 0, 0, 0, 0, 0], range(7), [1] * 7, 8) == ([2, 1, 1, 1, 1, 1, 1], 8, 1)
  # All children of the oldest row first, wherever it lies.
  assert budget([1, 1], [1, 0], [1, 1], 5, branch=4)[0] == [1, 4]


def test_spark_forks_after_steps_and_equals_grpo_where_it_cannot():
  rows, counts = roll(spark(stride=2).rollout)
  assert (np.bincount(rows.group[rows.valid & (rows.parent < 0)]) == 4).all()
  kids = rows.valid & (rows.parent >= 0)
  assert kids.sum() >= 4 and ((rows.fork_at - rows.response_start)[kids] % 2 == 0).all()
  assert counts.generated.sum() == np.asarray(trees.owned(rows))[rows.valid].sum()
  plain, _ = roll(linear())
  whole, _ = roll(spark(roots=1.0).rollout)
  np.testing.assert_array_equal(whole.tokens, plain.tokens)
  # Four rows and no tag ever: the same four as without forks.
  silent, _ = roll(spark(open_tag=(9,), close_tag=(9,), stride=2).rollout)
  np.testing.assert_array_equal(silent.tokens[silent.valid], plain.tokens[silent.valid])
  assert silent.valid.sum() == 8 and (silent.parent < 0).all()
  with pytest.raises(ValueError, match="a slot for each"):
    roll(spark(slots=4).rollout)


def test_tags_come_in_pairs():
  tokens = jnp.asarray(
    [[1, 2, 5, 3, 4], [3, 4, 1, 2, 5], [1, 2, 5, 5, 3], [1, 2, 3, 4, 0], [1, 3, 4, 2, 0]]
  )
  assert holds_pair(tokens, (1, 2), (3, 4)).tolist() == [True, False, False, True, False]
  assert holds_pair(tokens[:1], (1, 1), (1,)).tolist() == [False]
  with pytest.raises(ValueError, match="pairs"):
    spark(open_tag=(1,))


def test_spark_leaves_are_compared_as_grpo_compares_rows():
  rows = toy.rows([0] * 8, [1, 0, 0, 1, 0, 0, 1, 0])
  expected = np.where(rows.reward > 0, 1.2076, -0.7246)
  np.testing.assert_allclose(spark().advantage(rows)[:, 1], expected, atol=5e-5)


# --------------------------------------------------------------------------------------------------
# LATR


def test_how_alike_two_texts_are():
  a = jnp.asarray([[7, 2, 9, 4, 4, 8, 1, 3]])
  b = jnp.asarray([[5, 2, 9, 4, 6, 8, 1, 3]])
  assert latr_module.edit_distance(a, b)[0] / 8 == 0.25
  assert latr_module.common_suffix(a, b)[0] / 8 == 0.375
  assert latr_module.common_subsequence(a, b)[0] / 8 == 0.75
  drop = lambda **tests: bool(
    latr_module.alike(a, b, **{"edit": 0, "suffix": 1, "rouge": 1} | tests)[0]
  )
  assert drop(edit=0.4) and drop(suffix=0.2) and drop(rouge=0.5)
  assert not drop(edit=0.25) and not drop(suffix=0.375) and not drop(rouge=0.75) and not drop()


def slow_edit(a, b):
  if not a or not b:
    return len(a) + len(b)
  return min(
    slow_edit(a[1:], b) + 1, slow_edit(a, b[1:]) + 1, slow_edit(a[1:], b[1:]) + (a[0] != b[0])
  )


def slow_common(a, b):
  if not a or not b:
    return 0
  if a[0] == b[0]:
    return 1 + slow_common(a[1:], b[1:])
  return max(slow_common(a[1:], b), slow_common(a, b[1:]))


def slow_suffix(a, b):
  inside = lambda x, y: any(x == y[i : i + len(x)] for i in range(len(y) - len(x) + 1))
  ends = lambda x, y: max(k for k in range(len(x) + 1) if inside(x[len(x) - k :], y))
  return max(ends(a, b), ends(b, a))


def test_alikeness_against_plain_python():
  rng = np.random.default_rng(0)
  a, b = rng.integers(0, 3, (2, 40, 5))
  for fast, slow in (
    (latr_module.edit_distance, slow_edit),
    (latr_module.common_subsequence, slow_common),
    (latr_module.common_suffix, slow_suffix),
  ):
    expected = [slow(list(x), list(y)) for x, y in zip(a.tolist(), b.tolist())]
    assert fast(jnp.asarray(a), jnp.asarray(b)).tolist() == expected


NO_TESTS = {"windows": (2,), "suffix": 1.0, "rouge": 1.0, "least": 0.05, "gap": 0.9}


def slow_latr(table, prompt, size, least, gap, steps):
  """Rows of one prompt after `steps` tokens of the tree phase, in order of birth."""
  rows = [list(prompt)]
  for _ in range(steps):
    born = []
    free = size - len(rows)
    for row in rows:
      z = np.asarray(table)[len(row) - 1, row[-1]].astype(np.float64)
      p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
      first, second = np.argsort(-p, kind="stable")[:2]
      if p[second] > least and p[first] - p[second] < gap and free > 0:
        born.append([*row, int(second)])
        free -= 1
      row.append(int(first))
    rows += born
  return rows


def test_latr_grows_the_likely_tokens_to_the_force():
  recipe = latr(**NO_TESTS, force=4, shares={0: 1.0})
  rows, counts = roll(recipe.rollout, temperature=0.5)
  for group, prompt in ((0, [0, 1, 2]), (1, [3, 2])):
    expected = slow_latr(params()["table"], prompt, 8, 0.05, 0.9, 4)
    mine = rows.valid & (rows.group == group)
    heads = sorted(t[: len(prompt) + 4] for t in rows.tokens[mine].tolist())
    # Rows left over are copies of the first row, which part by sampling.
    copies = [expected[0]] * (8 - len(expected))
    assert mine.sum() == 8 and heads == sorted(expected + copies)
  kids = rows.valid & (rows.parent >= 0)
  for n in np.flatnonzero(kids):
    p, f = rows.parent[n], rows.fork_at[n]
    assert rows.tokens[n, :f].tolist() == rows.tokens[p, :f].tolist()
  assert counts.generated.sum() == np.asarray(trees.owned(rows))[rows.valid].sum()
  assert (rows.temperature == 0.5).all()
  z = np.asarray(params()["table"], np.float64) / 0.5  # all tokens, chosen or drawn, say this law
  laws = z - np.log(np.exp(z).sum(2, keepdims=True))
  before, said = rows.tokens[:, :-1], rows.response_mask[:, 1:] & rows.valid[:, None]
  law = laws[np.arange(before.shape[1])[None], before]
  exact = np.take_along_axis(law, rows.tokens[:, 1:, None], 2)[..., 0]
  for got in (rows.full_logprobs, rows.behavior_logprobs):
    np.testing.assert_allclose(got[:, 1:][said], exact[said], atol=1e-5)
  np.testing.assert_allclose(
    rows.entropy[:, 1:][said], -(np.exp(law) * law).sum(2)[said], atol=1e-5
  )


def test_latr_without_a_share_is_plain_sampling_and_shares_follow_the_steps():
  plain, _ = roll(linear())
  recipe = latr(**NO_TESTS, shares={0: 0.5, 10: 0.0})
  rows, _ = roll(recipe.rollout, step=11)
  np.testing.assert_array_equal(rows.tokens, plain.tokens)
  half, _ = roll(recipe.rollout, step=9)
  same = np.isin(np.arange(N) % 8, [4, 5, 6, 7])  # the last half of each prompt's rows
  np.testing.assert_array_equal(half.tokens[same], plain.tokens[same])
  assert (half.tokens[~same & half.valid] != plain.tokens[~same & half.valid]).any()


def test_latr_drops_branches_that_say_the_same():
  """Whatever the token before, the same one follows: every branch comes back, and is dropped after two."""
  table = jnp.zeros((P + NEW, 5, 5)).at[:, :, 1].set(8.0)
  table = table.at[2, 2].set(jnp.asarray([2.0, 1.9, -9, -9, -9]))  # the first prompt's first token
  weights = {"table": table}
  recipe = latr(least=0.2, gap=0.5, windows=(3,), suffix=0.5, rouge=1.0, force=7)
  rows, counts = roll(recipe.rollout, weights)
  assert counts.pruned[rows.group == 0].sum() == 3 and not counts.pruned[rows.group == 1].any()
  owned = np.asarray(trees.owned(rows))[rows.valid].sum()
  assert counts.generated.sum() == owned + counts.pruned.sum()
  kept, counts = roll(latr(**{**NO_TESTS, "least": 0.2, "gap": 0.5}, force=7).rollout, weights)
  assert not counts.pruned.any() and (kept.tokens[kept.valid & (kept.group == 0), 3] == 1).any()


# --------------------------------------------------------------------------------------------------
# BranchGRPO and entropy trees


def branch_example(rewards):
  """Leaves 4..9 of BranchGRPO's example: three branches of one root, two leaves each; a token a stretch."""
  # Row n is leaf 4 + n. Rows 2 and 4 leave row 0 after one token, odd ones their neighbours after two.
  return toy.rows(
    [0] * 6, rewards, [[True] * 3] * 6, parent=[-1, 0, 0, 2, 0, 4], fork_at=[0, 3, 2, 3, 2, 3],
  )  # fmt: skip


def test_branchgrpo_credits_by_depth_and_prunes_the_loss_alone():
  rows = branch_example([1, 0, 1, 1, 0, 0.5])
  recipe = branchgrpo(splits=(0.3, 0.6))
  a = np.asarray(jax.jit(recipe.advantage)(rows))
  np.testing.assert_allclose(a[:, 1], 0)
  np.testing.assert_allclose(a[[0, 2, 4], 2], [-0.2182, 1.0911, -0.8729], atol=5e-5)
  np.testing.assert_allclose(
    a[:, 3], [0.8476, -1.1866, 0.8476, 0.8476, -1.1866, -0.1695], atol=5e-5
  )
  weight = np.asarray(jax.jit(recipe.weigh)(KEY, rows, a, {}))
  assert weight.sum() == 1 + 3 + 6  # each token of the tree once
  kept = lambda rows=rows, **options: np.asarray(jax.jit(stretches(**options))(KEY, rows, a, {}))
  better = kept(width="better")
  np.testing.assert_array_equal(np.flatnonzero(better[:, 3]) + 4, [4, 6, 9])
  np.testing.assert_array_equal(np.flatnonzero(kept(width="extremes")[:, 3]) + 4, [4, 5, 8])
  np.testing.assert_array_equal(better[:, 1:3], weight[:, 1:3])
  shallow = kept(window=(2,), stop=1)
  assert not shallow[:, 3].any() and shallow[:, 2].any()
  later = rows.replace(version=jnp.full_like(rows.version, 31))
  moved = kept(later, window=(2,), stop=1)
  np.testing.assert_array_equal(
    moved[:, 3], weight[:, 3]
  )  # after 30 steps depth 1 is pruned instead
  assert not moved[:, 2].any()
  ended = kept(later, width="better", until=5)
  np.testing.assert_array_equal(ended, weight)
  for wrong in ({"width": "worse"}, {"every": 0}):
    with pytest.raises(ValueError, match="must"):
      stretches(**wrong)


def test_the_loss_is_a_mean_over_the_tokens_of_the_tree():
  rows = branch_example([1, 0, 1, 1, 0, 0.5])
  for recipe in (branchgrpo(splits=(0.3,)), entropy_tree()):
    a = jax.jit(recipe.advantage)(rows)
    weight = jax.jit(recipe.weigh)(KEY, rows, a, {})
    top, bottom = recipe.aggregate(jnp.ones(rows.tokens.shape), weight, rows)
    assert bottom == 10 and top == 10


def test_a_row_that_leaves_takes_no_shared_token_with_it():
  """Leaf 4 is not trained: what it shared is owned, and trained, by those that stay."""
  rows = branch_example([1, 0, 1, 1, 0, 0.5])
  pool = rows_lib.blank(8, 4)
  used = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
  pool, _, _ = rows_lib.append(pool, used, rows, jnp.arange(6) > 0)
  recipe = entropy_tree()
  weight = np.asarray(recipe.weigh(KEY, pool, None, {}))
  assert weight.sum() == 1 + 3 + 5
