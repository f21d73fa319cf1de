"""What the tokens of trees count in the loss: weigh(key, rows, advantage, knobs) -> [N,T]."""

import jax.numpy as jnp

from rlvr_jax.core import traits, trees


def once():
  """Weight 1 for every token of a tree, however many of its leaves share it.

  A token counts in the row that owns it. For credit by nodes, which all leaves of a token agree on: with the
  credit of leaves, the sum over the leaves is what the gradient of their mean return asks for.
  """

  def weigh(key, rows, advantage, knobs):
    del key, advantage, knobs
    return (trees.owned(rows) & rows.loss_mask).astype(jnp.float32)

  return traits.declare(weigh, denominator="kept")
