"""Tokens that lose their loss for what the policy now thinks of the row: veto(d, advantage, mask) -> bool.

Part of an objective (see objective.ratio.surrogate), since it needs the log ratio d [N,T] of the update it
acts in; True keeps. No gradient goes through it, and the denominator of the loss stays.
"""

import jax.numpy as jnp

from rlvr_jax.core import traits


def stale_suffix(*, low: float = 0.1, high: float = float("inf")):
  """Drops what follows the first stale token of a row that is being pushed down.

  A token with a ratio below `low` or above `high` is a trigger. Where the advantage is negative every token
  strictly after the first trigger of its row is dropped: the policy hardly comes there any more, yet it
  would be pushed down. Rows that gain are never touched.

  Args:
    low: at least 0; 0 is never.
    high: above low; inf is never.

  Source: Mu-GRPO, arXiv 2605.17570.
  """
  if not 0 <= low < high:
    raise ValueError(f"low and high must satisfy 0 <= low < high, got {low} and {high}")

  def veto(d, advantage, mask):
    ratio = jnp.exp(d)
    trigger = mask & ((ratio < low) | (ratio > high))
    before = jnp.cumsum(trigger, 1) - trigger  # triggers strictly before the token
    return mask & ((advantage >= 0) | (before == 0))

  return traits.declare(veto, reads="prefix")
