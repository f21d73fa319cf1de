"""Hints on a Markov chain: which groups try again, what their rows see, and what beliefs hear of it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.condition.hints import Wording, hints, in_words, read_hints, with_hint
from rlvr_jax.core import ledger
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Example, Texts, Verdict
from rlvr_jax.core.types import Collector, PromptTable, plain_table
from rlvr_jax.recipes.sage import sage
from rlvr_jax.train.collect import make_collect
from tests import toy

VOCAB, NEW, SIZE, LEVELS, PLACES = 4, 2, 4, 3, 2
PROMPTS = [[0, 1], [1], [2, 0]]
POLICY = toy.table_policy(VOCAB, 8)
PARAMS = POLICY.init(jax.random.key(0))


def _wording(texts):
  """The hint of level l is [3, l]; prompt 1 has no reference."""
  del texts
  return Wording(
    ask=lambda i, levels: None if i == 1 else [3, *PROMPTS[i]],
    read=lambda ids, levels: [LENGTHS.get(level, [3, level]) for level in range(1, levels + 1)],
    put=lambda i, hint: [*hint, *PROMPTS[i]],
  )


LENGTHS = {}  # level -> another hint


class Run(NamedTuple):
  batch: Any
  books: dict
  calls: list  # prompts of the rows of each wave


SAGE = sage(
  start=SIZE, levels=LEVELS, places=PLACES, ask_places=3, most=2, wording=_wording, ddof=0
)
SCRIPT = []
CALLS = []


def _verify(ids, texts):
  """Rows of a wave come by groups."""
  verdicts, seen = SCRIPT[len(CALLS)], {}
  out = []
  for i in ids:
    seen[i] = seen.get(i, -1) + 1
    out.append(Verdict(float(verdicts.get(i, [0] * SIZE)[seen[i]])))
  CALLS.append(sorted(seen))
  return out


COLLECT = make_collect(
  POLICY, SAGE,
  PromptTable(
    tokens=jnp.array([[0, 1], [1, 0], [2, 0]], jnp.int32),
    length=jnp.array([2, 1, 2], jnp.int32),
    source=jnp.zeros(3, jnp.int32),
  ),
  _verify, str, prompts=3, budget=SIZE * 3 * (1 + LEVELS), max_new_tokens=NEW, eos_ids=[-1],
  sources=("toy",),
)  # fmt: skip


def _run(*script, hint=None):
  SCRIPT[:], CALLS[:] = script, []
  LENGTHS.clear()
  LENGTHS.update(hint or {})
  collector = Collector(
    posterior=SAGE.posterior.init(plain_table(3)),
    replay=(),
    visited=jnp.zeros(3, bool),
    epoch=jnp.zeros((), jnp.int32),
    key=jax.random.key_data(jax.random.key(0)),
  )
  control = SAGE.control.init(plain_table(3))
  _, batch, books, _ = COLLECT(PARAMS, jnp.int32(5), control, collector, ledger.new(3))
  assert not ledger.balance(books).any()
  return Run(jax.device_get(batch), books, list(CALLS))


FIRST = {0: [0, 0, 0, 0], 1: [0, 1, 0, 0], 2: [0, 0, 0, 0]}


def test_worked_round():
  run = _run(FIRST, {}, {0: [1, 0, 1, 0]}, {})
  rows = run.batch.rows
  assert run.calls == [[0, 1, 2], [0, 2], [0, 2], [2]]
  np.testing.assert_array_equal(run.batch.tally.drawn, [12, 4, 16])
  advantage = np.asarray(SAGE.advantage(rows)).max(1) + np.asarray(SAGE.advantage(rows)).min(1)
  expected = {
    0: (2, [1, -1, 1, -1]), 1: (0, [-0.57735, 1.73205, -0.57735, -0.57735]), 2: (3, [0, 0, 0, 0])
  }  # fmt: skip
  assert rows.valid.sum() == 3 * SIZE
  for prompt, (level, credit) in expected.items():
    mine = rows.valid & (rows.prompt_id == prompt)
    assert (rows.wave[mine] == level).all()
    np.testing.assert_allclose(advantage[mine], credit, atol=1e-4)
    # What was sampled from is what is in the row, and in the loss.
    prefix = ([3, level] if level else []) + PROMPTS[prompt]
    assert (rows.response_start[mine] == len(prefix)).all()
    assert (rows.tokens[mine][:, : len(prefix)] == prefix).all()
    assert (rows.length[mine] == len(prefix) + NEW).all()
    tokens = rows.tokens[mine][:, : len(prefix) + NEW]
    expect = toy.logprobs(PARAMS, tokens, len(prefix))
    np.testing.assert_allclose(rows.full_logprobs[mine][:, : len(prefix) + NEW], expect, atol=1e-5)
    # No two rows of a prompt have the same numbers.
    assert len({tuple(u) for u in rows.uid[mine]}) == SIZE
  # Beliefs hear of rows without a hint only.
  np.testing.assert_array_equal(run.batch.tally.trials, [SIZE] * 3)
  np.testing.assert_array_equal(run.batch.tally.successes, [0, 1, 0])
  np.testing.assert_array_equal(rows.successes[rows.valid & (rows.prompt_id == 0)], 2)
  np.testing.assert_array_equal(run.books["hinted"], [2, 0, 2, 0])
  np.testing.assert_array_equal(run.books["generated"], NEW * np.array([12, 4, 16, 0]))


def test_without_a_collapsed_group_nothing_is_written():
  run = _run({i: [0, 1, 0, 0] for i in range(3)}, {}, {}, {})
  assert run.calls[1:] == [[], [], []] and (run.batch.rows.wave == 0).all()
  assert not run.books["hinted"].any() and run.batch.tally.drawn.tolist() == [SIZE] * 3


def test_a_prompt_without_a_hint_of_a_level_keeps_what_it_has():
  """Prompt 1 has no reference at all."""
  run = _run({}, {}, {}, {}, hint={2: None})
  assert run.calls == [[0, 1, 2], [0, 2], [], [0, 2]]
  rows = run.batch.rows
  waves = [set(rows.wave[rows.valid & (rows.prompt_id == i)].tolist()) for i in range(3)]
  assert waves == [{3}, {0}, {3}]
  run = _run({}, {}, {0: [0, 1, 0, 0]}, {}, hint={3: None})
  waves = [
    set(run.batch.rows.wave[run.batch.rows.valid & (run.batch.rows.prompt_id == i)].tolist())
    for i in range(3)
  ]
  assert waves == [{2}, {0}, {2}]


def test_what_does_not_fit_says_what_to_raise():
  with pytest.raises(ValueError, match="room for 4: raise places of hints from 2 to at least 3"):
    _run({}, {}, hint={1: [3, 3, 3]})
  short = hints(levels=1, places=PLACES, ask_places=2, most=2, wording=_wording)
  assert short.build
  with pytest.raises(ValueError, match="raise ask_places of hints from 2 to at least 3"):
    _collect_with(short)
  with pytest.raises(ValueError, match="need the texts of the prompts"):
    _collect_with(hints(wording=in_words))
  with pytest.raises(ValueError, match="at least 1"):
    hints(levels=0)


def _collect_with(condition):
  """Wave 1 of three open rows, as collect would ask for it."""
  from rlvr_jax.core.types import Prompts, Round

  ids = jnp.arange(3, dtype=jnp.int32)
  some = jnp.zeros(3, jnp.float32)
  rows = toy.rows(groups=[0, 1, 2])
  prompts = Prompts(ids, jnp.zeros((3, 2), jnp.int32), ids, ids, some, None, ids >= 0)  # pyright: ignore
  state = Round(prompts, rows, jnp.int32(1), jnp.int32(0))
  return condition.build(
    POLICY, PARAMS, jax.random.key(0), state, rows, None, version=0, eos_ids=[-1], texts=None
  )


def test_the_loss_may_look_at_the_bare_prompt():
  before = toy.rows(
    groups=[0, 1], tokens=[[7, 8, 1, 2, 3, 0], [7, 8, 4, 5, 6, 0]], prompt=3,
    length=[5, 6], limit=[6, 6], masks=[[1, 1, 0], [1, 1, 1]],
    full_logprobs=[[0, 0, 0, -1, -2, 0], [0, 0, 0, -3, -4, -5]],
  )  # fmt: skip
  after = rows_lib.reprompt(before, jnp.array([[1], [9]], jnp.int32), jnp.ones(2, jnp.int32))
  assert after.tokens.tolist() == [[1, 2, 3, 0, 0, 0], [9, 5, 6, 0, 0, 0]]
  assert after.full_logprobs.tolist() == [[0, -1, -2, 0, 0, 0], [0, -3, -4, -5, 0, 0]]
  assert after.response_mask.sum(1).tolist() == [2, 3] and after.response_start.tolist() == [1, 1]
  assert after.length.tolist() == [3, 4] and after.limit.tolist() == [4, 4]
  assert toy.kinds(after) == toy.kinds(before)
  assert hints(strip=True).strip and hints().strip is None


class _Letters:
  """A tokenizer whose ids are characters; a chat is its messages, each in brackets."""

  vocab_size, eos_ids, pad_id, fingerprint = 256, (0,), 0, "letters"

  def encode(self, text):
    return list(text.encode())

  def decode(self, ids):
    return bytes(ids).decode()

  def chat(self, messages):
    return self.encode("".join(f"<{m['content']}>" for m in messages))


def test_hints_in_words():
  reply = "Sure.\n**Hint 1:** add\nhint 3) carry\nthe one\nHint 2: \nHint 1. add both\nHint 9: no"
  assert read_hints(reply, 3) == ["add both", None, "carry\nthe one"]
  solved = {"solution": "4+5=9"}
  chat = ({"role": "system", "content": "be brief"}, {"role": "user", "content": "4+5?"})
  texts = Texts(
    [Example("1+2?", "3", "s"), Example("4+5?", "9", "s", solved), Example(chat, "9", "s", solved)],
    _Letters(),
  )
  words = in_words(texts)
  assert words.ask(0, 3) is None
  asked = bytes(words.ask(1, 3)).decode()
  assert "4+5?" in asked and "4+5=9" in asked and "3 hints" in asked and asked[0] != "<"
  assert bytes(words.ask(2, 3)).decode() == f"<{asked}>"
  assert bytes(words.put(1, "add")).decode() == "4+5?\n\nHint: add"
  assert bytes(words.put(2, "add")).decode() == "<be brief><4+5?\n\nHint: add>"
  assert with_hint(texts.examples[2], "add").prompt[0] == chat[0]
  assert words.read(list(reply.encode()), 1) == ["add both"]
