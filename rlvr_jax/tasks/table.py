"""The prompt table: a task's examples as padded token ids, cached on disk, read at random access."""

import hashlib
import json
import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from rlvr_jax.core.records import Example, Tokenizer
from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import PromptTable

_MULTIPLE = 16  # of the table's width, so that few widths are ever compiled for
_FORMAT = 1  # of the cache; another number makes all tables anew
_LEAVES = ("tokens", "length", "source", "difficulty")


class Tokenised(NamedTuple):
  """What `tokenise` makes."""

  table: PromptTable  # of M' rows
  kept: list[int]  # which example each row is, ascending
  dropped: int  # examples that were too long


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
  cache: str | os.PathLike | None = None,
) -> Tokenised:
  """Tokenises examples into one right-padded table.

  With a cache the table is made once and then mapped into memory: read from disk as it is used. It is
  found by the hash of everything that decides it: the tokenizer's fingerprint, the prompts, sources
  and difficulties of the examples in their order, and the arguments.

  Args:
    tokenizer: ids beyond a prompt's end are its `pad_id`.
    examples: M of them, read one at a time by index.
    max_length: most tokens of a prompt.
    sources: names; the table's `source` is an index into them.
    long: a prompt of more than `max_length` tokens: "raise", or "drop" to leave it out.
    cache: folder of tables, made if there is none; None: no cache.

  Returns:
    table: numpy int32 tokens [M',P], length, source and difficulty [M'], where P is the longest length
      rounded up to a multiple of 16, at most max_length. Read-only when it comes from a cache.
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
  if cache is None:
    leaves, kept = _make(tokenizer, examples, max_length, sources, long)
  else:
    settings = [tokenizer.fingerprint, tokenizer.pad_id, max_length, list(sources), long]
    folder = pathlib.Path(cache).expanduser() / _content_hash(settings, examples)
    if not folder.exists():
      _write(folder, *_make(tokenizer, examples, max_length, sources, long))
    leaves = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _LEAVES}
    kept = np.load(folder / "kept.npy")
  return Tokenised(PromptTable(**leaves), kept.tolist(), len(examples) - len(kept))


def _make(
  tokenizer: Tokenizer, examples: Sequence[Example], max_length: int, sources, long: str
) -> tuple[dict[str, Any], np.ndarray]:
  """(leaves of the table, kept)."""
  index = {name: i for i, name in enumerate(sources)}
  rows, kept = [], []
  for i in range(len(examples)):
    example = examples[i]
    ids = encode(tokenizer, example)
    if not ids:
      raise ValueError(f"example {i} has an empty prompt: {_shown(example)}")
    if example.source not in index:
      raise unknown(f"source of example {i}:", example.source, index)
    if len(ids) > max_length:
      if long == "raise":
        raise ValueError(
          f"the prompt of example {i} has {len(ids)} tokens, more than max_length={max_length}: "
          f'{_shown(example)}; raise max_length, or pass long="drop" to leave such prompts out'
        )
      continue
    rows.append(np.array(ids, np.int32))
    kept.append(i)
  if not rows:
    raise ValueError(
      f"all {len(examples)} prompts have more than max_length={max_length} tokens: none is left"
    )
  longest = max(len(ids) for ids in rows)
  width = min(-(-longest // _MULTIPLE) * _MULTIPLE, max_length)
  tokens = np.full((len(rows), width), tokenizer.pad_id, np.int32)
  for row, ids in zip(tokens, rows, strict=True):
    row[: len(ids)] = ids
  leaves = {
    "tokens": tokens,
    "length": np.array([len(ids) for ids in rows], np.int32),
    "source": np.array([index[examples[i].source] for i in kept], np.int32),
    "difficulty": np.array([examples[i].difficulty for i in kept], np.int32),
  }
  return leaves, np.array(kept, np.int32)


def _content_hash(settings: Sequence[Any], examples: Sequence[Example]) -> str:
  digest = hashlib.sha256(json.dumps([_FORMAT, *settings]).encode())
  for i in range(len(examples)):
    example = examples[i]
    parts = [example.prompt, example.source, example.difficulty]
    digest.update(json.dumps(parts).encode() + b"\n")
  return digest.hexdigest()[:32]


def _write(folder: pathlib.Path, leaves: Mapping[str, np.ndarray], kept: np.ndarray) -> None:
  """Writes a table all at once: a folder that has its name is complete."""
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
    made = pathlib.Path(scratch) / folder.name
    made.mkdir()
    for name, leaf in {**leaves, "kept": kept}.items():
      np.save(made / f"{name}.npy", leaf)
    try:
      made.rename(folder)
    except OSError:
      if not folder.exists():  # else another process was faster, with the same table
        raise


def _shown(example: Example) -> str:
  text = repr(example.prompt)
  return text if len(text) <= 200 else text[:200] + "..."


# --------------------------------------------------------------------------------------------------
# Orders of prompts


def stream(
  table: PromptTable,
  *,
  seed: int,
  weights: Mapping[int, float] | None = None,
  shuffle: bool = True,
  epochs: int | None = None,
  host: int = 0,
  hosts: int = 1,
) -> grain.MapDataset:
  """Prompt ids in the order in which they are to be drawn; entry i is known without those before it.

  So the state of an iterator over it is one number: see `batches`.

  Args:
    table: M prompts; ids are its rows.
    seed: of the shuffles; every epoch is shuffled anew.
    weights: share of each source in the stream, by its index; sources left out are not drawn. Each
      source has epochs of its own then. None: each prompt once an epoch.
    shuffle: False: in the order of the table.
    epochs: how often the table is gone through; None: without end, as it must be with weights.
    host, hosts: this process and how many there are. The streams of all hosts, taken in turn, are the
      one of a single host, whatever their number, so that the batch of all hosts is the same.

  Returns:
    A MapDataset of numpy int32 [].

  Raises:
    ValueError: for weights that are not positive or of a source without prompts, or a host out of range.
  """
  if not 0 <= host < hosts:
    raise ValueError(f"host must be in [0, {hosts}), got {host}")
  if epochs is not None and (epochs < 1 or weights is not None):
    raise ValueError(f"epochs must be 1 or more, and None with weights, got {epochs}")
  source = np.asarray(table.source)
  ids = np.arange(len(source), dtype=np.int32)
  if weights is None:
    dataset = _shuffled(ids, seed, shuffle).repeat(epochs)
  else:
    if not weights or not all(np.isfinite(w) and w > 0 for w in weights.values()):
      raise ValueError(f"weights must be positive and finite, got {dict(weights)}")
    parts = [ids[source == index] for index in weights]
    if not all(len(part) for part in parts):
      raise ValueError(f"a source of weights={dict(weights)} has no prompts")
    endless = [_shuffled(part, seed + i, shuffle).repeat() for i, part in enumerate(parts)]
    dataset = grain.MapDataset.mix(endless, list(weights.values()))
  return dataset if hosts == 1 else dataset[host::hosts]


def _shuffled(ids: Any, seed: int, shuffle: bool) -> grain.MapDataset:
  dataset = grain.MapDataset.source(ids)
  return dataset.seed(seed).shuffle() if shuffle else dataset


def batches(ids: grain.MapDataset, num: int) -> grain.DatasetIterator:
  """Takes a stream `num` ids at a time: an iterator of int32 [num].

  Its get_state() is {"next_index": batches taken}, and set_state() goes there at once. It starts no
  threads, so nothing is read ahead and the state is exact.
  """
  reading = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
  return iter(ids.batch(num).to_iter_dataset(reading))
