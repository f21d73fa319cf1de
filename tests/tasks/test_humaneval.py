import json
import shutil

import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.verify import VerifierPool

UNCONFINED = shutil.which("bwrap") is None
ROW = {
  "task_id": "Test/0",
  "prompt": 'from typing import List\n\n\ndef total(x: List[int]) -> int:\n    """Their sum."""\n',
  "canonical_solution": "    return sum(x)\n",
  "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n",
  "entry_point": "total",
}


def load(tmp_path, row, **args):
  path = tmp_path / "humaneval.jsonl"
  path.write_text(json.dumps(row))
  args = {"evals": str(path), "allow_unconfined": UNCONFINED} | args
  return build("task", "humaneval", TASKS, args)


def test_whole_functions_and_continuations_are_tested(tmp_path):
  task = load(tmp_path, ROW)
  (example,) = task.evals["humaneval"]
  assert ROW["prompt"].strip() in example.prompt[0]["content"]
  texts = [
    # The import of the prompt need not be said again.
    "Here:\n```python\ndef total(x: List[int]) -> int:\n    return sum(x)\n```",
    "    return sum(x)\n",
    "```python\ndef total(x):\n    return 3\n```",
    "    return None\n",
    "I do not know",
  ]
  with VerifierPool(task.verify, workers=1) as pool:
    verdicts = pool([example] * 5, texts)
  assert [v.correct for v in verdicts] == [1.0, 1.0, 0.0, 0.0, 0.0], verdicts
  plain = load(tmp_path, ROW, chat=False, template="{question}")
  assert plain.evals["humaneval"][0].prompt == ROW["prompt"].strip()


def test_bad_rows_are_named(tmp_path):
  for change, match in [
    ({"test": "def check(:"}, "not Python"),
    ({"entry_point": 3}, "'entry_point' is 3"),
  ]:
    with pytest.raises(ValueError, match=rf"humaneval.jsonl:1: .*{match}"):
      load(tmp_path, ROW | change)
