"""Which whole rows enter the learner's batch, before advantages: choose(key, rows, knobs) -> bool [N].

Group statistics see the chosen rows only. Filters read `correct`, never the shaped reward.
"""

import jax
import jax.numpy as jnp

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


def resample_on_correct(
  *, size: int = 0, min_right: int = 2, min_wrong: int = 2, penalty=None, sample: bool = False
):
  """Of each mixed group `size` rows in the proportion of right and wrong that it has: the cleanest right
  ones, and wrong ones whatever they look like.

      n_wrong = round(#wrong size / M) (half to even), n_right = size - n_wrong, of M rows
      raised to min(min_wrong, #wrong) and min(min_right, #right), the other one giving way; neither
      minimum is taken to be more than half of size

  Groups of equal verdicts, and of fewer than `size` rows, are dropped.

  Args:
    size: rows kept of a group; 0 takes half of the group.
    min_right, min_wrong: quotas are at least these, where there are so many.
    penalty: (rows) -> float32 [N], at least 0, what is wrong with a row besides its verdict; default
      `untidiness`. Those of wrong rows change nothing.
    sample: right rows are drawn without replacement, with weight 1 / (penalty + 0.001), as in the paper;
      else the ones of least penalty are taken, ties by index, as in its code.

  Source: GRPO-RoC of rStar2-Agent, arXiv 2508.20722.
  """
  if size < 0 or min_right < 0 or min_wrong < 0:
    raise ValueError(f"size and minima must be at least 0: {size}, {min_right}, {min_wrong}")
  penalty = penalty or untidiness

  def choose(key, rows, knobs):
    del knobs
    right = rows.valid & (rows.correct > 0)
    wrong = rows.valid & ~right
    count = lambda mask: groups.count(rows.group, mask).astype(jnp.int32)
    num_right, num_wrong = count(right), count(wrong)
    total = num_right + num_wrong
    keep = jnp.full_like(total, size) if size else total // 2
    take_wrong = jnp.round(num_wrong * keep / jnp.maximum(total, 1)).astype(jnp.int32)
    least = lambda quota, there: jnp.minimum(jnp.minimum(quota, keep // 2), there)
    take_wrong = jnp.maximum(take_wrong, least(min_wrong, num_wrong))
    take_wrong = jnp.minimum(take_wrong, keep - least(min_right, num_right))
    mess = penalty(rows)
    if sample:
      mess = jnp.log(mess + 1e-3) - jax.random.gumbel(key, mess.shape)
    fine = (num_right > 0) & (num_wrong > 0) & (total >= keep)
    quota = jnp.where(right, (keep - take_wrong)[rows.group], take_wrong[rows.group])
    rank = jnp.where(
      right,
      groups.rank(rows.group, right, by=jnp.where(right, mess, 0.0)),
      groups.rank(rows.group, wrong),
    )
    return rows.valid & fine[rows.group] & (rank < quota)

  return choose


def balanced(*, ratio: float = 1.0, below: float = 0.5, uniform: int = 4):
  """Of a group with more wrong than right rows all right ones, and as many wrong ones, drawn at random.

  A group that is right in a share of `below` or more stays whole; of one whose verdicts are all equal some
  rows stay, drawn at random (they have no advantage within the group: it takes one that has).

  Args:
    ratio: wrong rows for each right one, at least one in all; inf: all.
    below: share of right rows.
    uniform: rows that stay of a group of equal verdicts; 0: none.

  Source: AERO, arXiv 2602.14338.
  """
  if ratio < 0 or not 0 <= below <= 1 or uniform < 0:
    raise ValueError(
      f"need ratio >= 0, below in [0, 1] and uniform >= 0, got {ratio}, {below} and {uniform}"
    )

  def choose(key, rows, knobs):
    del knobs
    right = rows.valid & (rows.correct > 0.5)
    wrong = rows.valid & ~right
    c, w = groups.count(rows.group, right), groups.count(rows.group, wrong)
    equal = (c == 0) | (w == 0)
    hard = ~equal & (c < below * (c + w))
    quota = jnp.where(hard, jnp.maximum(jnp.round(ratio * jnp.maximum(c, 1)), 1), jnp.inf)
    quota = jnp.where(equal, uniform, quota)[rows.group]
    draw = jax.random.uniform(key, rows.valid.shape)
    place = groups.rank(rows.group, wrong | (rows.valid & equal[rows.group]), by=draw)
    return rows.valid & ((right & ~equal[rows.group]) | (place < quota))

  return choose


def committed(*, pilots: int = 0):
  """Groups that a later wave added to; the others were only looked at.

  Args:
    pilots: rows of the first wave that stay in a group, half of them right if there are enough of both:
      their verdicts vary most; 0: all.

  Source: Pilot-Commit, arXiv 2605.26606.
  """
  if pilots < 0:
    raise ValueError(f"pilots must be at least 0, got {pilots}")

  def choose(key, rows, knobs):
    del key, knobs
    later = rows.valid & (rows.wave > 0)
    fine = groups.count(rows.group, later)[rows.group] > 0
    if not pilots:
      return rows.valid & fine
    first = rows.valid & (rows.wave == 0)
    right, wrong = (first & (flag == (rows.correct > 0.5)) for flag in (True, False))
    num_right, num_wrong = groups.count(rows.group, right), groups.count(rows.group, wrong)
    ones = jnp.minimum(jnp.maximum(pilots // 2, pilots - num_wrong), num_right)
    quota = jnp.where(right, ones[rows.group], pilots - ones[rows.group])
    place = jnp.where(right, groups.rank(rows.group, right), groups.rank(rows.group, wrong))
    return rows.valid & fine & (later | (first & (place < quota)))

  return choose


def exchanged():
  """Every valid row, but in a group that borrowed a row (of wave -1) its last own wrong one gives way.

  Source: AR3PO, arXiv 2509.25808.
  """

  def choose(key, rows, knobs):
    del key, knobs
    borrowed = groups.count(rows.group, rows.valid & (rows.wave < 0))[rows.group]
    own = rows.valid & (rows.wave >= 0) & ~(rows.correct > 0.5)
    last = groups.rank(rows.group, own) >= groups.count(rows.group, own)[rows.group] - borrowed
    return rows.valid & ~(own & last)

  return choose


def untidiness(rows):
  """float32 [N]: 1 for a response that was cut off, plus the share of its trigrams that it had before."""
  inside = jnp.arange(rows.tokens.shape[1])[None] >= rows.response_start[:, None]
  inside &= jnp.arange(rows.tokens.shape[1])[None] < rows.length[:, None]
  t = rows.tokens.astype(jnp.uint32)
  a, b = jnp.uint32(0x9E3779B1), jnp.uint32(0x85EBCA6B)
  hashed = (t[:, :-2] * a + t[:, 1:-1]) * b + t[:, 2:]
  there = inside[:, :-2] & inside[:, 2:]
  order = jnp.lexsort((hashed, ~there))
  h, c = (jnp.take_along_axis(x, order, 1) for x in (hashed, there))
  again = ((h[:, 1:] == h[:, :-1]) & c[:, 1:]).sum(1)
  return rows.truncated + again / jnp.maximum(there.sum(1), 1).astype(jnp.float32)


def tool_penalty(errors, calls, opened, closed, pairs, turns):
  """The penalty of a tool-using trajectory, from counts [N].

      0.5 without a call, else errors / calls; plus 1 if answer tags are missing or do not match or there
      are no turns, else min((pairs - 1) / turns, 1)

  Args:
    errors, calls: tool results that are errors, of how many.
    opened, closed, pairs: answer tags, and well-formed pairs of them.
    turns: of the assistant.

  Source: the code of rStar2-Agent.
  """
  used = jnp.where(calls > 0, errors / jnp.maximum(calls, 1), 0.5)
  matched = (opened > 0) & (opened == closed) & (opened == pairs) & (turns > 0)
  return used + jnp.where(matched, jnp.minimum((pairs - 1) / jnp.maximum(turns, 1), 1.0), 1.0)
