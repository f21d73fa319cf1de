import json

import pyarrow
import pyarrow.parquet
import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.verify import VerifierPool


def jsonl(path, rows):
  path.write_text("\n".join(map(json.dumps, rows)))
  return str(path)


def asked(examples):
  return [e.prompt[-1]["content"] for e in examples]


LAYOUTS = {
  "plain": {"question": "2+2?", "answer": "so 4\n#### 4"},
  "trl": {"prompt": "2+2?", "solution": r"It is $\boxed{4}$."},
  "trl chat": {"prompt": [{"role": "user", "content": "2+2?"}], "solution": "$4$"},
  "verl": {
    "data_source": "sums",
    "prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "2+2?"}],
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0},
  },
  "number": {"problem": "2+2?", "ground_truth": 4},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_layouts_in_use_need_no_arguments(tmp_path, layout, kind):
  row = LAYOUTS[layout]
  path = tmp_path / f"train.{kind}"
  if kind == "jsonl":
    jsonl(path, [row])
  else:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
  (example,) = build("task", kind, TASKS, {"train": str(path)}).train
  assert example.prompt[-1] == {"role": "user", "content": "2+2?"}
  assert len(example.prompt) == 1 + (layout == "verl")
  assert example.answer == "4"
  assert example.source == row.get("data_source", "files")
  for name in set(row) - {"prompt", "question", "problem"}:
    assert example.metadata[name] == row[name]


def test_columns_and_style_are_configurable(tmp_path):
  rows = [{"q": f"q{i}", "meta": {"gold": i, "from": f"s{i % 2}"}, "lvl": i} for i in range(6)]
  args = {"train": jsonl(tmp_path / "a.jsonl", rows), "prompt_column": "q", "few_shot": 1}
  args |= {"answer_column": "meta.gold", "source_column": "meta.from", "difficulty_column": "lvl"}
  task = build("task", "jsonl", TASKS, args | {"system": "Be brief.", "template": "-> {question}"})
  assert task.sources == ("s0", "s1") and len(task.train) == 5
  for example in task.train:
    i = int(example.answer)
    assert (example.source, example.difficulty) == (f"s{i % 2}", i)
    assert [turn["role"] for turn in example.prompt] == ["system", "user", "assistant", "user"]
    assert example.prompt[-1]["content"] == f"-> q{i}"
  with pytest.raises(ValueError, match=r"did you mean .*prompt_column"):
    build("task", "jsonl", TASKS, {"train": args["train"], "promt_column": "q"})
  plain = build("task", "jsonl", TASKS, args | {"chat": False, "few_shot": 0})
  assert plain.train[0].prompt == "q0"


def test_few_shot_replies_are_the_worked_solutions(tmp_path):
  rows = [{"question": f"{i}+1?", "answer": f"so {i + 1}\n#### {i + 1}"} for i in range(2)]
  args = {"train": jsonl(tmp_path / "a.jsonl", rows), "few_shot": 1}
  (example,) = build("task", "jsonl", TASKS, args).train
  shot = 1 - int(example.prompt[-1]["content"][0])
  assert [turn["content"] for turn in example.prompt[:-1]] == [
    rows[shot]["question"],
    rows[shot]["answer"],
  ]


def test_each_source_has_its_verifier(tmp_path):
  rows = [
    {"prompt": "a", "answer": "7", "data_source": "sums"},
    {"prompt": "b", "answer": "B", "data_source": "quiz", "choices": ["red", "green"]},
    {"prompt": "c", "answer": "x y", "data_source": "copy"},
  ]
  verifiers = {"sums": "integer", "quiz": "choice", "copy": "rlvr_jax.tasks.verify:exact"}
  args = {"train": jsonl(tmp_path / "a.jsonl", rows), "verifier": verifiers}
  task = build("task", "jsonl", TASKS, args)
  assert task.sources == ("copy", "quiz", "sums")
  with VerifierPool(task.verify, workers=1) as pool:
    verdicts = pool(task.train, ["It is 7.0", "The answer is (B).", "x y"])
    assert [v.correct for v in verdicts] == [1.0, 1.0, 1.0], verdicts
    assert [v.correct for v in pool(task.train, ["8", "A", "x  y"])] == [0.0, 0.0, 0.0]
  with pytest.raises(ValueError, match=r"a.jsonl:3: unknown source without a verifier: 'copy'"):
    build("task", "jsonl", TASKS, args | {"verifier": {"sums": "integer", "quiz": "choice"}})
  with pytest.raises(ValueError, match=r"did you mean .*integer"):
    build("task", "jsonl", TASKS, args | {"verifier": "intger"})


