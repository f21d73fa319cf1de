import collections
import itertools

import numpy as np
import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.core.types import PromptTable
from rlvr_jax.tasks.table import batches, stream, tokenise


class Words:
  """A word is an id: its length. A message opens with 90, and 91 opens the answer."""

  vocab_size = 100
  eos_ids = (0,)
  pad_id = 7
  fingerprint = "words"

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
  examples.append(Example(chat, "", "b", difficulty=4))
  table, kept, dropped = tokenise(Words(), examples, max_length=6, sources=("a", "b"))
  np.testing.assert_array_equal(
    table.tokens, [[2, 1, 7, 7, 7, 7], [3, 1, 2, 7, 7, 7], [90, 1, 90, 2, 2, 91]]
  )
  np.testing.assert_array_equal(table.length, [2, 3, 6])
  np.testing.assert_array_equal(table.source, [1, 0, 1])
  np.testing.assert_array_equal(table.difficulty, [0, 0, 4])
  assert (kept, dropped) == ([0, 1, 2], 0)
  for leaf in (table.tokens, table.length, table.source, table.difficulty):
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


# --------------------------------------------------------------------------------------------------
# The cache


class Counting(Words):
  """Counts what it encodes, so that a test sees who asks."""

  def __init__(self):
    self.calls = 0

  def encode(self, text):
    self.calls += 1
    return super().encode(text)


def test_a_table_is_made_once_and_mapped(tmp_path):
  examples = [
    Example("aa b", "1", "a", {}, 2),
    Example("a a a a", "2", "a"),
    Example("ccc", "3", "b"),
  ]
  args = {"max_length": 3, "sources": ("a", "b"), "long": "drop"}
  tokenizer = Counting()
  made = tokenise(tokenizer, examples, **args, cache=tmp_path / "new")
  assert tokenizer.calls == 3
  found = tokenise(tokenizer, examples, **args, cache=tmp_path / "new")
  assert tokenizer.calls == 3
  plain = tokenise(Words(), examples, **args)
  for one in (made, found):
    assert (one.kept, one.dropped) == (plain.kept, plain.dropped) == ([0, 2], 1)
    for name in ("tokens", "length", "source", "difficulty"):
      leaf, expected = getattr(one.table, name), getattr(plain.table, name)
      assert isinstance(leaf, np.memmap) and leaf.dtype == np.int32
      np.testing.assert_array_equal(leaf, expected)
  assert len(list((tmp_path / "new").iterdir())) == 1  # and nothing left over


def test_whatever_decides_the_table_decides_its_name(tmp_path):
  base = [Example("a b", "1", "a"), Example("c", "2", "b")]
  args = {"max_length": 5, "sources": ("a", "b"), "long": "raise"}
  other, padded = Words(), Words()
  other.fingerprint, padded.pad_id = "other words", 8
  chat = ({"role": "user", "content": "a b"},)
  tables = [
    (Words(), base, {}),
    (other, base, {}),
    (padded, base, {}),
    (Words(), base, {"max_length": 6}),
    (Words(), base, {"sources": ("b", "a")}),
    (Words(), base, {"long": "drop"}),
    (Words(), base[::-1], {}),
    (Words(), base[:1], {}),
    (Words(), [base[0]._replace(prompt=chat), base[1]], {}),
    (Words(), [base[0]._replace(prompt="a  b"), base[1]], {}),
    (Words(), [base[0]._replace(source="b"), base[1]], {}),
    (Words(), [base[0]._replace(difficulty=1), base[1]], {}),
  ]
  for count, (tokenizer, examples, change) in enumerate(tables, 1):
    tokenise(tokenizer, examples, **(args | change), cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == count
  # Answers and metadata are not in the table.
  tokenise(
    Words(), [e._replace(answer="9", metadata={"x": 1}) for e in base], **args, cache=tmp_path
  )
  assert len(list(tmp_path.iterdir())) == len(tables)


def test_what_fails_leaves_nothing_in_the_cache(tmp_path):
  with pytest.raises(ValueError, match="more than max_length"):
    tokenise(Words(), plain("a", "a b"), max_length=1, sources=("a",), cache=tmp_path)
  assert list(tmp_path.iterdir()) == []


# --------------------------------------------------------------------------------------------------
# Streams


def table_of(*sources):
  ones = np.ones(len(sources), np.int32)
  return PromptTable(tokens=ones[:, None], length=ones, source=np.array(sources, np.int32))


def taken(dataset, num):
  return [int(dataset[i]) for i in range(num)]


def test_an_epoch_is_every_prompt_once_and_the_next_is_shuffled_anew():
  ids = taken(stream(table_of(*[0] * 20), seed=3), 60)
  epochs = [ids[:20], ids[20:40], ids[40:]]
  assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
  assert len({tuple(epoch) for epoch in epochs}) == 3
  assert taken(stream(table_of(*[0] * 20), seed=3), 60) == ids
  assert taken(stream(table_of(*[0] * 20), seed=4), 60) != ids
  assert taken(stream(table_of(0, 0, 0), seed=0, shuffle=False), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_weights_share_the_stream_among_sources():
  sources = [0] * 3 + [1] * 11 + [2] * 5
  ids = taken(stream(table_of(*sources), seed=0, weights={0: 1, 1: 3}), 88)
  assert collections.Counter(sources[i] for i in ids) == {0: 22, 1: 66}
  for end in range(4, 89, 4):  # never far from their share
    assert abs(sum(sources[i] == 0 for i in ids[:end]) - end / 4) <= 1
  ones = [i for i in ids if sources[i] == 1]
  assert all(sorted(ones[k : k + 11]) == list(range(3, 14)) for k in range(0, 66, 11))


@pytest.mark.parametrize("weights", [None, {0: 1, 1: 2}])
def test_hosts_share_the_stream_whatever_their_number(weights):
  table = table_of(*[0] * 5 + [1] * 7)
  alone = taken(stream(table, seed=0, weights=weights), 30)
  for hosts in (2, 3):
    parts = [
      taken(stream(table, seed=0, weights=weights, host=h, hosts=hosts), 30 // hosts)
      for h in range(hosts)
    ]
    assert [i for turn in zip(*parts, strict=True) for i in turn] == alone


def test_an_iterator_goes_on_from_its_state():
  dataset = stream(table_of(*[0] * 10), seed=0)
  expected = taken(dataset, 60)
  iterator = batches(dataset, 4)
  first = [next(iterator).tolist() for _ in range(6)]
  assert list(itertools.chain(*first)) == expected[:24]
  state = iterator.get_state()
  assert state == {"next_index": 6}
  again = batches(stream(table_of(*[0] * 10), seed=0), 4)
  again.set_state(state)
  rest = [next(again).tolist() for _ in range(9)]
  assert list(itertools.chain(*rest)) == expected[24:]
  ended = [batch.tolist() for batch in batches(stream(table_of(0, 0, 0), seed=0, epochs=2), 4)]
  assert [len(batch) for batch in ended] == [4, 2]


def test_streams_that_cannot_be():
  table = table_of(0, 0, 1)
  for args, match in [
    ({"host": 2, "hosts": 2}, "host must be"),
    ({"epochs": 0}, "epochs must be"),
    ({"epochs": 2, "weights": {0: 1}}, "epochs must be"),
    ({"weights": {}}, "weights must be positive"),
    ({"weights": {0: 0}}, "weights must be positive"),
    ({"weights": {0: 1, 2: 1}}, "has no prompts"),
  ]:
    with pytest.raises(ValueError, match=match):
      stream(table, seed=0, **args)
