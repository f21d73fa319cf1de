"""Prompts in the order of a grain stream: what a round may choose among, when not the whole table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import PromptTable
from rlvr_jax.tasks.table import stream


class Offer:
  """Offers the next prompts of the stream at each call, `candidates` different ones.

  The stream goes through the table in shuffled epochs; with weights, each source has a share of the
  stream and epochs of its own. Its state is one number, `position`, which RunState carries.
  """

  def __init__(
    self,
    table: PromptTable,
    sources: Sequence[str],
    *,
    candidates: int,
    weights: Mapping[str, float],
    seed: int,
  ):
    """Args:
      table: all prompts, [M,P].
      sources: names; the table's `source` is an index into them.
      candidates: prompts of an offer, at most M.
      weights: source -> its share of the stream; empty: as the prompts are.
      seed: of the shuffles.

    Raises:
      ValueError: for more candidates than prompts, an unknown source, or weights that are not positive.
    """
    for name in weights:
      if name not in sources:
        raise unknown("source in source_weights", name, sources)
    by_index = {sources.index(name): weight for name, weight in weights.items()}
    there = int(np.isin(table.source, list(by_index)).sum()) if by_index else len(table.length)
    if candidates > there:
      raise ValueError(f"candidates = {candidates}, but the stream has {there} prompts")
    self._num, self._candidates, self._next = len(table.length), candidates, 0
    self._stream: Any = stream(table, seed=seed, weights=by_index or None)

  @property
  def position(self) -> np.ndarray:
    """int64 [1]: prompts of the stream that were offered."""
    return np.array([self._next], np.int64)

  def seek(self, position: np.ndarray) -> None:
    """Goes on from a position."""
    self._next = int(position[0])

  def __call__(self) -> np.ndarray:
    """bool [M]: the prompts offered next."""
    mask = np.zeros(self._num, bool)
    while (
      mask.sum() < self._candidates
    ):  # where an epoch ends, the next may begin with the same ones
      mask[int(self._stream[self._next])] = True
      self._next += 1
    return mask
