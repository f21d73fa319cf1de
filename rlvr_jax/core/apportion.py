"""Whole numbers that add up: a budget of units shared among B claimants, each between its bounds.

Every function returns int32 [B] counts with low <= counts <= high that sum to exactly

    min(max(total, sum(low)), sum(high))

so minima that ask for more than there is are met all the same, and what the maxima do not take is left
over: callers refuse the first where it is static. Bounds are whole numbers, one or [B]; a claimant that is
not there has both at 0. A number that is not finite, in a share or a gain, counts as nothing.
"""

import jax.numpy as jnp

from rlvr_jax.core.types import Array

_TIE = 1024  # remainders are compared in steps of 1/1024: rounding in float32 must not break ties


def even(there, total):
  """The total dealt like cards to those of `there` bool [B]; nothing if there is nobody."""
  num = jnp.maximum(there.sum(), 1)
  counts = total // num + (jnp.cumsum(there) - 1 < total % num)
  return jnp.where(there, counts, 0).astype(jnp.int32)


def largest_remainder(share, total, *, low: int | Array = 0, high: int | Array | None = None):
  """Units above `low` in proportion to a share; what is left after rounding down goes to the largest rests.

  Where a bound cuts a claimant off, the others share what it leaves, in proportion again; claimants
  without any share come last, evenly. Ties go to the lower index.

  Args:
    share: float [B], at least 0; only ratios matter, and all 0 counts as equal.
    total: int [], may be traced.
    low, high: int [] or [B]; high defaults to the total.

  Source: Hamilton's method of apportionment.
  """
  low, room, free = _bounds(len(share), total, low, high)
  share = jnp.where(jnp.isfinite(share), jnp.maximum(share, 0.0), 0.0).astype(jnp.float32)
  first = _proportional(share, room, jnp.minimum(free, jnp.where(share > 0, room, 0).sum()))
  room = room - first
  return low + first + _proportional(jnp.ones_like(share), room, free - first.sum())


def _proportional(share, room, total):
  """int32 [B] <= room, in proportion to share where the room allows; total fits what has a share."""
  room = jnp.where(share > 0, room, 0)
  # The scale c with sum(min(c share, room)) = total: the k claimants of least room/share are full.
  order = jnp.argsort(jnp.where(share > 0, room / jnp.where(share > 0, share, 1.0), jnp.inf))
  s, r = share[order], room[order].astype(jnp.float32)
  rest = jnp.cumsum(s[::-1])[::-1]
  scale = (total - (jnp.cumsum(r) - r)) / jnp.where(rest > 0, rest, 1.0)
  fits = (s > 0) & (scale * s <= r)
  scale = jnp.where(fits.any(), scale[fits.argmax()], jnp.inf)
  exact = jnp.where(share > 0, jnp.minimum(scale * jnp.where(share > 0, share, 1.0), room), 0.0)
  whole = jnp.floor(exact).astype(jnp.int32)
  rests = jnp.round((exact - whole) * _TIE)
  rests = jnp.where(whole < room, rests, -1.0)
  place = jnp.argsort(jnp.argsort(-rests, stable=True))
  return whole + (place < total - whole.sum())


def greedy(gains, total, *, low: int | Array = 0, high: int | Array | None = None):
  """One unit after the other to whoever gains most by it: the best split if gains fall with each unit.

  Equal gains go to whoever has fewer units above its minimum, then to the lower index: units that bring
  nothing are dealt like cards.

  Args:
    gains: float [B,K], of the first, second, ... unit above `low`, on any scale that keeps the order; rows
      must not rise, and a claimant gets at most K.
    total, low, high: of `largest_remainder`.

  Source: marginal allocation, Fox, "Discrete optimization via marginal analysis", 1966.
  """
  low, room, free = _bounds(len(gains), total, low, high)
  gains = jnp.where(jnp.isnan(gains), -jnp.inf, gains).T
  barred = jnp.arange(len(gains))[:, None] >= room[None]
  order = jnp.lexsort((-gains.reshape(-1), barred.reshape(-1)))
  free = jnp.minimum(free, (~barred).sum())
  taken = jnp.zeros(gains.size, bool).at[order].set(jnp.arange(gains.size) < free)
  return low + taken.reshape(gains.shape).sum(0).astype(jnp.int32)