def test_a_verifier_that_needs_processes_says_so_in_a_mixture(tmp_path):
  rows = [{"prompt": "a", "answer": "7", "data_source": "sums"}]
  path = jsonl(tmp_path / "a.jsonl", rows)
  for verifier in ("math", {"sums": "text", "other": "math"}):
    task = build("task", "jsonl", TASKS, {"train": path, "verifier": verifier})
    with pytest.raises(ValueError, match="workers"):
      VerifierPool(task.verify, workers=0)


@pytest.mark.parametrize(
  ("row", "verifier", "match"),
  [
    ({"answer": "nan"}, "text", "no answer can match the reference 'nan'"),
    ({"answer": "inf"}, "math", "no answer can match"),
    ({"answer": "1/2"}, "integer", "no whole number"),
    ({"answer": "C", "choices": ["x", "y"]}, "choice", "none of the choices"),
    ({"answer": "C"}, "choice", "choices"),
    ({"answer": r"\frac{1}{2"}, "math", "cannot be read"),
    ({"tests": []}, "code", "tests"),
    ({"tests": ["assert f(1 == 2"]}, "code", "not Python"),
    ({"prompt": [], "answer": "1"}, "text", "does not end with the user's turn"),
    ({"prompt": [{"role": "assistant", "content": "x"}], "answer": "1"}, "text", "user's turn"),
    ({"prompt": [{"role": "user", "content": " "}], "answer": "1"}, "text", "prompt is empty"),
    ({"prompt": [{"role": "boss", "content": "x"}], "answer": "1"}, "text", "'boss'"),
    ({"prompt": [{"content": "x"}], "answer": "1"}, "text", "a chat is a list of"),
    ({"prompt": {"role": "user"}, "answer": "1"}, "text", "not text"),
    ({"prompt": "", "answer": "1"}, "text", "'prompt' is empty"),
  ],
)
def test_rows_that_cannot_be_used_are_refused_when_loaded(tmp_path, row, verifier, match):
  good = {"prompt": "good", "answer": "A", "choices": ["x", "y"], "tests": ["assert 1"]}
  good |= {"answer": "1"} if verifier in ("text", "integer", "math") else {}
  path = jsonl(tmp_path / "a.jsonl", [good, {"prompt": "bad"} | row])
  with pytest.raises(ValueError, match=rf"a.jsonl:2: .*{match}"):
    build("task", "jsonl", TASKS, {"train": path, "verifier": verifier})


def test_exact_references_are_not_taken_for_worked_solutions(tmp_path):
  path = jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "#### 4 "}])
  (worked,) = build("task", "jsonl", TASKS, {"train": path}).train
  (exact,) = build("task", "jsonl", TASKS, {"train": path, "verifier": "exact"}).train
  assert (worked.answer, exact.answer) == ("4", "#### 4")


@pytest.mark.parametrize(
  ("args", "match"),
  [
    ({"difficulty_column": "level"}, r"a.jsonl:1: column 'level' is -1; difficulties are 1"),
    ({"verifier": 5}, "verifier must be a name, or source -> name, not 5"),
  ],
)
def test_arguments_that_cannot_be(tmp_path, args, match):
  path = jsonl(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "1", "level": -1}])
  with pytest.raises(ValueError, match=match):
    build("task", "jsonl", TASKS, {"train": path} | args)


def test_held_out_by_content_and_overlap_refused(tmp_path):
  rows = [{"prompt": f"q{i}", "answer": str(i)} for i in range(200)]
  path = jsonl(tmp_path / "a.jsonl", rows + rows[:50])  # repeats go with their twin
  task = build("task", "jsonl", TASKS, {"train": path, "eval_fraction": 0.2})
  assert set(asked(task.train)).isdisjoint(asked(task.evals["heldout"]))
  assert 15 < len(set(asked(task.evals["heldout"]))) < 65
  more = jsonl(
    tmp_path / "b.jsonl", [{"prompt": f"new{i}", "answer": "1"} for i in range(50)] + rows
  )
  again = build("task", "jsonl", TASKS, {"train": more, "eval_fraction": 0.2})
  held = {q for q in asked(again.evals["heldout"]) if q.startswith("q")}
  assert held == set(asked(task.evals["heldout"]))
  test = jsonl(
    tmp_path / "test.jsonl", [{"prompt": "new", "answer": "1"}, {"prompt": "Q7 ", "answer": "7"}]
  )
  with pytest.raises(ValueError, match=r"1 training questions .*: a.jsonl:8 = test.jsonl:2"):
    build("task", "jsonl", TASKS, {"train": jsonl(tmp_path / "a.jsonl", rows), "evals": test})
