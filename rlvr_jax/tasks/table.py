"""The prompt table: a task's examples as padded token ids."""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from rlvr_jax.core.records import Example, Tokenizer
from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import PromptTable

_MULTIPLE = 16  # of the table's width, so that few widths are ever compiled for


def encode(tokenizer: Tokenizer, example: Example) -> list[int]:
  """The prompt's token ids: chat messages through `chat`, plain text through `encode`."""
  if isinstance(example.prompt, str):
    return list(tokenizer.encode(example.prompt))
  return list(tokenizer.chat(example.prompt))


def tokenise(
  tokenizer: Tokenizer,
  examples: Sequence[Example],
  *,
  max_length: int,
  sources: Sequence[str],
  long: str = "raise",
) -> tuple[PromptTable, list[int], int]:
  """Tokenises examples into one right-padded table.

  Args:
    tokenizer: ids beyond a prompt's end are its `pad_id`.
    examples: M of them, read one at a time by index.
    max_length: most tokens of a prompt.
    sources: names; the table's `source` is an index into them.
    long: a prompt of more than `max_length` tokens: "raise", or "drop" to leave it out.

  Returns:
    table: numpy int32 tokens [M',P], length [M'] and source [M'], where P is the longest length
      rounded up to a multiple of 16, at most max_length.
    kept: indices into `examples`, one for each of the M' rows of the table, ascending.
    dropped: M - M', how many were too long.

  Raises:
    ValueError: for a prompt that is too long under "raise", one without tokens, one of an unknown
      source, or if no prompt is left.
  """
  if long not in ("raise", "drop"):
    raise ValueError(f'long must be "raise" or "drop", not {long!r}')
  if max_length < 1:
    raise ValueError(f"max_length must be at least 1, got {max_length}")
  if not len(examples):
    raise ValueError("there are no examples to tokenise")
  index = {name: i for i, name in enumerate(sources)}
  dataset: Any = grain.MapDataset.source(examples).map(lambda e: (encode(tokenizer, e), e.source))
  rows, kept, source_ids = [], [], []
  for i in range(len(dataset)):
    ids, source = dataset[i]
    if not ids:
      raise ValueError(f"example {i} has an empty prompt: {_shown(examples[i])}")
    if source not in index:
      raise unknown(f"source of example {i}:", source, index)
    if len(ids) > max_length:
      if long == "raise":
        raise ValueError(
          f"the prompt of example {i} has {len(ids)} tokens, more than max_length={max_length}: "
          f'{_shown(examples[i])}; raise max_length, or pass long="drop" to leave such prompts out'
        )
      continue
    rows.append(ids)
    kept.append(i)
    source_ids.append(index[source])
  if not rows:
    raise ValueError(
      f"all {len(examples)} prompts have more than max_length={max_length} tokens: none is left"
    )
  longest = max(len(ids) for ids in rows)
  width = min(-(-longest // _MULTIPLE) * _MULTIPLE, max_length)
  tokens = np.full((len(rows), width), tokenizer.pad_id, np.int32)
  for row, ids in zip(tokens, rows, strict=True):
    row[: len(ids)] = ids
  leaves: dict[str, Any] = {
    "tokens": tokens,
    "length": np.array([len(ids) for ids in rows], np.int32),
    "source": np.array(source_ids, np.int32),
  }
  return PromptTable(**leaves), kept, len(examples) - len(rows)


def _shown(example: Example) -> str:
  text = repr(example.prompt)
  return text if len(text) <= 200 else text[:200] + "..."