def neyman(deviation, total, *, low: int | Array = 1, high: int | Array | None = None, span: int):
  """The split of least sum_b deviation_b^2 / n_b: about in proportion to the deviation, but exact.

  Args:
    deviation: float [B], at least 0.
    total, low, high: of `largest_remainder`; of a claimant without a single unit, the first is worth more
      than any other.
    span: static, most units above `low` that one claimant may get.

  Source: Neyman 1934; the exact whole numbers: Wright, "The Equivalence of Neyman Optimum Allocation for
  Sampling and Equal Proportions for Apportioning the U.S. House of Representatives", 2012.
  """
  n = jnp.broadcast_to(jnp.asarray(low, jnp.float32), deviation.shape)[:, None]
  n = n + jnp.arange(span, dtype=jnp.float32)[None]
  gains = 2 * jnp.log(deviation)[:, None] - jnp.log(n) - jnp.log(n + 1)
  # A first unit is worth more than any finite gain; which one goes first is up to the deviation.
  gains = jnp.where(n == 0, 1e6 + 2 * jnp.log(deviation)[:, None], gains)
  return greedy(gains, total, low=low, high=high)


def priced(gains, cost, budget, total, *, low: int | Array = 0, high: int | Array | None = None):
  """Units by gain for each unit of cost, as long as budget and number last.

  The best split if they are used up; otherwise it is short of the best by less than one unit. Every unit
  taken above `low` has a gain of at least price * cost, every one left a gain of at most that.

  Args:
    gains: float [B,K], at least 0, of the first, second, ... unit above `low`; rows must not rise.
    cost: float [B], positive, of one unit of each claimant.
    budget: float [], most that all units may cost, those of `low` included.
    total, low, high: of `largest_remainder`; the counts sum to at most the total here.

  Returns:
    counts int32 [B], price float32 []: gain for each unit of cost of the first unit not taken, the dual
    price of the budget; 0 if none is left that gains anything.

  Source: Lagrange multipliers for discrete allocation, Everett, 1963.
  """
  low, room, free = _bounds(len(gains), total, low, high)
  known = jnp.isfinite(cost) & (cost > 0)
  cost = jnp.where(known, cost, 1.0).astype(jnp.float32)
  gains = jnp.where(jnp.isfinite(gains) & known[:, None], gains, 0.0).T
  rate = jnp.where(jnp.arange(len(gains))[:, None] < room[None], gains / cost[None], 0.0).reshape(
    -1
  )
  order = jnp.argsort(-rate, stable=True)
  each = jnp.broadcast_to(cost[None], gains.shape).reshape(-1)[order]
  fits = ((low * cost).sum() + jnp.cumsum(each) <= budget) & (jnp.arange(len(order)) < free)
  # The first unit that does not fit ends it: a cheaper one after it would break the price.
  takes = jnp.cumprod(fits & (rate[order] > 0)).astype(bool)
  taken = jnp.zeros(len(order), bool).at[order].set(takes)
  price = jnp.where(takes.all(), 0.0, jnp.maximum(rate[order][(~takes).argmax()], 0.0))
  return low + taken.reshape(gains.shape).sum(0).astype(jnp.int32), price


def _bounds(num, total, low, high):
  """low, room above it, and how much of the room is to be used."""
  low = jnp.broadcast_to(jnp.asarray(low, jnp.int32), (num,))
  high = jnp.broadcast_to(jnp.asarray(total if high is None else high, jnp.int32), (num,))
  room = jnp.maximum(high - low, 0)
  return low, room, jnp.clip(total - low.sum(), 0, room.sum()).astype(jnp.int32)
