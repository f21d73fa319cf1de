import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.answers import equivalent, extract, number
from rlvr_jax.tasks.verify import exact, verify

DIGITS = "7" * 10_000
EVERY = " ".join(f"The answer is {n}." for n in range(10))

# completion, reference, correct: what users of similar software saw mis-scored, as data.
COMPLETIONS = [
  # numbers in every dress
  ("#### 1,234", "1234", True),
  ("#### 1234", "1,234", True),
  ("So it is -5", "-5", True),
  ("So it is -5", "5", False),
  ("So it is −5", "-5", True),
  ("That costs $18", "18", True),
  ("He owes -$18.", "-18", True),
  ("He owes $-18.", "-18", True),
  ("18.0", "18", True),
  ("18.", "18", True),
  ("The sum is 1,234, I think", "1234", True),
  ("1e3", "1000", True),
  ("1.5e-3", "0.0015", True),
  ("1/2", "0.5", True),
  ("0.5", "1/2", True),
  (r"\frac{1}{2}", "0.5", True),
  (r"so it is -\dfrac{3}{4}", "-0.75", True),
  ("It is .5", "1/2", True),
  ("50%", "50", True),  # policy: a per cent sign is dropped
  ("50%", "0.5", False),
  (r"\boxed{50\%}", "50", True),
  ("5-3", "3", True),  # an operator, not a sign
  ("5 - 3 = 2", "2", True),
  ("x2", "2", False),
  ("1, 2, 3", "3", True),
  ("1,2,3", "3", True),
  ("1,2,3", "123", False),
  ("1 2", "12", False),
  ("<answer>1 2</answer>", "12", False),
  ("12,34", "1234", False),
  ("0.3333", "1/3", False),  # rounding is not equality
  ("0.3333333333333", "1/3", True),
  ("1000001", "1000000", False),
  ("1{,}234", "1234", True),
  (r"\boxed{10{,}000}", "10000", True),
  ("1 1/2", "1.5", True),
  ("It took 1 1/2 hours", "1.5", True),
  ("-2 1/4", "-2.25", True),
  (r"so 1\frac{1}{2}", "1.5", True),
  (r"\boxed{1 \dfrac{1}{2}}", "3/2", True),
  (r"\boxed{-1\frac34}", "-1.75", True),
  (r"\frac12", "0.5", True),
  ("1 3/2", "2.5", False),  # not a mixed number
  ("In 2020 1/2 of them left", "1/2", True),
  # units: may be left out, must not differ, are not converted
  ("<answer>5 cm</answer>", "5", True),
  ("<answer>5</answer>", r"5\text{ cm}", True),
  ("<answer>5 centimeters</answer>", r"5\text{ cm}", True),
  ("<answer>5 cm</answer>", "5 m", False),
  ("<answer>5 cm</answer>", r"5\text{ m}", False),
  (r"\boxed{5\text{ cm}}", r"5\text{ kg}", False),
  (r"\boxed{5\text{ cm}^2}", "5 square centimeters", True),
  (r"\boxed{5\text{ cm}^2}", "5 cm", False),
  (r"\boxed{60\text{ mph}}", "60 miles per hour", True),
  (r"\boxed{90^\circ}", "90", True),
  (r"\boxed{90°}", "90 degrees", True),
  (r"\boxed{90^{\circ}}", "80 degrees", False),
  (r"\boxed{1\text{ hour}}", "60 minutes", False),
  (r"\boxed{3\sqrt{2}\text{ cm}}", r"3\sqrt{2}", True),
  (r"\boxed{18\text{ apples}}", "18", True),
  ("<answer>5m</answer>", "5", False),  # may be five times m
  ("<answer>5</answer>", "5m", False),
  ("<answer>50 percent</answer>", "50%", True),
  ("<answer>€18</answer>", "18 euros", True),
  ("<answer>18 dollars</answer>", "$18", True),
  (r"\boxed{\$18.50}", "18.5", True),
  ("It costs -£3", "-3", True),
  # a name for the value
  (r"\boxed{x = 5}", "5", True),
  (r"\boxed{x_1=5}", "5", True),
  (r"\boxed{1 = 5}", "5", False),
  (r"\boxed{x = 5}", "x=5", True),
  (r"\boxed{y = 5}", "x = 5", False),
  # boxes
  (r"\boxed{18}", "18", True),
  (r"\boxed 18", "18", True),
  (r"so $\boxed 18$.", "18", True),
  (r"\boxed {18}", "18", True),
  (r"\fbox{18}", "18", True),
  (r"\boxed", "18", False),
  (r"\boxed{\frac{1}{2}}", "0.5", True),
  (r"$\boxed{-\frac{1}{2}}$.", "-1/2", True),
  (r"\boxed{3} no, \boxed{4}", "4", True),
  (r"\boxed{3} no, \boxed{4}", "3", False),
  (r"\boxed{4} or rather \boxed{5", "4", False),  # policy: cut off, so no answer
  (r"The answer is 4. \boxed{", "4", False),
  (r"\boxed{}", "4", False),
  (r"\boxed{4} since 2 + 3 = 5", "4", True),
  (r"\boxed{\text{Tuesday}}", "tuesday", True),
  (r"\boxed{18 \text{ dollars}}", "18", True),
  (r"\boxed{\left( 1, 2 \right)}", "(1,2)", True),
  (r"\boxed{\{1, 2\}}", r"\{1,2\}", True),
  (r"\boxed{1 or 2 or 3}", "2", False),
  # thoughts
  ("<think>The answer is 4", "4", False),
  ("<think>The answer is 4</think>", "4", False),
  (r"<think>\boxed{4}</think> I do not know", "4", False),
  ("<think>3</think> 4", "4", True),
  ("no opening </think> 4", "4", True),
  ("<think>3</think> 5 </think> 4", "4", True),
  ("<think>3</think> 5 </think> 4", "5", False),
  (r"<think>3</think> \boxed{5} </think> 4", "4", True),
  ("<think>3</think> 4 <think> wait", "4", False),
  # tags and phrases
  ("<answer>4</answer>", "4", True),
  ("<answer>3</answer><answer>4</answer>", "4", True),  # policy: the last, no partial credit
  ("<answer>3</answer><answer>4</answer>", "3", False),
  ("<answer>4</answer><answer>5", "4", False),
  ("<answer> </answer>", "4", False),
  ("<answer>4 apples</answer>", "4", False),  # policy: no prose inside a mark
  ("The answer is 4. There are 5 left.", "4", True),
  ("The answer is: **4**", "4", True),
  ("The final answer is $1,000.50.", "1000.5", True),
  ("The answer is 3. No, the answer is 4.", "4", True),
  ("the answer is below:\n4", "4", True),
  ("**Answer:** 4\nI counted 7 twice.", "4", True),
  ("Final answer: 4\n\n7", "4", True),
  ("My answers: 7 and 4", "4", True),
  ("The answer is Tuesday.", "Tuesday", True),
  ("The answer isn't 5. It is 4", "4", True),
  ("The answer is not 5. It is 4", "4", True),
  ("There are 180 degrees in it.", r"180^\circ", True),  # a unit of the reference may be left out
  ("I counted 18 of them", "18 dollars", True),
  ("Tuesday.", "tuesday", True),
  ("#### Reasoning\nso 4", "4", True),  # a heading holds no number and is passed over
  ("#### 4 apples", "4", True),
  # nothing there
  ("", "4", False),
  ("   ", "4", False),
  ("I do not know", "4", False),
  ("nan", "4", False),
  ("nan", "nan", False),
  (r"\boxed{inf}", "inf", False),
  (r"\boxed{-Infinity}", "-infinity", False),
  (r"\boxed{nan}", "0", False),
  ("1/0", "0", False),
  # attempts at the grader
  (DIGITS, "7", False),
  (rf"\boxed{{{DIGITS}}}", "7", False),
  (r"\boxed{10**10**9}", "10", False),
  (r"\boxed{1e999999999}", "1", False),
  (r"\boxed{__import__('os').getpid()}", "1", False),
  ("It is 1 or 2 or 3 or 4 or 5.", "3", False),
  ("It is 1 or 2 or 3 or 4 or 5.", "5", False),  # policy: "or" makes it no answer
  ("The answer is 4, or 5.", "5", False),
  (EVERY, "3", False),
  (EVERY, "9", True),  # one guess, the last; no better than saying that alone
  ("<answer>" + "</answer><answer>".join("123456789") + "</answer>", "5", False),
  (r"\boxed{\emptyset}", "4", False),
]


