"""What each token counts in the loss, after advantages: weigh(key, rows, advantage, knobs) -> [N,T].

Weights of tokens dropped at random are inverse probabilities, so that sums stay unbiased; a weight of 0
means that the token is not trained. A function says what the loss must be divided by (`denominator`, see
objective.aggregate) and what the learner need not compute (`skips`, see core.traits). `within` is another
weigh, whose weights it multiplies and whose tokens it chooses from.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits

Share = float | Callable  # a number in (0, 1], or a function (knobs) -> number


def all_tokens():
  """Weight 1 for every response token of a valid row."""
  return lambda key, rows, advantage, knobs: rows.loss_mask.astype(jnp.float32)


# --------------------------------------------------------------------------------------------------
# At random, with inverse probabilities (Horvitz-Thompson)


def random_tokens(*, keep: float = 0.5):
  """Each token is kept with chance `keep`, on its own, and weighs 1 / keep.

  Args:
    keep: in (0, 1]; 1 is `all_tokens`.

  Source: URS of NAT, arXiv 2603.06619.
  """
  if not 0 < keep <= 1:
    raise ValueError(f"keep must lie in (0, 1], got {keep}")

  def weigh(key, rows, advantage, knobs):
    del advantage, knobs
    kept = rows.loss_mask & (jax.random.uniform(key, rows.tokens.shape) < keep)
    return jnp.where(kept, 1 / keep, 0.0)

  return traits.declare(weigh, skips="tokens", denominator="every")


def random_prefix(*, minimum: float = 0.1, full: float = 0.0):
  """Each row is cut at a random length; the learner computes nothing behind the cut.

      L ~ uniform {C, ..., T}, or T with chance `full`;  C = max(1, ceil(minimum T)),  T trained tokens
      weight of the t-th trained token = [t <= L] / p_t
      p_t = full + (1 - full) min(1, (T - t + 1) / (T - C + 1))

  The share of tokens kept is (1 + C / T) / 2 on average if full = 0, but then the last token weighs
  T - C + 1 when it is kept; 1 / full bounds every weight.

  Args:
    minimum: share of a row that is always kept, in [0, 1]; 1 is `all_tokens`.
    full: chance that a row is not cut, in [0, 1].

  Source: RPC of NAT, arXiv 2603.06619.
  """
  if not 0 <= minimum <= 1 or not 0 <= full <= 1:
    raise ValueError(f"minimum and full must lie in [0, 1], got {minimum} and {full}")

  def weigh(key, rows, advantage, knobs):
    del advantage, knobs
    mask = rows.loss_mask
    total = mask.sum(1)
    least = jnp.maximum(_ceil(minimum, total), 1)
    draw = jax.random.uniform(key, (2, *total.shape))
    cut = least + jnp.floor(draw[0] * (total - least + 1)).astype(jnp.int32)
    cut = jnp.where(draw[1] < full, total, jnp.minimum(cut, total))
    index = jnp.cumsum(mask, 1)  # t of each trained token
    free = jnp.maximum(total - least + 1, 1)[:, None]
    chance = jnp.minimum((total[:, None] - index + 1) / free, 1.0)
    chance = full + (1 - full) * chance
    kept = mask & (index <= cut[:, None])
    return jnp.where(kept, 1 / jnp.where(kept, chance, 1.0), 0.0).astype(jnp.float32)

  return traits.declare(weigh, skips="suffix", denominator="every")


# --------------------------------------------------------------------------------------------------
# On purpose


def max_variance(*, share: Share = 0.25, within=None):
  """Only the rows of the batch whose advantages vary most: the k lowest and the m - k highest of M, for the
  k of the largest variance (the smallest such k); no other subset of m has a larger one.

  A row's advantage is the mean over its trained tokens; it is not taken anew after the choice.

  Args:
    share: m = max(1, round(share M)); a number in (0, 1], or a function (knobs) -> number.
    within: weigh function; rows without any weight are not among the M.

  Source: D3S, arXiv 2509.22115.
  """
  within = _deliberate(within or all_tokens())
  _check_share(share)

  def weigh(key, rows, advantage, knobs):
    weight = within(key, rows, advantage, knobs)
    live = (weight != 0).any(1)
    a = _per_row(advantage, rows.loss_mask)
    size = jnp.floor(_value(share, knobs) * live.sum() + 0.5).astype(jnp.int32)
    return weight * _extremes(a, live, jnp.maximum(size, 1))[:, None]

  return traits.declare(weigh, denominator="kept")


def top_tokens(*, share: Share = 0.2, within=None):
  """Only the tokens of the batch with the largest |advantage| * entropy (of the law they were drawn from).

  Args:
    share: max(1, ceil(share n)) of the n tokens that have weight; a number in (0, 1], or a function
      (knobs) -> number.
    within: weigh function.

  Source: D3S, arXiv 2509.22115.
  """
  within = _deliberate(within or all_tokens())
  _check_share(share)

  def weigh(key, rows, advantage, knobs):
    weight = within(key, rows, advantage, knobs)
    pool = weight != 0
    size = jnp.maximum(_ceil(_value(share, knobs), pool.sum()), 1)
    score = jnp.where(pool, jnp.abs(advantage) * rows.entropy, -1.0).reshape(-1)
    rank = jnp.argsort(jnp.argsort(-score, stable=True)).reshape(pool.shape)
    return jnp.where(pool & (rank < size), weight, 0.0)

  return traits.declare(weigh, denominator="kept")


def _extremes(x, live, size):
  """bool [N]: the `size` live rows of the largest variance of x."""
  n = len(x)
  total = live.sum()
  size = jnp.minimum(size, total)
  x = jnp.where(live, x - masked.mean(x, live), jnp.inf)
  order = jnp.argsort(x, stable=True)  # live rows first, ascending
  y = jnp.where(jnp.arange(n) < total, x[order], 0.0)
  zero = jnp.zeros(1, jnp.float32)
  first, second = (jnp.concatenate([zero, jnp.cumsum(v)]) for v in (y, y * y))
  k = jnp.arange(n + 1)
  rest = jnp.clip(total - size + k, 0, n)  # the size - k highest begin here
  mean = lambda sums: (sums[k] + sums[n] - sums[rest]) / jnp.maximum(size, 1)
  variance = jnp.where(k <= size, mean(second) - mean(first) ** 2, -jnp.inf)
  slack = 1e-6 * second[n] / jnp.maximum(total, 1)  # rounding must not break ties
  best = (variance >= variance.max() - slack).argmax()
  place = jnp.zeros(n, jnp.int32).at[order].set(jnp.arange(n, dtype=jnp.int32))
  return live & ((place < best) | (place >= total - size + best))


def _per_row(x, mask):
  """float32 [N]: mean of x over the trained tokens; exact where they are equal."""
  low = jnp.where(mask, x, jnp.inf).min(1)
  high = jnp.where(mask, x, -jnp.inf).max(1)
  return jnp.where(low == high, low, masked.mean(x, mask, 1))


def _ceil(share, count):
  """ceil(share * count) of whole counts; a product that is whole but for float32 rounding stays so."""
  return jnp.ceil(share * count.astype(jnp.float32) * (1 - 2e-7)).astype(jnp.int32)


def _value(share, knobs):
  return share(knobs) if callable(share) else share


def _deliberate(within):
  """Raises ValueError if it drops tokens by chance, whose loss must be divided by every token."""
  if traits.trait(within, "denominator", "kept") != "kept":
    raise ValueError(
      "within weighs tokens by inverse probabilities, and its loss is divided by 'every' token: what is "
      "chosen among them would be divided by those that are kept. Take a weigh that drops tokens on purpose"
    )
  return within


def _check_share(share):
  if not callable(share) and not 0 < share <= 1:
    raise ValueError(f"share must lie in (0, 1], got {share}")
