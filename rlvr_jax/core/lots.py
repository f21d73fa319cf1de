"""Random numbers for every prompt of a large table, many times as fast as jax.random.

The word of place i is i, mixed with two words of the key by a function that takes no word twice: rounds of
multiplications and shifts whose output bits each depend on every input bit. What is drawn so is a lot among
prompts, not a secret. One key gives one number to a place, whatever the number of places.

Source: the multipliers and shifts are those of lowest bias in C. Wellons, "Prospecting for hash functions"
(2018); that a hash of a counter makes a generator: Salmon et al., "Parallel random numbers: as easy as 1, 2,
3" (2011).
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Array


def words(key, num: int) -> Array:
  """uint32 [num]."""
  # Without the barrier XLA may make the two words of the key anew for every place.
  salt = jax.lax.optimization_barrier(jax.random.bits(key, (2,), jnp.uint32))
  return _mixed(_mixed(jnp.arange(num, dtype=jnp.uint32) ^ salt[0]) ^ salt[1])


def _mixed(x: Array) -> Array:
  x = (x ^ (x >> 16)) * jnp.uint32(0x21F0AAAD)
  x = (x ^ (x >> 15)) * jnp.uint32(0x735A2D97)
  return x ^ (x >> 15)


def uniform(key, num: int) -> Array:
  """float32 [num], multiples of 2^-24 in [0, 1)."""
  return (words(key, num) >> 8).astype(jnp.float32) * 2.0**-24


def inside(key, num: int) -> Array:
  """float32 [num] in (0, 1): the middles of 2^23 equal parts."""
  return ((words(key, num) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23


def normal(key, num: int) -> Array:
  """float32 [num], of mean 0 and variance 1, within 5.3 of 0."""
  return 2**0.5 * jax.lax.erf_inv(2 * inside(key, num) - 1)


def gumbel(key, num: int) -> Array:
  """float32 [num], of the law whose largest of several is a draw from their softmax."""
  return -jnp.log(-jnp.log(inside(key, num)))
