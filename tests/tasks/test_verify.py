import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.verify import check_reference, integer, json_value, pattern, verify


def example(answer, **metadata):
  return Example("q", answer, "s", metadata)


@pytest.mark.parametrize(
  ("text", "reference", "correct", "rule"),
  [
    (r"\boxed{73}", "073", 1.0, "boxed, exact"),
    (r"\boxed{073}", "73", 1.0, "boxed, integer"),
    (r"\boxed{73.0}", "73", 1.0, "boxed, integer"),
    (r"\boxed{73}", "73.0", 1.0, "boxed, exact"),
    (r"\boxed{n = 73}", "73", 1.0, "boxed, exact"),
    (r"\boxed{73.5}", "73", 0.0, "boxed, integer"),
    (r"\boxed{074}", "73", 0.0, "boxed, integer"),
    (r"\boxed{\text{seventy}}", "73", 0.0, "boxed, different"),
    ("So 70 + 3 = 73.", "73", 1.0, "number, exact"),
    ("no idea", "73", 0.0, "none"),
  ],
)
def test_integers(text, reference, correct, rule):
  assert integer(example(reference), text)[::2] == (correct, rule)


def test_references_that_nothing_can_match_are_found():
  for fine in ("18", "$1,234", "5 cm", "Tuesday", r"\frac{1}{2}", "7" * 5000):
    check_reference(fine)
    assert verify(example(fine), rf"\boxed{{{fine}}}").correct == 1.0
  for bad in ("", "  ", "nan", "-inf", "$", "**"):
    with pytest.raises(ValueError, match="no answer can match"):
      check_reference(bad)
  with pytest.raises(ValueError, match="string, not 18"):
    check_reference(18)
  for bad in ("1.5", "many", "nan"):
    with pytest.raises(ValueError, match="no whole number"):
      integer(example(bad), "1")


REFERENCE = '{"a": [1, 2.5, "x"], "b": {"c": true, "d": null}}'


@pytest.mark.parametrize(
  ("text", "correct", "rule"),
  [
    (REFERENCE, 1.0, "text, JSON"),
    ('\n{"b": {"d": null, "c": true},\n "a": [1.0, 2.5, "x"]} ', 1.0, "text, JSON"),
    (f"<think>{{}}</think>{REFERENCE}", 1.0, "text, JSON"),
    (f"Here:\n```json\n{{}}\n```\nno:\n```json\n{REFERENCE}\n```\nDone.", 1.0, "fenced, JSON"),
    (f"```\n{REFERENCE}\n```\n```json\n[]\n```", 0.0, "fenced, JSON"),
    (REFERENCE.replace("true", "1"), 0.0, "text, JSON"),
    (REFERENCE.replace("null", "false"), 0.0, "text, JSON"),
    (REFERENCE.replace("[1, 2.5", "[2.5, 1"), 0.0, "text, JSON"),
    (REFERENCE.replace('"x"]', '"x", 3]'), 0.0, "text, JSON"),
    (REFERENCE[:-1], 0.0, "text, not JSON"),
    ("It is " + REFERENCE, 0.0, "text, not JSON"),
    ('{"a": 1, "a": 2}', 0.0, "text, not JSON"),
    ("NaN", 0.0, "text, not JSON"),
    ("[" * 100_000, 0.0, "text, not JSON"),
    ("1" * 10_000, 0.0, "text, not JSON"),
    ("<think>" + REFERENCE, 0.0, "unclosed think"),
    ("", 0.0, "empty"),
  ],
)
def test_json_is_compared_as_values(text, correct, rule):
  assert json_value(example(REFERENCE), text)[::2] == (correct, rule)


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.text(max_size=5),
  lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
  ),
  max_leaves=4,
)


@given(JSON, JSON)
def test_json_equality_is_that_of_the_sorted_text(a, b):
  text = lambda value: json.dumps(value, sort_keys=True)
  verdict = json_value(example(json.dumps(a)), json.dumps(b, indent=1))
  assert verdict.correct == float(text(a) == text(b))


def test_a_reference_that_is_no_json_raises():
  with pytest.raises(ValueError, match="Expecting"):
    json_value(example("{"), "{}")


def test_pattern_wants_the_whole_completion():
  form = example("", pattern=r"<think>.*</think>\s*<answer>[0-9]+</answer>")
  assert pattern(form, "<think>a\nb</think>\n<answer>5</answer>\n").correct == 1.0
  assert pattern(form, "<think>a</think><answer>5</answer> so").correct == 0.0
  assert pattern(form, "<answer>5</answer>").correct == 0.0
  with pytest.raises(KeyError, match="pattern"):
    pattern(example(""), "x")
