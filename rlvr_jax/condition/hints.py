"""Hints that the policy writes itself, from the reference solution, for prompts that it cannot solve."""

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import hosts, keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Example, Texts
from rlvr_jax.core.types import Condition
from rlvr_jax.decode import decode

_HINT = re.compile(r"^\W*hint\s*(\d+)[\s:.)*]*", re.IGNORECASE | re.MULTILINE)

ASK = """Problem:
{question}

Solution:
{solution}

Write {levels} hints for someone who cannot solve the problem, from weak to strong. The first one names \
the idea only, the last one goes through the steps; none of them says the final answer. Begin each of them \
on a line of its own, the first one with "Hint 1:"."""


class Wording(NamedTuple):
  """Hints in the tokens of a policy. Prompts go by their id in the table."""

  ask: Callable  # (id, levels) -> token ids of a prompt that asks for hints; None: cannot be hinted
  read: Callable  # (token ids of the reply, levels) -> a hint each level, None where there is none
  put: Callable  # (id, hint) -> token ids of the prompt with the hint


def in_words(texts: Texts | None) -> Wording:
  """Asks and hints in plain English, after the question. A prompt is hinted if metadata has a "solution"."""
  if texts is None:
    raise ValueError(
      "hints need the texts of the prompts, and this run has none (collect's `texts`)"
    )
  examples, tokenizer = texts

  def encode(prompt):
    return tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.chat(prompt)

  def ask(index, levels):
    example = examples[index]
    solution = example.metadata.get("solution")
    if not isinstance(solution, str) or not solution.strip():
      return None
    plain = isinstance(example.prompt, str)
    question = example.prompt if plain else example.prompt[-1]["content"]
    asked = ASK.format(question=question, solution=solution.strip(), levels=levels)
    return encode(asked if plain else ({"role": "user", "content": asked},))

  def put(index, hint):
    return encode(with_hint(examples[index], hint).prompt)

  return Wording(ask, lambda ids, levels: read_hints(tokenizer.decode(ids), levels), put)


def with_hint(example: Example, hint: str) -> Example:
  """The example with a hint below its question, which is the last message of a chat."""
  add = lambda text: f"{text}\n\nHint: {hint}"
  if isinstance(example.prompt, str):
    return example._replace(prompt=add(example.prompt))
  *before, last = example.prompt
  return example._replace(prompt=(*before, {**last, "content": add(last["content"])}))


def read_hints(reply: str, levels: int) -> list[str | None]:
  """The hint of each level in a reply that has lines "Hint 1: ...", the last one of equal numbers."""
  found: list[str | None] = [None] * levels
  marks = list(_HINT.finditer(reply))
  for mark, after in zip(marks, [*marks[1:], None], strict=True):
    text = reply[mark.end() : after.start() if after else None].strip()
    if 1 <= int(mark[1]) <= levels and text:
      found[int(mark[1]) - 1] = text
  return found


