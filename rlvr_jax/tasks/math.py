"""MATH: competition problems in LaTeX (Hendrycks et al. 2021, arXiv:2103.03874), and MATH-500."""

import re
from collections.abc import Mapping
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.tasks import maths, reader
from rlvr_jax.tasks.prompts import make_task, style_of

TEMPLATE = "{question}\n\nReason step by step, and put the final answer in \\boxed{}."


def math(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  data_dir: str | None = None,
  dataset: str = "math",
  eval_fraction: float = 0.0,
  seed: int = 0,
  **style: Any,
) -> Task:
  r"""MATH or MATH-500 from .jsonl or .parquet files, or as prepared by TFDS.

  A row has `problem` and `solution`, and may have `answer`; without it the answer is the last
  `\boxed` of the solution. The source is the subject (`subject` or `type`), the difficulty the level, 1
  to 5, or 0 where the data gives none.

  Args:
    train, evals, data_dir, dataset, eval_fraction: where the rows are; see `tasks.reader.read`. With
      data_dir the splits are "train" and "test" unless said otherwise.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: naming the row, for one that cannot be used, as when its answer cannot be parsed.
  """
  if data_dir is not None and train is None and evals is None:
    train, evals = "train", "test"
  made = style_of(math, style, template=TEMPLATE)
  sets = reader.read(
    _parse,
    train=train,
    evals=evals,
    data_dir=data_dir,
    dataset=dataset,
    eval_fraction=eval_fraction,
  )
  return make_task(*sets, verify=maths.verify, style=made, seed=seed)


def _parse(row: reader.Row) -> Example:
  answer = reader.answer(row, "answer", "solution")
  maths.check_reference(answer)
  level = re.search(r"[1-5]", str(row.get("level", "")))
  return Example(
    prompt=reader.text(row, "problem"),
    answer=answer,
    source=re.sub(r"[^a-z0-9]+", "_", reader.text(row, "subject", "type").lower()),
    metadata={"solution": reader.text(row, "solution", "answer")},
    difficulty=int(level[0]) if level else 0,
  )
