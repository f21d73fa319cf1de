import numpy as np
import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.table import tokenise


class Words:
  """A word is an id: its length. A message opens with 90, and 91 opens the answer."""

  vocab_size = 100
  eos_ids = (0,)
  pad_id = 7

  def encode(self, text):
    return [len(word) for word in text.split()]

  def decode(self, ids):
    return " ".join("x" * i for i in ids)

  def chat(self, messages):
    return [i for m in messages for i in (90, *self.encode(m["content"]))] + [91]


def plain(*texts, source="a"):
  return [Example(text, "", source) for text in texts]


def test_rows_are_padded_on_the_right():
  examples = plain("aa b", source="b") + plain("ccc a bb")
  chat = ({"role": "system", "content": "a"}, {"role": "user", "content": "bb cc"})
  examples.append(Example(chat, "", "b"))
  table, kept, dropped = tokenise(Words(), examples, max_length=6, sources=("a", "b"))
  np.testing.assert_array_equal(
    table.tokens, [[2, 1, 7, 7, 7, 7], [3, 1, 2, 7, 7, 7], [90, 1, 90, 2, 2, 91]]
  )
  np.testing.assert_array_equal(table.length, [2, 3, 6])
  np.testing.assert_array_equal(table.source, [1, 0, 1])
  assert (kept, dropped) == ([0, 1, 2], 0)
  for leaf in (table.tokens, table.length, table.source):
    assert isinstance(leaf, np.ndarray) and leaf.dtype == np.int32


@pytest.mark.parametrize(
  ("longest", "max_length", "width"),
  [(1, 100, 16), (16, 100, 16), (17, 100, 32), (17, 20, 20), (33, 48, 48), (5, 5, 5)],
)
def test_width_is_a_multiple_of_sixteen_within_the_limit(longest, max_length, width):
  examples = plain("a", "a " * longest)
  table, _, _ = tokenise(Words(), examples, max_length=max_length, sources=("a",))
  assert table.tokens.shape == (2, width)


def test_long_prompts_raise_or_are_dropped_and_counted():
  examples = plain("a", "a b c d", "a b c", "a b c d e")
  with pytest.raises(ValueError, match=r"example 1 has 4 tokens, more than max_length=3.*a b c d"):
    tokenise(Words(), examples, max_length=3, sources=("a",))
  table, kept, dropped = tokenise(Words(), examples, max_length=3, sources=("a",), long="drop")
  assert (kept, dropped) == ([0, 2], 2)
  np.testing.assert_array_equal(table.length, [1, 3])
  with pytest.raises(ValueError, match=r"all 1 prompts .* none is left"):
    tokenise(Words(), plain("a b"), max_length=1, sources=("a",), long="drop")
  with pytest.raises(ValueError, match="long must be"):
    tokenise(Words(), examples, max_length=9, sources=("a",), long="cut")


def test_what_cannot_be_a_prompt_raises():
  with pytest.raises(ValueError, match="example 1 has an empty prompt"):
    tokenise(Words(), plain("a", " "), max_length=3, sources=("a",))
  with pytest.raises(ValueError, match="no examples"):
    tokenise(Words(), [], max_length=3, sources=("a",))
  with pytest.raises(ValueError, match=r"source of example 0.*did you mean abc"):
    tokenise(Words(), plain("a", source="abd"), max_length=3, sources=("abc",))
