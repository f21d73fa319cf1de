"""HumanEval: Python functions from their signature and docstring (Chen et al. 2021, arXiv:2107.03374)."""

from collections.abc import Mapping
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.tasks import code, reader
from rlvr_jax.tasks.prompts import make_task, style_of

TEMPLATE = (
  "Complete this Python function. Write it out in full, in one ```python block.\n\n"
  "```python\n{question}\n```"
)


def humaneval(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  eval_fraction: float = 0.0,
  seed: int = 0,
  seconds: float = 4.0,
  memory_mib: int = 512,
  allow_unconfined: bool = False,
  **style: Any,
) -> Task:
  """HumanEval, or any set in its layout, from .jsonl or .parquet files.

  A row has `prompt` (signature and docstring), `canonical_solution`, `test` (a function `check`) and
  `entry_point`. The prompt is put before the completion when it is tested, so a completion may be the
  whole function or, of a plain prompt (chat=False, template="{question}"), the rest of it.

  Args:
    train, evals, eval_fraction: where the rows are; see `tasks.reader.read`.
    seed: of the draw of few-shot examples.
    seconds, memory_mib, allow_unconfined: of the sandbox; see `tasks.code.verifier`. The time is to be
      less than the pool's for an item.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    RuntimeError: where code cannot be confined and allow_unconfined is False.
    ValueError: naming the row, for one that cannot be used, as when its test is not Python.
  """
  made = style_of(humaneval, style, template=TEMPLATE)
  verify = code.verifier(seconds=seconds, memory_mib=memory_mib, allow_unconfined=allow_unconfined)
  sets = reader.read(_parse, train=train, evals=evals, eval_fraction=eval_fraction)
  return make_task(*sets, verify=verify, style=made, seed=seed)


def _parse(row: reader.Row) -> Example:
  prompt = reader.text(row, "prompt")
  solution = prompt + reader.text(row, "canonical_solution")
  example = Example(
    prompt=prompt.strip(),
    answer=solution,
    source="humaneval",
    metadata={
      "tests": [reader.text(row, "test")],
      "setup": prompt,
      "entry_point": reader.text(row, "entry_point"),
      "solution": f"```python\n{solution.strip()}\n```",
    },
  )
  code.check_reference(example)
  return example
