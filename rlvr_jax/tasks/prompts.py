"""From questions to prompts: template, system message, few-shot examples, chat or plain text.

A source makes examples whose prompt is the bare question; `make_task` does the rest for all of them.
"""

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlvr_jax.core.records import Example, Task
from rlvr_jax.core.table import unknown
from rlvr_jax.tasks.mixture import ROW, check_disjoint, identity

SLOT = "{question}"


class Style(NamedTuple):
  """How a question is put to the policy. Every task takes these as arguments."""

  template: str = SLOT  # the text around the question; "{question}" stands for it
  system: str | None = None  # system message; None: none
  few_shot: int = 0  # worked examples before the question; they leave the training set
  chat: bool = True  # chat messages; False: one plain text, for models without a chat template


def style_of(factory: Callable, given: Mapping[str, Any], **defaults: Any) -> Style:
  """The style that a task's arguments describe; `defaults` are the task's own.

  Raises:
    ValueError: for an unknown argument (with the close ones of the factory), or a wrong value.
  """
  own = [
    name
    for name, parameter in inspect.signature(factory).parameters.items()
    if parameter.kind is not parameter.VAR_KEYWORD
  ]
  for name in given:
    if name not in Style._fields:
      raise unknown(f"argument of task {factory.__name__!r}:", name, [*own, *Style._fields])
  style = Style(**{**defaults, **given})
  if not isinstance(style.template, str) or style.template.count(SLOT) != 1:
    raise ValueError(f"template must be a text that holds {SLOT} once, got {style.template!r}")
  if style.system is not None and not isinstance(style.system, str):
    raise ValueError(f"system must be a text or None, got {style.system!r}")
  if not isinstance(style.few_shot, int) or isinstance(style.few_shot, bool) or style.few_shot < 0:
    raise ValueError(f"few_shot must be a whole number, 0 or more, got {style.few_shot!r}")
  if not isinstance(style.chat, bool):
    raise ValueError(f"chat must be true or false, got {style.chat!r}")
  return style


def make_task(
  train: Sequence[Example],
  evals: Mapping[str, Sequence[Example]],
  *,
  verify: Callable,
  style: Style,
  seed: int,
  sources: Sequence[str] | None = None,
) -> Task:
  """Checks that nothing is both trained on and held out, and writes the prompts.

  Few-shot examples are drawn from the training set and leave it. Their reply is the example's
  metadata["solution"], or its answer where there is none.

  Args:
    train: examples whose prompt is the bare question, text or chat messages.
    evals: held-out sets of the same kind, by name; empty ones are left out.
    verify: the task's verifier.
    style: of the prompts.
    seed: of the draw of few-shot examples.
    sources: names in their order; None: those that occur, sorted.

  Raises:
    ValueError: if a question is in both parts, there are too few examples for `few_shot`, or a
      prompt of chat messages does not go with the style.
  """
  check_disjoint(train, evals)
  shots, train = _draw_shots(train, style.few_shot, seed)
  render = lambda examples: [e._replace(prompt=write(e, shots, style)) for e in examples]
  made = {name: render(examples) for name, examples in evals.items() if len(examples)}
  if sources is None:
    sources = sorted(
      {e.source for e in train}.union(*({e.source for e in x} for x in made.values()))
    )
  return Task(train=render(train), evals=made, verify=verify, sources=tuple(sources))


def _draw_shots(train: Sequence[Example], count: int, seed: int):
  """(few-shot examples, training examples without them)."""
  if not count:
    return [], train
  distinct = list({identity(example): example for example in train}.values())
  if len(distinct) <= count:
    raise ValueError(
      f"few_shot={count} needs more than {count} different training questions, there are "
      f"{len(distinct)}"
    )
  shots = random.Random(f"few_shot {seed}").sample(distinct, count)
  used = {identity(shot) for shot in shots}
  return shots, [example for example in train if identity(example) not in used]


def write(
  example: Example, shots: Sequence[Example], style: Style
) -> str | tuple[dict[str, str], ...]:
  """The prompt of one example: chat messages, or a plain text whose parts an empty line divides.

  The template goes around the last message of a prompt that is a chat already. In a plain text the
  reply of a few-shot example follows its question after a space.
  """
  if not style.chat:
    parts = [] if style.system is None else [style.system]
    parts += [f"{_plain(shot, style)} {_reply(shot)}" for shot in shots]
    return "\n\n".join([*parts, _plain(example, style)])
  before, question = _turns(example)
  if style.system is not None and before and before[0]["role"] == "system":
    raise ValueError(
      f"{_name(example)}: the prompt has a system message of its own; leave out system"
    )
  messages = [] if style.system is None else [_message("system", style.system)]
  while before and before[0]["role"] == "system":
    messages.append(before.pop(0))
  for shot in shots:
    asked, worked = _turns(shot)
    messages += [turn for turn in asked if turn["role"] != "system"]
    messages += [_message("user", _fill(worked, style)), _message("assistant", _reply(shot))]
  return (*messages, *before, _message("user", _fill(question, style)))


def _turns(example: Example) -> tuple[list[dict[str, str]], str]:
  """(messages before the question, the question)."""
  if isinstance(example.prompt, str):
    return [], example.prompt
  *before, last = example.prompt
  return list(before), last["content"]


def _plain(example: Example, style: Style) -> str:
  if not isinstance(example.prompt, str):
    raise ValueError(f"{_name(example)}: the prompt is a chat, which chat=False cannot write")
  return _fill(example.prompt, style)


def _fill(question: str, style: Style) -> str:
  return style.template.replace(SLOT, question)


def _message(role: str, content: str) -> dict[str, str]:
  return {"role": role, "content": content}


def _reply(example: Example) -> str:
  solution = example.metadata.get("solution")
  return solution if isinstance(solution, str) and solution.strip() else example.answer


def _name(example: Example) -> str:
  return example.metadata.get(ROW, repr(example.prompt)[:80])
