"""AIME and its like: competition problems whose answer is an integer from 0 to 999."""

import re
from collections.abc import Mapping
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.tasks import reader
from rlvr_jax.tasks.prompts import make_task, style_of
from rlvr_jax.tasks.verify import integer

TEMPLATE = (
  "{question}\n\nReason step by step. The answer is an integer from 0 to 999; put it in \\boxed{}."
)


def aime(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  eval_fraction: float = 0.0,
  seed: int = 0,
  **style: Any,
) -> Task:
  r"""Problems with integer answers from .jsonl or .parquet files.

  A row has `problem` (or `Problem`, `question`) and `answer` (or `Answer`); without that the last
  `\boxed` of `solution`. The difficulty is the problem's number, 1 to 15, where `ID` says it:
  "2024-II-4".

  Args:
    train, evals, eval_fraction: where the rows are; see `tasks.reader.read`.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: naming the row, for one that cannot be used, as when its answer is not 0 to 999.
  """
  made = style_of(aime, style, template=TEMPLATE)
  sets = reader.read(_parse, train=train, evals=evals, eval_fraction=eval_fraction)
  return make_task(*sets, verify=integer, style=made, seed=seed)


def _parse(row: reader.Row) -> Example:
  answer = reader.answer(row, "answer", "Answer", "solution", "Solution")
  if not re.fullmatch(r"[0-9]{1,3}(\.0)?", answer):  # a null in the column makes floats of the rest
    raise ValueError(f"the answer {answer[:100]!r} is not an integer from 0 to 999")
  place = re.fullmatch(r"\d+-I{1,2}-(\d+)", str(row.get("ID", "")))
  solution = next((row[name] for name in ("solution", "Solution") if reader.has(row, name)), "")
  return Example(
    prompt=reader.text(row, "problem", "Problem", "question"),
    answer=str(int(float(answer))),
    source="aime",
    metadata={"solution": solution},
    difficulty=int(place[1]) if place else 0,
  )
