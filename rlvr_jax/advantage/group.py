"""Advantages against the other rollouts of the same prompt: advantage(rows) -> float32 [N,T]."""

import jax.numpy as jnp

from rlvr_jax.core import groups


def spread(per_row, rows):
  """[N] -> [N,T]: the row's number on each trained token, 0 elsewhere."""
  return jnp.where(rows.loss_mask, per_row[:, None], 0.0)


def group_mean(*, scale: bool = True, ddof: int = 0, epsilon: float = 1e-6):
  """Reward against the group's mean, in units of its standard deviation.

      A_n = (r_n - mean_g r) / (std_g r + epsilon)         without the division if not `scale`

  A group whose rewards are all equal yields exactly 0, whatever rounding does to its mean; so does a
  group of one.

  Args:
    scale: False gives Dr.GRPO's advantage, which does not favour prompts that are almost solved or
      almost hopeless.
    ddof: 0 divides the variance by the size of the group, 1 by one less.
    epsilon: positive.

  Source: GRPO, arXiv 2402.03300; without scale: Dr.GRPO, arXiv 2503.20783.
  """
  if ddof not in (0, 1):
    raise ValueError(f"ddof must be 0 or 1, got {ddof}")
  if epsilon <= 0:
    raise ValueError(f"epsilon must be positive, got {epsilon}")

  def advantage(rows):
    args = rows.reward.astype(jnp.float32), rows.group, rows.valid
    d = args[0] - groups.mean(*args)[rows.group]
    same = (groups.highest(*args) == groups.lowest(*args))[rows.group]
    d = jnp.where(same, 0.0, d)
    if scale:
      d = d / (groups.std(*args, ddof=ddof)[rows.group] + epsilon)
    return spread(d, rows)

  return advantage