def hints(
  *, levels: int = 3, places: int = 256, ask_places: int = 1024, most: int = 256, strip: bool = False,
  wording: Callable[[Texts | None], Wording] = in_words,
) -> Condition:  # fmt: skip
  """In wave l > 0 rows see the hint of level l; their policy writes all levels of a prompt before wave 1.

  Prompts of a wave's rows that have no hint of its level are left out of the wave.

  Args:
    levels: hints of a prompt, from weak to strong. Waves beyond them bring nothing.
    places: tokens that a hint may add to a prompt.
    ask_places: tokens of the prompt that asks for hints.
    most: tokens of the reply.
    strip: the loss is on the prompt without the hint. Its ratio is then that of another law than the one
      sampled from, from the first update on.
    wording: makes a Wording of the run's texts.

  Source: SAGE, arXiv 2602.03143.
  """
  if levels < 1 or min(places, ask_places, most) < 1:
    raise ValueError(
      "levels, places, ask_places and most must be at least 1, got "
      f"{levels}, {places}, {ask_places} and {most}"
    )

  def build(policy, params, key, round, rows, notes, *, version, eos_ids, texts):
    wave, step = int(round.wave), int(round.step)
    if wave == 0:
      return rows, None, {}
    words = wording(texts)
    ids, group, valid = hosts.host((round.prompts.id, rows.group, rows.valid))
    wanted = np.zeros(len(ids), bool)
    wanted[group[valid]] = True
    cost = {}
    if notes is None:
      asks = [words.ask(int(i), levels) if w else None for i, w in zip(ids, wanted, strict=True)]
      notes, cost = _write(
        policy, params, asks, ids, key, step, version, eos_ids,
        lambda tokens: words.read(tokens, levels),
      )  # fmt: skip
    hinted = [n[wave - 1] if n is not None and wave <= levels else None for n in notes]
    prompts = [
      None if hint is None or not w else words.put(int(i), hint)
      for i, hint, w in zip(ids, hinted, wanted, strict=True)
    ]
    room = round.prompts.tokens.shape[1] + places
    tokens, length = _table(prompts, room, "a prompt with its hint", "places", places)
    return _put(rows, tokens, length), notes, cost

  def _write(policy, params, asks, ids, key, step, version, eos_ids, read):
    tokens, length = _table(
      asks, ask_places, "a prompt that asks for hints", "ask_places", ask_places
    )
    rows = _asking(tokens, length, ids, key, step, most=most)
    rows, counts = decode.decode(
      policy,
      params,
      rows,
      version=version,
      eos_ids=eos_ids,
      slots=len(ids),
      num_contexts=len(ids),
      prompt_places=ask_places,
    )
    texts, start, end = hosts.host((rows.tokens, rows.response_start, rows.length))
    replies = [texts[i, start[i] : end[i]].tolist() if length[i] else None for i in range(len(ids))]
    notes = [None if reply is None else read(reply) for reply in replies]
    cost = hosts.host({"hinted": counts.generated, "prefilled": counts.prefilled})
    return notes, cost

  def bare(rows, prompts):
    return rows_lib.reprompt(rows, prompts.tokens[rows.group], prompts.length[rows.group])

  return Condition(places=places, build=build, strip=bare if strip else None)


def _table(prompts: Sequence[Sequence[int] | None], width: int, what: str, knob: str, now: int):
  """(int32 [B,width] tokens, int32 [B] lengths), 0 where there is none.

  Raises:
    ValueError: if one is longer, with what to raise.
  """
  longest = max((len(p) for p in prompts if p is not None), default=0)
  if longest > width:
    raise ValueError(
      f"{what} has {longest} tokens, there is room for {width}: raise {knob} of hints from {now} to at "
      f"least {now + longest - width}"
    )
  tokens, length = np.zeros((len(prompts), width), np.int32), np.zeros(len(prompts), np.int32)
  for i, prompt in enumerate(prompts):
    if prompt is not None:
      tokens[i, : len(prompt)], length[i] = prompt, len(prompt)
  return tokens, length


@jax.jit
def _put(rows, tokens, length):
  """Rows with the prompts [B,P] of their groups; a row whose prompt has no tokens is padding."""
  stays = rows.valid & (length[rows.group] > 0)
  blank = rows_lib.blank(*rows.tokens.shape)
  new = rows_lib.reprompt(rows, tokens[rows.group], length[rows.group])
  status = jnp.where(stays, new.status, blank.status)
  return new.replace(valid=stays, status=status)


@functools.partial(jax.jit, static_argnames="most")
def _asking(tokens, length, ids, key, step, most):
  index = jnp.arange(len(ids), dtype=jnp.int32)
  return rows_lib.fresh(
    tokens,
    length,
    group=index,
    valid=length > 0,
    uid=keys.row_uids(keys.stream(key, "hint"), step, ids, jnp.zeros_like(index)),
    num_places=tokens.shape[1] + most,
    max_new_tokens=most,
    temperature=1.0,
  )
