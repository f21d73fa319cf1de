"""Arithmetic in single characters, for policies small enough to train in a test."""

import random
from collections.abc import Iterator, Mapping, Sequence

from rlvr_jax.core.records import Example, Task
from rlvr_jax.core.table import unknown
from rlvr_jax.tasks.mixture import split
from rlvr_jax.tasks.verify import exact

# Name -> (prompt, answer) of two operands below 10^digits.
OPERATIONS = {
  "copy": lambda a, b, digits: (f"{a:0{digits}}{b:0{digits}}=", f"{a:0{digits}}{b:0{digits}}"),
  "add": lambda a, b, digits: (f"{a}+{b}=", str(a + b)),
  "add_mod": lambda a, b, digits: (f"{a}%{b}=", str((a + b) % 10**digits)),
  "subtract": lambda a, b, digits: (f"{a}-{b}=", str(a - b)),
  "multiply": lambda a, b, digits: (f"{a}*{b}=", str(a * b)),
}


class CharTokenizer:
  """One id a character: 0 pad, 1 begin, 2 end, then the alphabet in its order.

  `encode` adds nothing; `chat` puts the begin id before the contents of all messages. `decode`
  leaves the three special ids out.
  """

  pad_id = 0
  bos_id = 1
  eos_ids: tuple[int, ...] = (2,)

  def __init__(self, alphabet: str = "0123456789+-*%="):
    if len(set(alphabet)) != len(alphabet):
      raise ValueError(f"a character occurs twice in the alphabet {alphabet!r}")
    self.alphabet = alphabet
    self.vocab_size = 3 + len(alphabet)
    self.fingerprint = f"characters {alphabet}"
    self.token_bytes = (b"", b"", b"", *(char.encode() for char in alphabet))

  def encode(self, text: str) -> list[int]:
    for char in text:
      if char not in self.alphabet:
        raise ValueError(f"{char!r} in {text!r} is not in the alphabet {self.alphabet!r}")
    return [3 + self.alphabet.index(char) for char in text]

  def decode(self, ids: Sequence[int]) -> str:
    for i in ids:
      if not 0 <= i < self.vocab_size:
        raise ValueError(f"id {i} is not below the vocabulary's size, {self.vocab_size}")
    return "".join(self.alphabet[i - 3] for i in ids if i >= 3)

  def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    return [self.bos_id, *self.encode("".join(message["content"] for message in messages))]


def arithmetic(
  *,
  operations: Sequence[str] = ("copy", "add_mod", "add"),
  digits: int = 1,
  train_size: int = 256,
  eval_size: int = 30,
  seed: int = 0,
) -> Task:
  """Sums and the like on two operands of up to `digits` digits, each operation its own source.

  The completion must be the answer and nothing else. With one digit an operation has 100 prompts,
  so training prompts repeat when more are asked for; held-out ones are never among them.

    copy 37= 37 · add 8+7= 15 · add_mod 8%7= 5 (the sum modulo 10^digits) · subtract 3-7= -4 ·
    multiply 3*7= 21

  Args:
    operations: names of OPERATIONS, in equal parts.
    digits: most digits of an operand.
    train_size, eval_size: examples over all operations; the held-out set is "heldout".
    seed: of the draw.
  """
  if digits < 1:
    raise ValueError(f"digits must be at least 1, got {digits}")
  if not operations or len(set(operations)) != len(operations):
    raise ValueError(f"operations must be given, each once; got {list(operations)}")
  for name in operations:
    if name not in OPERATIONS:
      raise unknown("operation", name, OPERATIONS)
  train, heldout = split(
    {name: _stream(name, digits, seed) for name in operations},
    [1.0] * len(operations),
    train_size=train_size,
    eval_size=eval_size,
    seed=seed,
  )
  return Task(
    train=train,
    evals={"heldout": heldout} if heldout else {},
    verify=exact,
    sources=tuple(operations),
    tokenizer=CharTokenizer(),
  )


def _stream(name: str, digits: int, seed: int):
  def stream(part: str) -> Iterator[Example]:
    rng = random.Random(f"{seed} {name} {part}")
    while True:
      a, b = rng.randrange(10**digits), rng.randrange(10**digits)
      prompt, answer = OPERATIONS[name](a, b, digits)
      yield Example(prompt=prompt, answer=answer, source=name)

  return stream


def demonstrations(
  task: Task, *, wrong: float = 0.0, repeats: int = 1, seed: int = 0
) -> list[tuple[list[int], list[int]]]:
  """Training prompts with answers, for a supervised warm start.

  A policy that imitates them knows the form of an answer, and is right with a chance of about
  1 - wrong: often enough for a reward, seldom enough to leave something to learn.

  Args:
    task: one with a tokenizer.
    wrong: share of the pairs, in [0, 1], whose answer is that of another example of the same source
      and not the right one. Rounded to a whole number of pairs.
    repeats: pairs for each training example; which are wrong is drawn over all of them.
    seed: of that draw and of the order.

  Returns:
    (prompt ids, answer ids with the end id) pairs, len(task.train) * repeats of them, shuffled.

  Raises:
    ValueError: for a task without tokenizer, numbers out of range, or a source with only one answer
      that would have to be wrong.
  """
  tokenizer = task.tokenizer
  if tokenizer is None:
    raise ValueError("demonstrations need a task with a tokenizer of its own")
  if not 0 <= wrong <= 1 or repeats < 1:
    raise ValueError(f"want 0 <= wrong <= 1 and repeats >= 1, got {wrong} and {repeats}")
  rng = random.Random(f"demonstrations {seed}")
  examples = list(task.train) * repeats
  misled = set(rng.sample(range(len(examples)), round(wrong * len(examples))))
  answers: dict[str, list[str]] = {}
  for source in task.sources:
    answers[source] = sorted({e.answer for e in task.train if e.source == source})
  pairs = []
  for i, example in enumerate(examples):
    answer = example.answer
    if i in misled:
      others = [other for other in answers[example.source] if other != answer]
      if not others:
        raise ValueError(f"source {example.source!r} has no answer but {answer!r} to be wrong with")
      answer = rng.choice(others)
    prompt = example.prompt
    ids = tokenizer.encode(prompt) if isinstance(prompt, str) else tokenizer.chat(prompt)
    pairs.append((list(ids), [*tokenizer.encode(answer), tokenizer.eos_ids[0]]))
  rng.shuffle(pairs)
  return pairs
