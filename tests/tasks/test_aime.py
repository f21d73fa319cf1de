import json

import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS


def load(tmp_path, *rows):
  path = tmp_path / "aime.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return build("task", "aime", TASKS, {"evals": str(path)})


def test_layouts_in_use(tmp_path):
  task = load(
    tmp_path,
    {"ID": "2024-II-4", "Problem": "a", "Solution": "so 33", "Answer": 33},
    {"id": 60, "problem": "b", "solution": r"\boxed{204}", "answer": "204"},
    {"id": 1, "problem": "c", "solution": r"Hence $\boxed{073}$."},
    {"question": "d", "answer": 5.0},
  )
  assert task.train == [] and task.sources == ("aime",)
  examples = task.evals["aime"]
  assert [e.answer for e in examples] == ["33", "204", "73", "5"]
  assert [e.difficulty for e in examples] == [4, 0, 0, 0]
  right = [r"\boxed{33}", "The answer is 204.", r"\boxed{073}", "5"]
  assert [task.verify(*item).correct for item in zip(examples, right, strict=True)] == [1.0] * 4
  assert task.verify(examples[0], r"\boxed{34}").correct == 0.0


@pytest.mark.parametrize("answer", [1000, -1, "1/2", "3.5", "12 or 13", "x"])
def test_other_answers_are_refused(tmp_path, answer):
  with pytest.raises(ValueError, match=r"aime.jsonl:2: .* not an integer from 0 to 999"):
    load(tmp_path, {"problem": "a", "answer": 1}, {"problem": "b", "answer": answer})
