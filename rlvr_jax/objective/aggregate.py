"""From the loss of each token to one number: aggregate(loss, weight, rows) -> (numerator, denominator).

The learner sums numerators over bins and devices and divides once by the denominator of the WHOLE batch,
so the split never changes the gradient. The denominator depends on weights and masks alone.
"""

import jax.numpy as jnp

from rlvr_jax.core import masked


def token_mean():
  """Sum over tokens / number of trained tokens of rows that have any weight.

      loss = sum_nt w_nt l_nt / #{nt in the mask: row n has a weight that is not 0}

  A row dropped on purpose (all weights 0) leaves the denominator; tokens dropped at random from a row do
  not, as their inverse probabilities make up for them. Long responses weigh more than short ones.

  Source: DAPO, arXiv 2503.14476, token-level loss.
  """

  def aggregate(loss, weight, rows):
    mask = rows.loss_mask
    live = (masked.select(weight, mask) != 0).any(1)
    numerator = masked.total(loss * masked.select(weight, mask), mask)
    return numerator, (mask & live[:, None]).sum().astype(jnp.float32)

  return aggregate
