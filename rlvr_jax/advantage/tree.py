"""Credit of the stretches between forks: advantage(rows) -> float32 [N,T]."""

import jax.numpy as jnp

from rlvr_jax.advantage.group import scored
from rlvr_jax.core import groups, trees


def tree(*, mode: str = "sibling", values: str = "leaf", mix: float = 0.5, carry: bool = True):
  """Every token gets the credit of its node, whichever row it is read in.

  Rows that were drawn from the prompt alone are siblings below it. A row whose reward is not finite is left
  out, and so are nodes that lead to nothing else.

  Args:
    mode: leaf_group, sibling, mix, depth or value_minus_parent, see core.trees.tree_advantage.
    values: leaf, child or softmax, see core.trees.tree_values; softmax is over the mean log-probs of the
      tokens of the nodes, at sampling.
    mix: share of sibling credit in "mix", in [0, 1].
    carry: of "depth".

  Source: the modes of ELPO ("mix") and BranchGRPO, arXiv 2509.06040 ("depth", "softmax").
  """
  if mode not in trees.ADVANTAGES:
    raise ValueError(f"mode must be one of {', '.join(trees.ADVANTAGES)}, got {mode!r}")
  if values not in ("leaf", "child", "softmax"):
    raise ValueError(f"values must be leaf, child or softmax, got {values!r}")
  if not 0 <= mix <= 1:
    raise ValueError(f"mix must lie in [0, 1], got {mix}")

  def advantage(rows):
    reward, _, ok = scored(rows)
    rows = trees.without(rows, ~ok)
    nodes = trees.nodes(rows)
    leaf = nodes.is_leaf
    weight = _mean_logprob(rows, nodes) if values == "softmax" else None
    value = trees.tree_values(
      nodes.parent, nodes.at_leaves(reward), leaf, mode=values, weight=weight
    )
    used = nodes.used & ~nodes.prompt
    credit = trees.tree_advantage(
      value, nodes.parent, leaf, used, mode=mode, depth=nodes.depth, mix=mix, carry=carry
    )
    return nodes.of_tokens(credit)

  return advantage


def _mean_logprob(rows, nodes):
  """float32 [3N]: mean over the tokens of each node; 0 without any."""
  mine = trees.owned(rows) & rows.loss_mask
  num = len(nodes.used)
  node = jnp.where(mine, nodes.of, 0).reshape(-1)
  return groups.mean(rows.full_logprobs.reshape(-1), node, mine.reshape(-1), num)