@pytest.mark.parametrize(("text", "reference", "correct"), COMPLETIONS)
def test_t48_completions_are_scored_as_stated(text, reference, correct):
  assert verify(Example("q", reference, "s"), text).correct == float(correct)


@pytest.mark.parametrize(
  ("text", "answer", "rule"),
  [
    (r"1 <answer>2</answer> #### 3 \boxed{4} the answer is 5. 6", "4", "boxed"),
    ("1 <answer>2</answer> #### 3\nthe answer is 5. 6", "3", "####"),
    ("1 <answer>2</answer>\nthe answer is 5. 6", "2", "tag"),
    ("1 the answer is 5. 6", "5", "the answer is"),
    ("1 and 6", "6", "number"),
    ("none at all", None, "none"),
    ("1 or 2", None, "none"),
    (r"\boxed", None, "unclosed box"),
    (r"\boxed{ }", None, "empty"),
    (r"\boxed{1", None, "unclosed box"),
    ("<answer>1", None, "unclosed tag"),
    ("<think>1", None, "unclosed think"),
    (r"\boxed{a{b}\}c}d}", r"a{b}\}c", "boxed"),
  ],
)
def test_rules_go_in_the_order_stated(text, answer, rule):
  assert extract(text) == (answer, rule)


def test_bare_text_takes_what_stands_there():
  assert extract(" ['1', '2'] ", bare="text") == ("['1', '2']", "text")
  assert extract("<think>x</think> ab c", bare="text") == ("ab c", "text")
  assert extract("The answer is ab c. So there.", bare="text") == ("ab c", "the answer is")
  with pytest.raises(ValueError, match="bare"):
    extract("1", bare="words")


