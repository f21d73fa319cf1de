import json
import shutil

import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.verify import VerifierPool

UNCONFINED = shutil.which("bwrap") is None
FULL = {
  "task_id": 11,
  "text": "Write a function to add two numbers and a constant.",
  "code": "C = 1\r\ndef helper(a):\r\n  return a + C\r\ndef add(a, b):\r\n  return helper(a) + b",
  "test_list": ["assert add(1, 2) == 4", "assert add(K, 0) == 8"],
  "test_setup_code": "K = 7",
  "challenge_test_list": [],
}
SANITISED = {
  "task_id": 12,
  "prompt": "Write a function to round down.",
  "code": "import math\ndef down(x):\n  return math.floor(x)",
  "test_imports": ["import math"],
  "test_list": ["assert down(math.pi) == 3"],
}


def load(tmp_path, *rows, **args):
  path = tmp_path / "mbpp.jsonl"
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return build("task", "mbpp", TASKS, {"train": str(path), "allow_unconfined": UNCONFINED} | args)


def test_both_layouts(tmp_path):
  task = load(tmp_path, FULL, SANITISED)
  full, sanitised = task.train
  assert full.metadata["entry_point"] == "add" and sanitised.metadata["entry_point"] == "down"
  assert full.metadata["setup"] == "K = 7" and sanitised.metadata["setup"] == "import math"
  prompt = full.prompt[0]["content"]
  assert "assert add(1, 2) == 4" in prompt and "add(K" not in prompt
  (hidden, _) = load(tmp_path, FULL, SANITISED, tests_shown=0).train
  assert "assert" not in hidden.prompt[0]["content"]
  with VerifierPool(task.verify, workers=1) as pool:
    fence = "```python\n{}\n```".format
    right = [fence(full.answer), fence(sanitised.answer)]
    wrong = [fence("def add(a, b):\n  return a + b"), fence("def down(x):\n  return x")]
    verdicts = pool([full, sanitised] * 2, right + wrong)
  assert [v.correct for v in verdicts] == [1.0, 1.0, 0.0, 0.0], verdicts


@pytest.mark.parametrize(
  ("change", "match"),
  [
    ({"test_list": []}, "call none of the functions of 'code': helper, add"),
    ({"test_list": ["assert add(1"]}, "not Python"),
    ({"test_list": [1]}, "'test_list' is .1., not a list of texts"),
    ({"test_list": None}, "no column 'test_list'"),
    ({"test_imports": "import math"}, "not a list of texts"),
    ({"code": "def f(:"}, "'code' is not Python"),
    ({"code": " "}, "'code' is empty"),
    ({"test_setup_code": "K ="}, "setup is not Python"),
  ],
)
def test_bad_rows_are_named(tmp_path, change, match):
  with pytest.raises(ValueError, match=rf"mbpp.jsonl:2: .*{match}"):
    load(tmp_path, SANITISED, FULL | change)
