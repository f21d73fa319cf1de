"""MBPP: short Python functions from a sentence, checked by tests (Austin et al. 2021, arXiv:2108.07732)."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.tasks import code, reader
from rlvr_jax.tasks.prompts import make_task, style_of

TEMPLATE = "{question}\n\nWrite the function in Python, in one ```python block."


def mbpp(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  eval_fraction: float = 0.0,
  tests_shown: int = 1,
  seed: int = 0,
  seconds: float = 4.0,
  memory_mib: int = 512,
  allow_unconfined: bool = False,
  **style: Any,
) -> Task:
  """MBPP from .jsonl or .parquet files, in the layout of the full or of the sanitised set.

  A row has `text` (or `prompt`), `code` and `test_list`, and may have `test_setup_code` or
  `test_imports`. The code is the reference answer; the tests decide.

  Args:
    train, evals, eval_fraction: where the rows are; see `tasks.reader.read`.
    tests_shown: tests in the prompt, which say what the function is called; the others are hidden.
    seed: of the draw of few-shot examples.
    seconds, memory_mib, allow_unconfined: of the sandbox; see `tasks.code.verifier`. The time is to be
      less than the pool's for an item.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    RuntimeError: where code cannot be confined and allow_unconfined is False.
    ValueError: naming the row, for one that cannot be used, as when a test is not Python.
  """
  if tests_shown < 0:
    raise ValueError(f"tests_shown must be 0 or more, got {tests_shown}")

  def parse(row: reader.Row) -> Example:
    solution = reader.text(row, "code").strip()
    tests = reader.texts(row, "test_list")
    shown = "\n".join(tests[:tests_shown])
    question = reader.text(row, "text", "prompt").strip()
    example = Example(
      prompt=f"{question}\n\nIt must pass:\n{shown}" if shown else question,
      answer=solution,
      source="mbpp",
      metadata={
        "tests": tests,
        "setup": _setup(row),
        "entry_point": _entry_point(solution, tests),
        "solution": f"```python\n{solution}\n```",
      },
    )
    code.check_reference(example)
    return example

  made = style_of(mbpp, style, template=TEMPLATE)
  verify = code.verifier(seconds=seconds, memory_mib=memory_mib, allow_unconfined=allow_unconfined)
  sets = reader.read(parse, train=train, evals=evals, eval_fraction=eval_fraction)
  return make_task(*sets, verify=verify, style=made, seed=seed)


def _setup(row: reader.Row) -> str:
  imports = reader.texts(row, "test_imports") if reader.has(row, "test_imports") else []
  return "\n".join([*imports, row.get("test_setup_code") or ""]).strip()


def _entry_point(solution: str, tests: Sequence[str]) -> str:
  """The function of the reference code that the tests call."""
  try:
    made = [node.name for node in ast.parse(solution).body if isinstance(node, ast.FunctionDef)]
  except (SyntaxError, ValueError, RecursionError) as error:
    raise ValueError(f"column 'code' is not Python: {error}") from error
  called = [name for name in made if any(f"{name}(" in test for test in tests)]
  if not called:
    raise ValueError(f"the tests call none of the functions of 'code': {', '.join(made) or 'none'}")
  return called[-1]
