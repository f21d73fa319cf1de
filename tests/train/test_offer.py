"""Prompts offered in the order of a stream."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import PromptTable
from rlvr_jax.train.offer import Offer


def _table(sources):
  num = len(sources)
  zeros = np.zeros((num, 4), np.int32)
  return PromptTable(jnp.asarray(zeros), jnp.ones(num, jnp.int32), np.asarray(sources, np.int32))


def test_an_epoch_offers_each_prompt_once_and_the_next_in_another_order():
  offer = Offer(_table([0] * 12), ["a"], candidates=4, weights={}, seed=0)
  first, second = [np.stack([offer() for _ in range(3)]) for _ in range(2)]
  np.testing.assert_array_equal(first.sum(0), np.ones(12))
  np.testing.assert_array_equal(second.sum(0), np.ones(12))
  assert (first != second).any()
  assert offer.position.tolist() == [24] and offer.position.dtype == np.int64


def test_weights_are_shares_of_the_stream():
  sources = [0] * 30 + [1] * 10
  weights = {"many": 1, "few": 3}
  offer = Offer(_table(sources), ["many", "few"], candidates=4, weights=weights, seed=1)
  masks = [offer() for _ in range(10)]
  assert all(mask.sum() == 4 for mask in masks)
  # Three of four in the stream, though few has fewer prompts; one met twice in an offer counts once.
  drawn = int(offer.position[0])
  assert drawn >= 40
  few = sum(mask[30:].sum() for mask in masks)
  assert 0.6 * 40 <= few <= 0.75 * drawn + 1


def test_going_on_from_a_position():
  make = lambda: Offer(_table([0] * 11), ["a"], candidates=4, weights={}, seed=3)
  offer = make()
  masks = [offer() for _ in range(6)]
  again = make()
  for _ in range(4):
    offer_position = (again(), again.position)[1]
  again = make()
  again.seek(offer_position)
  np.testing.assert_array_equal(again(), masks[4])
  np.testing.assert_array_equal(again(), masks[5])


def test_bad_offers():
  table = _table([0, 0, 1])
  with pytest.raises(ValueError, match="candidates = 4, but the stream has 3 prompts"):
    Offer(table, ["a", "b"], candidates=4, weights={}, seed=0)
  with pytest.raises(ValueError, match="source in source_weights 'bb'"):
    Offer(table, ["a", "b"], candidates=2, weights={"bb": 1.0}, seed=0)
