import collections
import hashlib
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.mixture import check_disjoint, hold_out, identity, shares, split


def source(name, questions):
  """A source that draws from `questions` questions without end."""

  def stream(part):
    rng = random.Random(f"{name} {part}")
    while True:
      yield Example(f"{name} {rng.randrange(questions)}", "", name)

  return stream


def count(examples):
  return dict(collections.Counter(e.source for e in examples))


def test_largest_remainders_by_hand():
  assert shares(10, [1, 1, 1]) == [4, 3, 3]  # 3.33 each: the tie goes to the first
  assert shares(10, [3, 2, 1]) == [5, 3, 2]  # 5, 3.33, 1.67
  assert shares(7, [0.5, 0.25, 0.25]) == [3, 2, 2]  # 3.5, 1.75, 1.75
  assert shares(0, [1, 2]) == [0, 0]
  for weights in ([], [1, 0], [1, -1], [1, float("nan")], [float("inf")]):
    with pytest.raises(ValueError, match="weights"):
      shares(3, weights)


@given(st.integers(0, 10**6), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_shares_sum_to_the_total_and_are_within_one_of_the_exact(total, weights):
  counts = shares(total, weights)
  assert sum(counts) == total
  for n, w in zip(counts, weights, strict=True):
    assert abs(n - total * w / sum(weights)) < 1 + 1e-6


def test_split_is_exact_distinct_and_disjoint():
  streams = {"a": source("a", 10**6), "b": source("b", 10**6)}
  train, heldout = split(streams, [3, 1], train_size=200, eval_size=40, seed=0)
  assert count(train) == {"a": 150, "b": 50}
  assert count(heldout) == {"a": 30, "b": 10}
  prompts = [e.prompt for e in train + heldout]
  assert len(set(prompts)) == len(prompts)
  again = split(streams, [3, 1], train_size=200, eval_size=40, seed=0)
  assert again == (train, heldout)
  other, _ = split(streams, [3, 1], train_size=200, eval_size=40, seed=1)
  assert other != train
  # Shuffled: the sources are not one after the other.
  assert len(list(itertools.groupby(e.source for e in train))) > 20


@pytest.mark.parametrize("questions", [12, 50, 99])
def test_few_questions_repeat_in_training_and_never_in_the_held_out_set(questions):
  train, heldout = split({"a": source("a", questions)}, [1], train_size=205, eval_size=10, seed=0)
  held = {e.prompt for e in heldout}
  assert len(held) == 10
  times = collections.Counter(e.prompt for e in train)
  assert held.isdisjoint(times)
  assert len(times) == questions - 10  # all the others are used,
  assert max(times.values()) - min(times.values()) <= 1  # as evenly as can be
  assert sum(times.values()) == 205


def test_held_out_questions_of_one_source_are_not_trained_on_by_another():
  def twin(stream, name):
    return lambda part: (e._replace(source=name) for e in stream(part + name))

  streams = {"a": twin(source("q", 60), "a"), "b": twin(source("q", 60), "b")}
  train, heldout = split(streams, [1, 1], train_size=100, eval_size=20, seed=0)
  held = {e.prompt for e in heldout}
  assert len(held) == 20
  assert held.isdisjoint(e.prompt for e in train)


def test_a_source_may_end():
  finite = [Example(f"{i}", "", "a") for i in range(5)]
  train, heldout = split({"a": lambda part: finite}, [1], train_size=3, eval_size=2, seed=0)
  assert {e.prompt for e in heldout} == {"0", "1"}
  assert {e.prompt for e in train} == {"2", "3", "4"}


def test_impossible_splits_say_why():
  few = {"few": source("few", 8)}
  with pytest.raises(ValueError, match="'few' has only 8 distinct questions for the 9 held-out"):
    split(few, [1], train_size=5, eval_size=9, seed=0)
  with pytest.raises(ValueError, match="takes every question of source 'few'"):
    split(few, [1], train_size=5, eval_size=8, seed=0)
  with pytest.raises(ValueError, match="no training example for source 'b'"):
    split({"a": source("a", 99), "b": source("b", 99)}, [9, 1], train_size=2, eval_size=0, seed=0)
  with pytest.raises(ValueError, match="train_size"):
    split(few, [1], train_size=0, eval_size=1, seed=0)


def test_identity_is_what_is_asked():
  turns = lambda *contents: tuple({"role": "user", "content": text} for text in contents)
  system = {"role": "system", "content": "Be brief."}
  ask = lambda prompt: identity(Example(prompt, "", "a"))
  assert ask(" Two  and\ntwo? ") == ask("two and two?") == ask((system, *turns("Two and two?")))
  assert ask(turns("Hello", "two?")) == ask("hello two?") != ask("two?")
  assert ask("1 2") != ask("12")


@given(st.lists(st.text(max_size=5), max_size=60), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_hold_out_goes_by_the_question_alone(texts, fraction):
  def expected(text):  # of the definition, by other means
    digest = hashlib.sha256(" ".join(text.split()).casefold().encode("utf-8", "surrogatepass"))
    return int(digest.hexdigest()[:16], 16) / 16**16 < fraction

  examples = [Example(text, str(i), "a") for i, text in enumerate(texts)]
  train, held = hold_out(examples, fraction)
  assert held == [e for e in examples if expected(e.prompt)]
  assert train == [e for e in examples if not expected(e.prompt)]
  check_disjoint(train, {"held": held})


def test_hold_out_takes_about_its_share():
  train, held = hold_out([Example(f"{i}", "", "a") for i in range(10_000)], 0.1)
  assert len(train) + len(held) == 10_000
  assert abs(len(held) - 1000) < 150  # five standard deviations


def test_overlap_names_five_pairs_and_counts_all():
  examples = [Example(f"q{i}", "", "a") for i in range(8)]
  with pytest.raises(
    ValueError, match=r"7 training questions .*: (train\[\d\] = b\[\d\], ){5}\.\.\.;"
  ):
    check_disjoint(examples, {"a": [], "b": examples[1:]})
