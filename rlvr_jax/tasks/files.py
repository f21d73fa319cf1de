"""Prompts from a .jsonl or .parquet file, or a prepared TFDS data set, in the layouts in use."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlvr_jax.core.records import Example, Task, Verdict
from rlvr_jax.core.table import resolve, unknown
from rlvr_jax.tasks import choice, code, maths, reader
from rlvr_jax.tasks import verify as verify_lib
from rlvr_jax.tasks.pool import needs_processes
from rlvr_jax.tasks.prompts import make_task, style_of

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "reward_model.ground_truth", "ground_truth", "solution")
VERIFIERS = {
  "text": "rlvr_jax.tasks.verify:verify",
  "exact": "rlvr_jax.tasks.verify:exact",
  "integer": "rlvr_jax.tasks.verify:integer",
  "math": "rlvr_jax.tasks.maths:verify",
  "choice": "rlvr_jax.tasks.choice:verify",
  "code": "rlvr_jax.tasks.code:verify",
}
_ROLES = ("system", "user", "assistant", "tool")


def files(
  *,
  train: str | None = None,
  evals: str | Mapping[str, str] | None = None,
  data_dir: str | None = None,
  dataset: str = "",
  eval_fraction: float = 0.0,
  verifier: str | Mapping[str, str] = "text",
  prompt_column: str | None = None,
  answer_column: str | None = None,
  source_column: str | None = None,
  difficulty_column: str | None = None,
  seed: int = 0,
  **style: Any,
) -> Task:
  """Any file with a prompt and an answer in each row.

  The layouts of TRL (`prompt`, `solution`), verl (`prompt`, `data_source`,
  `reward_model.ground_truth`) and plain question/answer files need no arguments. Every column but the
  prompt is in the metadata of the example, so verifiers and reward functions find it there.

  Args:
    train, evals, data_dir, dataset, eval_fraction: where the rows are; see `tasks.reader.read`.
    verifier: a name of VERIFIERS, or "module:function"; or one for each source:
      {"openai/gsm8k": "text", "lighteval/MATH": "math"}.
    prompt_column: text, or a list of {role, content} that ends with the user's turn. None: the first
      of PROMPT_COLUMNS that a row has.
    answer_column: text or a number; of a worked solution the final answer is taken (`reader.final`),
      but not with "exact" and "code". None: the first of ANSWER_COLUMNS. With "code" the metadata columns
      `tests`, `entry_point` and `setup` decide, and an answer may be missing.
    source_column: None: `data_source` where there is one, else the source is "files".
    difficulty_column: a whole number, 1 or more; None: not known.
    seed: of the draw of few-shot examples.
    **style: of the prompt; see `tasks.prompts.Style`.

  Raises:
    ValueError: naming the row, for one that cannot be read, lacks a column, has an empty prompt, or an
      answer that its verifier could never accept; or if a question is both trained on and held out.
  """
  made = style_of(files, style)
  prompt_columns = PROMPT_COLUMNS if prompt_column is None else (prompt_column,)
  answer_columns = ANSWER_COLUMNS if answer_column is None else (answer_column,)
  if not isinstance(verifier, str | Mapping):
    raise ValueError(f"verifier must be a name, or source -> name, not {verifier!r}")
  per_source = None if isinstance(verifier, str) else dict(verifier)
  names = [verifier] if isinstance(verifier, str) else list(verifier.values())
  functions = {name: resolve("verifier", name, VERIFIERS) for name in names}
  if "code" in functions:
    functions["code"] = code.verifier(seconds=4.0)  # refuses where code cannot be confined

  def parse(row: reader.Row) -> Example:
    source = "files"
    if source_column is not None or reader.has(row, "data_source"):
      source = reader.text(row, source_column or "data_source")
    if per_source is not None and source not in per_source:
      raise unknown("source without a verifier:", source, per_source)
    name = verifier if isinstance(verifier, str) else verifier[source]
    metadata = {column: value for column, value in row.items() if column not in prompt_columns}
    if name == "code" and not any(reader.has(row, column) for column in answer_columns):
      answer = ""
    else:
      answer = reader.answer(row, *answer_columns, worked=name not in ("code", "exact"))
      metadata.setdefault("solution", reader.column(row, *answer_columns))
    difficulty = 0 if difficulty_column is None else reader.whole(row, difficulty_column)
    if difficulty < 0:
      raise ValueError(f"column {difficulty_column!r} is {difficulty}; difficulties are 1 or more")
    example = Example(
      prompt=_prompt(row, prompt_columns),
      answer=answer,
      source=source,
      metadata=metadata,
      difficulty=difficulty,
    )
    check_reference(name, example)
    return example

  sets = reader.read(
    parse,
    train=train,
    evals=evals,
    data_dir=data_dir,
    dataset=dataset,
    eval_fraction=eval_fraction,
  )
  verify = next(iter(functions.values()))
  if per_source is not None:
    by_source = {source: functions[name] for source, name in per_source.items()}
    verify = functools.partial(verify_by_source, by_source)
    if any(getattr(one, "needs_processes", False) for one in by_source.values()):
      needs_processes(verify)
  return make_task(*sets, verify=verify, style=made, seed=seed)


def verify_by_source(verifiers: Mapping[str, Callable], example: Example, text: str) -> Verdict:
  """The verdict of the verifier of the example's source."""
  return verifiers[example.source](example, text)


def check_reference(name: str, example: Example) -> None:
  """Refuses an example that no completion could solve; `name` is of VERIFIERS, or not checked.

  Raises:
    ValueError: for a reference answer that the verifier cannot read, or code without tests.
  """
  if name == "code":
    code.check_reference(example)
  elif name == "choice":
    choice.check_reference(example)
  elif name == "math":
    maths.check_reference(example.answer)
  elif name in ("text", "integer"):
    verify_lib.check_reference(example.answer)
    if name == "integer":
      verify_lib.integer(example, "")


def _prompt(row: reader.Row, names: Sequence[str]) -> str | tuple[dict[str, str], ...]:
  value = reader.column(row, *names)
  if isinstance(value, str) or not isinstance(value, Sequence):
    return reader.text(row, *names)
  turns = []
  for turn in value:
    role, content = (
      turn.get(k) if isinstance(turn, Mapping) else None for k in ("role", "content")
    )
    if role not in _ROLES or not isinstance(content, str):
      raise ValueError(
        f"the prompt holds {turn!r}; a chat is a list of {{role, content}}, roles {', '.join(_ROLES)}"
      )
    turns.append({"role": role, "content": content})
  if not turns or turns[-1]["role"] != "user":
    raise ValueError("the prompt is a chat that does not end with the user's turn")
  if not turns[-1]["content"].strip():
    raise ValueError("the prompt is empty")
  return tuple(turns)
