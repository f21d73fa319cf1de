"""Rare strategies count more: an advantage over a power of how many rollouts share the row's strategy."""

import jax.numpy as jnp

from rlvr_jax.advantage.group import extra, group_mean, scored
from rlvr_jax.core import groups


def weights(cluster, group, valid, alpha: float):
  """float32 [N]: f^-alpha, f the rows of the group in the row's cluster; 1 for a cluster below 0 (none)."""
  placed = valid & (cluster >= 0)
  same = groups.split(group, cluster, placed)
  size = groups.count(same, placed)[same]
  return jnp.where(placed, jnp.maximum(size, 1.0) ** -alpha, 1.0)


def uniqueness(
  *,
  base=None,
  alpha: float = 1.0,
  correct_only: bool = False,
  renormalise: bool = False,
  cluster: str = "reward/strategy",
):
  """A base advantage times `weights`.

  With alpha 1 every cluster of a group has the same total weight. Advantages of a group then no longer sum
  to 0, and a group of one cluster counts 1/G of what it did. No sign changes.

  Args:
    base: another advantage; None: GRPO's, with the sample standard deviation.
    alpha: in [0, 1]; 0 is the base.
    correct_only: weigh only rows whose verdict is right (correct > 0.5).
    renormalise: multiply each group so that its sum of |advantage| over rows is what it was.
    cluster: entry of rows.extras, [N] whole numbers, compared within a group; below 0 or not
      finite: in none.

  Source: Uniqueness-Aware RL, arXiv 2601.08763; `renormalise` is not in the paper.
  """
  if not 0 <= alpha <= 1:
    raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
  base = group_mean(ddof=1) if base is None else base

  def advantage(rows):
    a = base(rows)
    number = extra(rows, cluster)
    number = jnp.where(jnp.isfinite(number), number, -1).astype(jnp.int32)
    _, group, ok = scored(rows)
    w = weights(number, group, ok, alpha)
    if correct_only:
      w = jnp.where(rows.correct > 0.5, w, 1.0)
    if renormalise:
      size = jnp.abs(a).max(1)  # the base gives all tokens of a row the same
      before, after = (groups.total(x, group, ok)[group] for x in (size, w * size))
      w = w * jnp.where(after > 0, before / jnp.where(after > 0, after, 1.0), 1.0)
    return a * w[:, None]

  return advantage
