"""Several processes that run one program: reading what lies on other machines, agreeing on host values.

Every process runs the same host code on the same numbers, and calls these functions in the same order.
With one process they are plain device_get, device_put and function calls.
"""

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

SMALLEST = 2**16  # bytes of a message; lengths are powers of two, so that few are compiled


def is_first() -> bool:
  """Whether this process is the one that writes files."""
  return jax.process_index() == 0


def host(tree):
  """The arrays of a pytree as numpy arrays, whole on every process, wherever their parts lie."""

  def whole(x):
    far = isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated)
    return multihost_utils.process_allgather(x, tiled=True) if far else x

  return jax.device_get(jax.tree.map(whole, tree))


def put(tree, shardings):
  """Lays a pytree out; arrays that are not global yet are taken to be equal on every process.

  Args:
    shardings: a sharding for each array.
  """

  def one(x, sharding):
    if sharding.is_fully_addressable or (isinstance(x, jax.Array) and not x.is_fully_addressable):
      return jax.device_put(x, sharding)
    local = np.asarray(x)
    return jax.make_array_from_callback(local.shape, sharding, lambda index: local[index])

  return jax.tree.map(one, tree, shardings)


def gather(value) -> list[Any]:
  """What each process passed, in their order; anything that pickles."""
  if jax.process_count() == 1:
    return [value]
  message = np.frombuffer(pickle.dumps(value), np.uint8)
  lengths = multihost_utils.process_allgather(np.array([len(message)], np.int32))[:, 0]
  room = max(SMALLEST, 1 << int(lengths.max() - 1).bit_length())
  messages = multihost_utils.process_allgather(np.pad(message, (0, room - len(message))))
  return [pickle.loads(m[:n].tobytes()) for m, n in zip(messages, lengths, strict=True)]


def first(function: Callable[[], Any]):
  """What function() gives on the first process; the others do not call it.

  Raises:
    Exception: on every process what it raises on the first.
  """
  result, error = None, None
  if is_first():
    try:
      result = function()
    except Exception as raised:
      error = raised
  result, error = gather((result, error))[0]
  if error is not None:
    raise error
  return result


def shared(function: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
  """`function` of equally long sequences, item by item, its calls split over the processes.

  All processes get all results: what one of them timed, say, is true for all.
  """

  def call(*items: Sequence[Any]) -> list[Any]:
    num, this = jax.process_count(), jax.process_index()
    bounds = [len(items[0]) * i // num for i in range(num + 1)]
    mine = function(*(x[bounds[this] : bounds[this + 1]] for x in items))
    return [result for part in gather(mine) for result in part]

  return call
