"""The types of tasks and verifiers, without jax: a verifier process imports these and no more."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Tokenizer(Protocol):
  """Text to ids and back. `chat` ends with the cue that opens the assistant's turn."""

  vocab_size: int  # ids at or above this are never sampled
  eos_ids: tuple[int, ...]  # any of them ends a response
  pad_id: int

  @property
  def fingerprint(self) -> str: ...  # equal only for tokenizers that give equal ids
  def encode(self, text: str) -> list[int]: ...
  def decode(self, ids: Sequence[int]) -> str: ...
  def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]: ...


class Example(NamedTuple):
  """One prompt with what its verifier needs."""

  prompt: str | tuple[dict[str, str], ...]  # plain text, or chat messages {role, content}
  answer: str
  source: str
  metadata: Mapping[str, Any] = {}
  difficulty: int = 0  # a level of the source's own, 1 or more; 0: not known


class Texts(NamedTuple):
  """What the prompts of a table say: for what has to write more than their tokens."""

  examples: Sequence[Example]
  tokenizer: Tokenizer


class Verdict(NamedTuple):
  """A verifier's judgement of one completion, and why."""

  correct: float  # 1.0 correct, 0.0 wrong; a scorer with partial credit may lie between
  parsed: str | None = None  # the answer that was read out of the completion
  rule: str = ""  # which rule decided


class Task(NamedTuple):
  """Prompts and their verifier."""

  train: Sequence[Example]
  evals: Mapping[str, Sequence[Example]]  # held-out sets by name
  verify: Callable[[Example, str], Verdict]  # picklable: a module-level function
  sources: tuple[str, ...]  # names; a prompt's source is an index into them
  tokenizer: Tokenizer | None = None  # for policies that bring none (`tiny`)
