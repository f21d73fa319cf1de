import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.choice import check_reference, verify

DAYS = ["Monday", "Tuesday", "Friday", "1/2"]


def ask(answer="B", choices=DAYS):
  return Example("Which?", answer, "s", {"choices": choices})


# completion, the letter it chooses or None, rule
COMPLETIONS = [
  ("B", "B", "text, letter"),
  ("b", "B", "text, letter"),
  ("(B)", "B", "text, letter"),
  ("[B]", "B", "text, letter"),
  ("B.", "B", "text, letter"),
  ("B)", "B", "text, letter"),
  ("**B**", "B", "text, letter"),
  ("Option B", "B", "text, letter"),
  ("B. Tuesday", "B", "text, letter"),
  ("(B) tuesday.", "B", "text, letter"),
  ("Tuesday", "B", "text, option"),
  ("0.5", "D", "text, option"),
  (r"\boxed{B}", "B", "boxed, letter"),
  (r"\boxed{\text{(B)}}", "B", "boxed, letter"),
  (r"\boxed{\text{Tuesday}}", "B", "boxed, option"),
  (r"\boxed{A} no, \boxed{B}", "B", "boxed, letter"),
  ("<answer>(C)</answer>", "C", "tag, letter"),
  ("The answer is B.", "B", "the answer is, letter"),
  ("The answer is (B) because it rains.", "B", "the answer is, letter"),
  ("The answer is: B, since C comes later.", None, "the answer is, several"),
  ("**Answer:** C", "C", "the answer is, letter"),
  ("Answer: (C) Friday", "C", "the answer is, letter"),
  ("I weigh (A) and more.\n\nB", "B", "text, letter"),
  ("It rains, so it must be (B) in my view", "B", "text, letter"),
  # no choice, or more than one
  ("A dog", None, "text, no option"),
  ("The answer is a dog.", None, "the answer is, no option"),
  ("E", None, "text, no option"),
  ("B. Monday", None, "text, no option"),  # the letter of one with the text of another
  (r"\boxed{A, B, C, D}", None, "boxed, several"),
  (r"\boxed{A or B}", None, "boxed, no option"),
  (r"\boxed{(A) (B) (C) (D)}", None, "boxed, no option"),
  ("(A) or (B) or (C)", None, "text, several"),
  ("Monday Tuesday Friday", None, "text, no option"),
  ("The answer is (A), (B), (C), (D).", None, "the answer is, several"),
  ("<think>B</think>", None, "empty"),
  ("<think>B", None, "unclosed think"),
  (r"\boxed{B", None, "unclosed box"),
  ("", None, "empty"),
]


@pytest.mark.parametrize(("text", "letter", "rule"), COMPLETIONS)
def test_completions_choose_as_stated(text, letter, rule):
  for right in "ABCD":
    verdict = verify(ask(right), text)
    assert verdict.correct == float(right == letter)
    assert verdict.rule == rule
  assert letter is None or verdict.parsed == letter


def test_the_reference_may_be_the_text_and_choices_a_mapping():
  assert verify(ask("Friday"), "C").correct == 1.0
  assert verify(ask("(c)"), "Friday").correct == 1.0
  named = ask("Q", {"P": "red", "Q": "blue"})
  assert verify(named, "The answer is blue.").correct == 1.0
  assert verify(named, "P").correct == 0.0
  assert verify(ask("A", ["5 cm", "5 km"]), r"\boxed{5\text{ cm}}").correct == 1.0
  assert verify(ask("A", ["5 cm", "5 km"]), "5").rule == "text, several"


def test_unfit_data_is_refused():
  for example in (
    ask("E"),
    ask("Sunday"),
    ask("same", ["same", "same"]),
    ask(choices=[]),
    ask(choices="ABCD"),
    ask(choices={"AB": "x"}),
    ask(choices=["x"] * 27),
    Example("q", "A", "s"),
  ):
    with pytest.raises(ValueError, match="choices"):
      check_reference(example)
    with pytest.raises(ValueError, match="choices"):
      verify(example, "A")
  check_reference(ask())


@given(st.text(alphabet="ABCDabcd()[].,*\\{} orbecause$\n", max_size=40))
def test_at_most_one_letter_is_right_for_any_text(text):
  assert sum(verify(ask(right), text).correct for right in "ABCD") <= 1.0
