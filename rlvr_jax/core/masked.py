"""Sums and means over a mask, safe against anything (NaN, inf) in masked places.

`where` comes before the arithmetic, not a multiplication by the mask: 0 * inf is NaN, forwards and
backwards. An empty mask yields 0.
"""

import jax.numpy as jnp


def select(x, mask):
  """x where mask, else 0; gradients of masked places are 0 too."""
  return jnp.where(mask, x, jnp.zeros((), x.dtype))


def total(x, mask, axis=None):
  """Sum of x over mask."""
  return select(x, mask).sum(axis)


def mean(x, mask, axis=None):
  """Sum of x over mask / number of True in mask."""
  count = jnp.maximum(mask.sum(axis), 1).astype(jnp.float32)
  return total(x.astype(jnp.float32), mask, axis) / count


def variance(x, mask, ddof=0):
  """Sum of squared deviations over mask / (number of True - ddof); 0 if that is not positive."""
  d = select(x.astype(jnp.float32) - mean(x, mask), mask)
  count = mask.sum() - ddof
  return jnp.where(count > 0, (d * d).sum() / jnp.maximum(count, 1), 0.0)


def highest(x, mask):
  """Largest x over mask; 0 if the mask is empty."""
  return jnp.where(mask.any(), jnp.where(mask, x, -jnp.inf).max(), 0.0)
