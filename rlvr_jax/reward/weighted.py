"""Several reward functions make one reward."""

import jax.numpy as jnp


def weighted(**weights: float):
  """reward(rows, knobs) -> float32 [N]: the weighted sum over the functions that apply to a row.

      reward[n] = sum of weights[f] * value[f, n] over the f for which value[f, n] is not NaN

  with value[f] = rows.extras["reward/<f>"]. A value of 0.0 is a score like any other; a function that does
  not apply adds nothing, and the others are not scaled up for it. A row that none applies to gets 0:
  train.collect leaves it out of the batch, so that it moves no baseline. (Functions of weight 0 are only
  looked at: they do not keep a row in.)

  Args:
    **weights: of each function, by its name.
  """

  def reward(rows, knobs):
    del knobs
    total = jnp.zeros(rows.correct.shape, jnp.float32)
    for name, weight in weights.items():
      value = rows.extras[f"reward/{name}"]
      total += jnp.where(jnp.isnan(value), 0.0, weight * value)
    return total

  return reward