@given(st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=10**4))
def test_number_reads_back_fractions(value):
  assert number(f"{value.numerator}/{value.denominator}") == value
  sign = "-" if value < 0 else ""
  assert number(rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") == value


@given(st.integers(-(10**12), 10**12))
def test_number_reads_back_thousands_decimals_and_prose(value):
  assert number(f"{value:,}") == value
  assert number(f"${value:,}.00") == value
  assert extract(f"It makes {value:,}, he said") == (f"{value:,}", "number")
  assert equivalent(f"{value}.0", f"{value:,}") == (True, "numeric")
  assert equivalent(f"{value + 1}", f"{value}") == (False, "numeric")


@given(st.integers(-99, 99), st.integers(1, 98), st.integers(2, 99))
def test_number_reads_mixed_numbers(whole, top, bottom):
  top = 1 + top % (bottom - 1)
  value = abs(whole) + Fraction(top, bottom)
  sign, value = ("-", -value) if whole < 0 else ("", value)
  assert number(f"{sign}{abs(whole)} {top}/{bottom}") == value
  assert number(rf"{sign}{abs(whole)}\frac{{{top}}}{{{bottom}}}") == value
  assert extract(f"It is {sign}{abs(whole)} {top}/{bottom} miles")[0] is not None
  assert number(f"1 {bottom}/{top}") is None or bottom < top


def test_numbers_have_bounds():
  assert number("1e400") == 10**400
  assert number("1e401") is None
  assert number("9" * 1000) == 10**1000 - 1
  assert number("9" * 1001) is None
  assert equivalent("9" * 5000, "9" * 5000) == (True, "exact")
  assert equivalent("9" * 5000 + ".0", "9" * 5000) == (False, "different")


@given(st.decimals(-1000, 1000, places=3))
def test_number_reads_decimals_exactly(value):
  assert number(str(value)) == Fraction(value)


@given(st.text(alphabet=r"0123456789,./eE+-−$%\{}<>#frac boxedthinkansw", max_size=60))
def test_no_text_breaks_the_reader(text):
  for bare in ("number", "text"):
    answer, rule = extract(text, bare=bare)
    assert answer is None or answer == answer.strip() != ""
    assert rule
  same, _ = equivalent(text, text)
  assert isinstance(same, bool)
  assert isinstance(number(text), Fraction | None)


HOSTILE = ["7", "1,", "{", " ", "-$", "1e", "/1", ".1", "[ ", "the ", "the answer is "]
HOSTILE += ["1 ", "1 1/", "1 or ", "°", "per ", "a=", r"\frac1", r"\boxed", "answer:", "^2", "{,}"]
HOSTILE += [r"\boxed{", r"\frac{", r"\text{", r"1 \text {", "<think>", "<answer>"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_work_is_not_quadratic_in_the_text(piece):
  # A tenth of a second where it is linear; a quadratic step at this length takes minutes.
  text = piece * (300_000 // len(piece))
  start = time.perf_counter()
  for bare in ("number", "text"):
    extract(text, bare=bare)
  equivalent(text, "7")
  number(text)
  assert time.perf_counter() - start < 5.0


def test_exact_is_exact():
  example = Example("q", "07", "s")
  assert exact(example, " 07\n").correct == 1.0
  assert exact(example, "7").correct == 0.0
  assert exact(example, "07=").correct == 0.0
