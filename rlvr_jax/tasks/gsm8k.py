"""GSM8K: grade-school word problems with worked solutions (Cobbe et al. 2021, arXiv:2110.14168)."""

import re
from collections.abc import Mapping
from typing import Any

from rlvr_jax.core.records import Example, Task
from rlvr_jax.tasks import reader
from rlvr_jax.tasks.answers import number
from rlvr_jax.tasks.prompts import make_task, style_of
from rlvr_jax.tasks.verify import verify

TEMPLATE = '{question}\n\nReason step by step, then give the final number after "####".'
_CALCULATOR = re.compile(r"<<[^<>]*>>")  # notes for a calculator in the solutions, <<3*4=12>>


def gsm8k(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  data_dir: str | None = None,
  eval_fraction: float = 0.0,
  seed: int = 0,
  **style: Any,
) -> Task:
  """GSM8K from its own files (train.jsonl, test.jsonl), or as prepared by TFDS.

  The answer is the number after the solution's `####`; the difficulty is the number of its lines
  before that. Few-shot replies are the solutions without their calculator notes.

  Args:
    train, evals, data_dir, eval_fraction: where the rows are; see `tasks.reader.read`. With data_dir
      the splits are "train" and "test" unless said otherwise.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: naming the row, for one that cannot be used.
  """
  if data_dir is not None and train is None and evals is None:
    train, evals = "train", "test"
  made = style_of(gsm8k, style, template=TEMPLATE)
  sets = reader.read(
    _parse,
    train=train,
    evals=evals,
    data_dir=data_dir,
    dataset="gsm8k",
    eval_fraction=eval_fraction,
  )
  return make_task(*sets, verify=verify, style=made, seed=seed)


def _parse(row: reader.Row) -> Example:
  solution = _CALCULATOR.sub("", reader.text(row, "answer"))
  steps, mark, _ = solution.rpartition("####")
  if not mark:
    raise ValueError(f"the answer has no '####': {solution[-100:]!r}")
  answer = reader.answer(row, "answer")
  if number(answer) is None:
    raise ValueError(f"the answer {answer[:100]!r} after '####' is not a number")
  return Example(
    prompt=reader.text(row, "question"),
    answer=answer,
    source="gsm8k",
    metadata={"solution": solution.strip()},
    difficulty=sum(1 for line in steps.splitlines() if line.strip()),
  )
