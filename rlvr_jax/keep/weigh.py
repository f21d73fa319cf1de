"""What each token counts in the loss, after advantages: weigh(key, rows, advantage, knobs) -> [N,T].

Weights of tokens dropped at random are inverse probabilities, so that sums stay unbiased; a weight of 0
means that the token is not trained.
"""

import jax.numpy as jnp


def all_tokens():
  """Weight 1 for every response token of a valid row."""
  return lambda key, rows, advantage, knobs: rows.loss_mask.astype(jnp.float32)
