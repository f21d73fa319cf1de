"""Which whole rows enter the learner's batch, before advantages: choose(key, rows, knobs) -> bool [N].

Group statistics see the chosen rows only. Filters read `correct`, never the shaped reward.
"""

from rlvr_jax.core import groups


def everything():
  """Every valid row."""
  return lambda key, rows, knobs: rows.valid


def mixed():
  """Groups with at least one right and one wrong row: the others have no gradient.

  Source: DAPO, arXiv 2503.14476, dynamic sampling.
  """

  def choose(key, rows, knobs):
    del key, knobs
    args = rows.correct, rows.group, rows.valid
    return rows.valid & (groups.highest(*args) > groups.lowest(*args))[rows.group]

  return choose
