"""The ledger against sums in plain Python integers."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core import ledger

entries = st.dictionaries(
  st.sampled_from(sorted(ledger.ENTRIES)),
  st.one_of(st.integers(0, 2**40), st.lists(st.integers(0, 2**40), min_size=3, max_size=3)),
)


@given(st.lists(entries, max_size=4))
def test_books_equal_plain_sums(bookings):
  books = ledger.new(3)
  plain = {name: [0, 0, 0, 0] for name in ledger.ENTRIES}
  for booking in bookings:
    books = ledger.book(books, booking)
    for name, value in booking.items():
      for i, x in enumerate(value if isinstance(value, list) else [0, 0, 0, value]):
        plain[name][i] += x
  assert {name: tokens.tolist() for name, tokens in books.items()} == plain
  assert ledger.totals(books) == {name: sum(tokens) for name, tokens in plain.items()}


def test_totals_pass_what_32_bits_hold():
  books = ledger.new(2)
  assert {x.dtype for x in books.values()} == {np.dtype(np.int64)}
  step = jnp.array([2**31 - 1, 5], jnp.int32)
  for _ in range(3):
    books = ledger.book(books, {"generated": step, "evaluated": np.int32(2**31 - 1)})
  assert books["generated"].dtype == np.int64
  assert books["generated"].tolist() == [3 * (2**31 - 1), 15, 0]
  assert ledger.totals(books)["evaluated"] == 3 * (2**31 - 1)


def test_booking_leaves_the_old_books_alone():
  old = ledger.new(2)
  ledger.book(old, {"generated": [1, 2]})
  assert ledger.totals(old)["generated"] == 0


def test_balance_is_zero_when_every_token_is_disposed_of_once():
  books = ledger.book(ledger.new(2), {"generated": [10, 4], "reused": [0, 3]})
  went = {"batched": [5, 2], "rejected": [3, 1], "surplus": [2, 0], "banked": [0, 4]}
  right = ledger.book(books, went)
  assert ledger.balance(right).tolist() == [0, 0, 0]
  for name in went:  # each of them counts
    wrong = ledger.book(right, {name: [0, 1]})
    assert ledger.balance(wrong).tolist() == [0, -1, 0]
  assert ledger.balance(ledger.book(right, {"reused": [1, 0]})).tolist() == [1, 0, 0]
  # Prompts, evaluation and the learner's work are no responses of this ledger.
  other = {
    "prefilled": [7, 7],
    "verified": [7, 7],
    "trained": [7, 7],
    "computed": 7,
    "evaluated": 7,
  }
  assert ledger.balance(ledger.book(right, other)).tolist() == [0, 0, 0]


def test_errors():
  books = ledger.new(2)
  with pytest.raises(ValueError, match="unknown ledger entry 'generate'; did you mean generated"):
    ledger.book(books, {"generate": 1})
  with pytest.raises(ValueError, match="'trained' would shrink: -2"):
    ledger.book(books, {"trained": [3, -2]})
  with pytest.raises(ValueError, match=r"'trained': shape \(3,\), table of 2"):
    ledger.book(books, {"trained": [1, 2, 3]})
