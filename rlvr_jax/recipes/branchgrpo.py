"""BranchGRPO: rows fork at fixed places, rewards are fused upwards, credit is taken among nodes of equal
depth.

Of the paper's two ways to fuse, "leaf" is the mean over the leaves below and "softmax" weighs children by
the probability of their edges. Every token gets the credit of its stretch between forks and counts once.
Pruning leaves stretches out of the loss alone: generation, values and credit see the whole tree.

The paper is about images; what is ours for text: depth is a number of forks, not a place, and a row that
ended early also stands in the statistics of deeper levels; siblings differ by sampling, without extra
noise; the log-prob of an edge is the mean over its tokens; forks at 25, 50 and 75 % of `expected` tokens,
since early forks share little; the window of depths counts forks. The mixture of sampled and greedy
stretches is left out.
"""

import jax.numpy as jnp

from rlvr_jax.advantage.tree import tree as credit
from rlvr_jax.core import groups, traits, trees
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.tree import schedule, tree

PAPER = (
  "BranchGRPO: Stable and Efficient GRPO with Structured Branching in Diffusion Models",
  "arXiv 2509.06040",
)
STAGES = ("generate", "filter", "optimise")
CHANGES = ("rollout", "advantage", "weigh", "aggregate")
EVIDENCE = "code"

WIDTHS = ("none", "better", "extremes")


def branchgrpo(
  *,
  splits: tuple[float, ...] = (0.25, 0.5, 0.75),
  children: int = 2,
  expected: int = 0,
  values: str = "leaf",
  carry: bool = True,
  width: str = "none",
  window: tuple[int, ...] = (),
  every: int = 30,
  until: int = 0,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Forks on a schedule.

  Args:
    splits, children, expected: of rollout.tree.schedule. A prompt needs a multiple of
      children ** len(splits) rows.
    values, carry: of advantage.tree.tree.
    width, window, every, until: of `stretches`, whose window stops at the last split but one.
    slots, top_k, top_p, min_p: of rollout.tree.tree.
    **options: of `grpo`.
  """
  plan = schedule(splits, children=children, expected=expected)
  return grpo(**options)._replace(
    rollout=tree(plan, slots=slots, top_k=top_k, top_p=top_p, min_p=min_p),
    advantage=credit(mode="depth", values=values, carry=carry),
    weigh=stretches(width=width, window=window, every=every, stop=len(splits) - 1, until=until),
    aggregate=aggregate.token_mean(over=aggregate.kept),
  )


def stretches(
  *,
  width: str = "none",
  window: tuple[int, ...] = (),
  every: int = 30,
  stop: int = 0,
  until: int = 0,
):
  """Weight 1 for every token of a tree, once, in the stretches between forks that are not pruned.

  Args:
    width: which last stretches of a prompt, those that end a row, are kept: "none" is pruned; "better": of
      those with the same parent, the better half; "extremes": of L rows the best floor(k/2) and the worst
      k - floor(k/2) by advantage, k = max(2, floor(L/2)). The lower row wins a tie.
    window: depths, forks above a stretch, that are pruned; after n steps each is
      min(floor(n / every), max(0, min(window) - stop)) less.
    until: steps of training in which anything is pruned; 0: all.
  """
  if width not in WIDTHS:
    raise ValueError(f"width must be one of {', '.join(WIDTHS)}, got {width!r}")
  if every < 1 or until < 0 or any(depth < 0 for depth in window):
    raise ValueError(
      f"every must be at least 1, until and depths at least 0, got {every}, {until}, {window}"
    )

  def weigh(key, rows, advantage, knobs):
    del key, knobs
    rows = trees.without(rows, ~rows.valid)
    nodes = trees.nodes(rows)
    step = jnp.where(rows.loss_mask, rows.version, 0).max()
    use = nodes.used
    if window:
      shift = jnp.minimum(step // every, max(0, min(window) - stop))
      use &= ~jnp.isin(nodes.depth, jnp.asarray(window, jnp.int32) - shift)
    use &= ~nodes.at_leaves(_pruned(width, rows, nodes, _last(advantage, rows)))
    use |= (step >= until) & (until > 0)
    mine = trees.owned(rows) & rows.loss_mask
    return jnp.where(mine, nodes.of_tokens(use), False).astype(jnp.float32)

  return traits.declare(weigh, denominator="kept")


def _last(advantage, rows):
  """float32 [N]: the advantage of the last token of each row."""
  at = jnp.maximum(rows.length - 1, 0)
  return jnp.take_along_axis(jnp.where(rows.loss_mask, advantage, 0.0), at[:, None], 1)[:, 0]


def _pruned(width, rows, nodes, credit):
  """bool [N]: rows whose last stretch is pruned."""
  if width == "none":
    return jnp.zeros_like(rows.valid)
  n = len(credit)
  best = lambda group, num=None: groups.rank(group, rows.valid, num, by=-credit)
  if width == "better":
    parent = jnp.where(rows.valid, nodes.parent[jnp.minimum(nodes.leaf, 3 * n - 1)], 0)
    size = groups.count(parent, rows.valid, 3 * n)[parent]
    return best(parent, 3 * n) >= jnp.maximum(jnp.floor(size / 2), 1)
  size = groups.count(rows.group, rows.valid)[rows.group]
  k = jnp.maximum(2, jnp.floor(size / 2))
  worst = groups.rank(rows.group, rows.valid, by=credit)
  return (best(rows.group) >= jnp.floor(k / 2)) & (worst >= k - jnp.floor(k / 2))
