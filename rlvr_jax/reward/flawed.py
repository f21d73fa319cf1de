"""Right answers reached by wrong reasoning."""

import jax.numpy as jnp


def flawed_positive(*, penalty: float = 1.0, flaw: str = ""):
  """+1 for a right response, -1 for a wrong one, 1 - penalty for a right one with a flaw in its reasoning.

  With a penalty of 1, flawed responses are reinforced while clean ones are rarer than wrong ones, and
  discouraged afterwards: their advantage against the group's mean has the sign of
  (2 - penalty) wrong - penalty clean.

  Args:
    penalty: in [0, 2]; 0 does not look at flaws, 2 makes a flaw as bad as a wrong answer.
    flaw: entry of rows.extras, float [N]: above 0.5 where a judge found a flaw. It is not looked at for
      wrong responses, and one that is not finite (the judge gave no answer) is no flaw. Empty: no judge.

  Source: FAPO, arXiv 2510.22543.
  """
  if not 0 <= penalty <= 2:
    raise ValueError(f"penalty must lie in [0, 2], got {penalty}")

  def reward(rows, knobs):
    del knobs
    right = rows.correct > 0.5
    plain = jnp.where(right, 1.0, -1.0)
    if not flaw:
      return plain
    if flaw not in rows.extras:
      have = ", ".join(sorted(rows.extras)) or "none"
      raise ValueError(f"the reward needs rows.extras[{flaw!r}]; the rows carry: {have}")
    return jnp.where(right & (rows.extras[flaw] > 0.5), 1.0 - penalty, plain).astype(jnp.float32)

  return reward
