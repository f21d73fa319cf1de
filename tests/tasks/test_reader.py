import json
import sys

import pyarrow
import pyarrow.parquet
import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.tasks import reader


def parse(row):
  return Example(reader.text(row, "q"), reader.answer(row, "a"), "s")


def write(path, *lines):
  path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in lines))
  return str(path)


def test_rows_of_jsonl_keep_their_line_numbers(tmp_path):
  place = write(tmp_path / "a.jsonl", b'\xef\xbb\xbf{"q": "1"}', "", '{"q": "\u00fc"}', "")
  assert list(reader.file_rows(place)) == [
    ("a.jsonl:1", {"q": "1"}),
    ("a.jsonl:3", {"q": "\u00fc"}),
  ]


@pytest.mark.parametrize(
  ("line", "match"),
  [
    ('{"q": "x", "a": ', r"a.jsonl:2: not JSON"),
    ("[1, 2]", r"a.jsonl:2: a list, not a JSON object"),
    ("[" * 100_000, r"a.jsonl:2: not JSON"),
    (b'{"q": "\xff"}', r"a.jsonl:2: not UTF-8"),
    (r'{"q": "\ud800", "a": "1"}', r"a.jsonl:2: not UTF-8"),
    ('{"q": "x"}', r"a.jsonl:2: no column 'a'; there are: q"),
    ('{"q": "x", "a": null}', r"a.jsonl:2: no column 'a'; there are: q, a \(null\)"),
    ('{"a": "x", "b": {"c": 1, "d": 2}}', r"a.jsonl:2: no column 'q'; there are: a, b.c, b.d"),
    ('{"q": " ", "a": "1"}', r"a.jsonl:2: column 'q' is empty"),
    ('{"q": 3, "a": "1"}', r"a.jsonl:2: column 'q' is 3, not text"),
    ('{"q": "x", "a": true}', r"a.jsonl:2: column 'a' is True: an answer must be text or a number"),
    ('{"q": "x", "a": ["1"]}', r"an answer must be text or a number"),
    ('{"q": "x", "a": NaN}', r"an answer must be finite"),
    ('{"q": "x", "a": "  "}', r"column 'a' holds no answer"),
    ('{"q": "x", "a": "so \\\\boxed{1"}', r"column 'a' holds no answer"),
  ],
)
def test_a_bad_row_is_named(tmp_path, line, match):
  place = write(tmp_path / "a.jsonl", '{"q": "x", "a": "1"}', line)
  with pytest.raises(ValueError, match=match):
    reader.read(parse, train=place, evals=None)


def test_files_that_are_none(tmp_path):
  with pytest.raises(ValueError, match="there is no file"):
    reader.file_rows(str(tmp_path / "none.jsonl"))
  with pytest.raises(ValueError, match=r"neither .jsonl nor .parquet"):
    reader.file_rows(write(tmp_path / "a.csv", "q,a"))
  with pytest.raises(ValueError, match="cannot read"):
    list(reader.file_rows(write(tmp_path / "a.parquet", "no parquet")))
  with pytest.raises(ValueError, match="has no rows"):
    reader.read(parse, train=write(tmp_path / "empty.jsonl"), evals=None)
  with pytest.raises(ValueError, match="nothing to read"):
    reader.read(parse, train=None, evals=None)


def test_parquet_gives_what_jsonl_gives(tmp_path):
  rows = [{"q": f"q{i}", "a": i, "more": [{"role": "user", "content": "x"}]} for i in range(5)]
  pyarrow.parquet.write_table(
    pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=2
  )
  write(tmp_path / "a.jsonl", *map(json.dumps, rows))
  found = list(reader.file_rows(str(tmp_path / "a.parquet")))
  assert [row for _, row in found] == [
    row for _, row in reader.file_rows(str(tmp_path / "a.jsonl"))
  ]
  assert [where for where, _ in found] == [f"a.parquet row {i}" for i in range(5)]


def test_sets_and_their_names(tmp_path):
  line = lambda i: json.dumps({"q": f"q{i}", "a": i})
  train = write(tmp_path / "train.jsonl", *map(line, range(400)))
  test = write(tmp_path / "test.jsonl", line(500))
  examples, evals = reader.read(parse, train=train, evals=test)
  assert [e.answer for e in examples] == [str(i) for i in range(400)]
  assert examples[2].metadata == {"file_row": "train.jsonl:3"}
  assert [e.prompt for e in evals["test"]] == ["q500"]
  _, evals = reader.read(parse, train=None, evals={"one": test, "two": train})
  assert {name: len(x) for name, x in evals.items()} == {"one": 1, "two": 400}
  rest, evals = reader.read(parse, train=train, evals=test, eval_fraction=0.25)
  assert 60 < len(evals["heldout"]) < 140 and set(evals) == {"test", "heldout"}
  assert sorted(e.prompt for e in rest + evals["heldout"]) == sorted(f"q{i}" for i in range(400))
  with pytest.raises(ValueError, match='"heldout"; call the one in evals otherwise'):
    reader.read(parse, train=train, evals={"heldout": test}, eval_fraction=0.5)
  with pytest.raises(ValueError, match="evals must be a file"):
    reader.read(parse, train=train, evals=[test])
  with pytest.raises(ValueError, match="eval_fraction"):
    reader.read(parse, train=train, evals=None, eval_fraction=1.0)


@pytest.mark.parametrize(
  ("solution", "answer"),
  [
    ("42", "42"),
    ("$42$", "42"),
    ("$18", "$18"),
    ("$1$ and $2$", "$1$ and $2$"),
    ("so\n#### 1,234\n", "1,234"),
    (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
    (r"so $\boxed 7$", "7"),
    (r"so \fbox{x+1}", "x+1"),
    (r"cut \boxed{1", None),
    ("<think>It is 3.</think><answer> 4 </answer>", "4"),
    ("Twice two. The answer is $4$.", "4"),
    ("<answer>4", None),
    ("in New York", "in New York"),
  ],
)
def test_final_answers_of_solutions(solution, answer):
  assert reader.final(solution) == answer


def test_whole_numbers():
  for value, number in [(3, 3), ("-3", -3), (" 7 ", 7), (4.0, 4)]:
    assert reader.whole({"n": value}, "n") == number
  for value in (True, "3.5", 2.5, "9" * 5000, [1]):
    with pytest.raises(ValueError, match="not a whole number"):
      reader.whole({"n": value}, "n")


def test_tensorflow_is_not_wanted():
  assert "tensorflow" not in sys.modules
