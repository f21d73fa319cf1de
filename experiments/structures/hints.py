"""Hints in single characters: the policy copies the answer, and its first digits stand before the prompt."""

from rlvr_jax.condition.hints import Wording, hints
from rlvr_jax.core.records import Texts
from rlvr_jax.core.types import Condition


def digit_hints(*, levels: int = 1) -> Condition:
  """The hint of level l is the first 2 l characters of what the policy makes of "<answer>="."""
  return hints(levels=levels, places=8, ask_places=16, most=6, wording=wording)


def wording(texts: Texts | None) -> Wording:
  """What is asked, read and put before the prompt."""
  if texts is None:
    raise ValueError("hints need the texts of the prompts")
  examples, tokenizer = texts

  def read(ids, levels):
    text = tokenizer.decode(ids)
    return [text[: 2 * level] or None for level in range(1, levels + 1)]

  return Wording(
    ask=lambda i, levels: tokenizer.encode(f"{examples[i].answer}="),
    read=read,
    put=lambda i, hint: tokenizer.encode(f"{hint}={examples[i].prompt}"),
  )
