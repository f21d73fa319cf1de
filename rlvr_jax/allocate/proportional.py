"""One wave, more rows for prompts of a larger share.

share(prompts, knobs) -> float32 [B], at least 0; what is not a number counts as 0, and where all are 0 the
prompts share evenly. The counts sum to the width whenever there is a valid prompt and the maxima allow it.
"""

import jax.numpy as jnp

from rlvr_jax.allocate.bounds import one_wave
from rlvr_jax.core import apportion
from rlvr_jax.core.types import Allocator


def deviation(prompts, knobs):
  """Standard deviation of one verdict, sqrt(p (1 - p)), at the believed solve rate."""
  del knobs
  p = jnp.clip(prompts.belief.mean, 0.0, 1.0)
  return jnp.sqrt(p * (1 - p))


def score(prompts, knobs):
  """What the prompt was selected by."""
  del knobs
  return prompts.score


def proportional(*, share=deviation, low: int = 2, high: int = 0, pair: bool = False) -> Allocator:
  """Rows in proportion to a share, by largest remainders.

  Args:
    share: see above.
    low, high: least and most rows of a prompt; high 0: no bound.
    pair: no prompt keeps a lone row, which has nobody to be compared with: see `pair_up`.
  """

  def split(prompts, width, knobs, least, most):
    s = share(prompts, knobs)
    counts = apportion.largest_remainder(s, width, low=least, high=most)
    return pair_up(counts, s) if pair else counts

  return one_wave(split, low, high)


def neyman(*, deviation=deviation, low: int = 2, high: int = 0) -> Allocator:
  """The split of least sum_b deviation_b^2 / n_b, exact in whole numbers.

  Args:
    deviation: a share, the standard deviation of one row of the prompt.
    low, high: least and most rows of a prompt; high 0: no bound.
  """

  def split(prompts, width, knobs, least, most):
    s = deviation(prompts, knobs)
    return apportion.neyman(s, width, low=least, high=most, span=max((high or width) - low, 1))

  return one_wave(split, low, high)


def pair_up(counts, share):
  """counts [B] without any 1: of k lone rows, the floor(k / 2) of largest share become pairs of what the
  others give up, and an odd one goes to the largest share of all. The sum stays.

  Source: our reading of CurES, arXiv 2510.01037.
  """
  lone = counts == 1
  key = jnp.where(jnp.isfinite(share), share, 0.0)
  place = jnp.argsort(jnp.lexsort((-key, ~lone)))
  pairs = lone.sum() // 2
  counts = jnp.where(lone, jnp.where(place < pairs, 2, 0), counts)
  spare = lone.sum() % 2
  top = jnp.where((counts > 0) | (counts.sum() == 0), key, -1.0).argmax()
  return counts.at[top].add(spare).astype(jnp.int32)
