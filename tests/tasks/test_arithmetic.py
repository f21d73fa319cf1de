import collections

import pytest

from rlvr_jax.core.records import Tokenizer
from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.arithmetic import OPERATIONS, CharTokenizer, arithmetic, demonstrations
from rlvr_jax.tasks.table import tokenise
from rlvr_jax.tasks.verify import VerifierPool


def reckon(example):
  """The answer by the way it is done at school, from the prompt's text."""
  left = example.prompt.removesuffix("=")
  if left.isdigit():
    return left
  if "-" in left:
    a, b = left.split("-")
    return str(int(a) - int(b))
  if "*" in left:
    a, b = left.split("*")
    return str(sum(int(a) for _ in range(int(b))))
  a, b = left.replace("%", "+").split("+")
  total = int(a) + int(b)
  return str(total % 10 ** max(len(a), len(b)) if "%" in left else total)


def test_answers_are_right_and_sources_even():
  task = arithmetic(operations=tuple(OPERATIONS), train_size=200, eval_size=50)
  examples = [*task.train, *task.evals["heldout"]]
  assert [e.answer for e in examples] == [reckon(e) for e in examples]
  assert set(collections.Counter(e.source for e in task.train).values()) == {40}
  assert set(collections.Counter(e.source for e in task.evals["heldout"]).values()) == {10}
  assert {e.prompt for e in task.train}.isdisjoint(e.prompt for e in task.evals["heldout"])
  assert task.sources == tuple(OPERATIONS)


def test_the_table_of_tasks_leads_here():
  task = build("task", "arithmetic", TASKS, {"operations": ["add"], "train_size": 7, "digits": 2})
  assert len(task.train) == 7 and any(len(e.prompt) == 6 for e in task.train)
  with pytest.raises(ValueError, match="did you mean arithmetic"):
    build("task", "arithmetics", TASKS, {})
  with pytest.raises(ValueError, match="did you mean digits"):
    build("task", "arithmetic", TASKS, {"digit": 2})


def test_options_change_the_task_or_raise():
  assert arithmetic(seed=1) != arithmetic(seed=0)
  assert arithmetic(train_size=3, eval_size=0).evals == {}
  with pytest.raises(ValueError, match="did you mean add"):
    arithmetic(operations=("ad",))
  for wrong in ({"digits": 0}, {"operations": ()}, {"operations": ("add", "add")}):
    with pytest.raises(ValueError, match="must be"):
      arithmetic(**wrong)


def test_tokenizer_by_hand():
  tokenizer: Tokenizer = CharTokenizer("ab=")
  assert (tokenizer.pad_id, tokenizer.eos_ids, tokenizer.vocab_size) == (0, (2,), 6)
  assert tokenizer.encode("ba=") == [4, 3, 5]
  assert tokenizer.chat([{"role": "u", "content": "a"}, {"role": "u", "content": "="}]) == [1, 3, 5]
  assert tokenizer.decode([1, 4, 3, 2, 0, 0]) == "ba"
  with pytest.raises(ValueError, match="'c' in 'ac' is not in the alphabet"):
    tokenizer.encode("ac")
  with pytest.raises(ValueError, match="id 6"):
    tokenizer.decode([6])
  with pytest.raises(ValueError, match="twice"):
    CharTokenizer("aa")


def test_prompts_and_answers_pass_through_tokens():
  task = arithmetic(operations=tuple(OPERATIONS), train_size=50, eval_size=0)
  tokenizer = task.tokenizer
  table, kept, _ = tokenise(tokenizer, task.train, max_length=16, sources=task.sources)
  texts = []
  for tokens, length, i in zip(table.tokens, table.length, kept, strict=True):
    assert tokenizer.decode(tokens[:length]) == task.train[i].prompt
    ids = [*tokenizer.encode(task.train[i].answer), *tokenizer.eos_ids]
    texts.append(tokenizer.decode(ids))
  with VerifierPool(task.verify, workers=0) as pool:
    assert all(v.correct == 1.0 for v in pool(task.train, texts))
    assert all(v.correct == 0.0 for v in pool(task.train, [text + "=" for text in texts]))


def test_demonstrations_are_wrong_as_often_as_asked():
  task = arithmetic(operations=("add", "add_mod"), train_size=50, eval_size=10)
  tokenizer = task.tokenizer
  answers = {e.prompt: e.answer for e in task.train}
  pairs = demonstrations(task, wrong=0.3, repeats=4)
  assert len(pairs) == 200
  assert collections.Counter(tokenizer.decode(p) for p, _ in pairs) == {
    prompt: 4 * n for prompt, n in collections.Counter(e.prompt for e in task.train).items()
  }
  assert all(answer[-1] == 2 and 2 not in answer[:-1] for _, answer in pairs)
  wrong = [(p, a) for p, a in pairs if tokenizer.decode(a) != answers[tokenizer.decode(p)]]
  assert len(wrong) == 60
  assert all(len(a) == 2 for p, a in wrong if "%" in tokenizer.decode(p))  # like its own source
  assert all(
    tokenizer.decode(a) == answers[tokenizer.decode(p)] for p, a in demonstrations(task, wrong=0)
  )
  assert demonstrations(task, wrong=0.3, repeats=4) == pairs
  assert demonstrations(task, wrong=0.3, repeats=4, seed=1) != pairs


def test_demonstrations_refuse_what_cannot_be():
  task = arithmetic(operations=("add",), train_size=1, eval_size=0)
  with pytest.raises(ValueError, match="no answer but"):
    demonstrations(task, wrong=1.0)
  with pytest.raises(ValueError, match="tokenizer"):
    demonstrations(task._replace(tokenizer=None))
  for wrong in ({"wrong": 1.5}, {"repeats": 0}):
    with pytest.raises(ValueError, match="want"):
      demonstrations(task, **wrong)
