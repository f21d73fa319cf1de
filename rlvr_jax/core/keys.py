"""Named random streams. Every random number of a run comes from one key, a name and some integers."""

import zlib

import jax
import jax.numpy as jnp


def stream(key, name, *ints):
  """The key of the stream `name` at `ints` (which may be traced)."""
  key = jax.random.fold_in(key, zlib.crc32(name.encode()))
  for i in ints:
    key = jax.random.fold_in(key, i)
  return key


def row_uids(key, step, prompt_id, replica):
  """uint32 [N,2]: the randomness of each row, as raw key data.

  Depends on nothing but the run's key, the step, the prompt and how many rows that prompt drew before
  in the step. Four rows now and four in a later wave therefore equal eight at once, and methods that
  roll out the same prompt see common random numbers.
  """

  def one(prompt, number):
    return jax.random.key_data(stream(key, "row", step, prompt, number))

  return jax.vmap(one)(prompt_id, replica)


def token_uniforms(uid, position):
  """float32 [N,2] in [0,1): the random numbers of the token at `position` [N] of the row `uid` [N,2]."""

  def one(data, place):
    return jax.random.uniform(jax.random.fold_in(jax.random.wrap_key_data(data), place), (2,))

  return jax.vmap(one)(uid, jnp.asarray(position))
