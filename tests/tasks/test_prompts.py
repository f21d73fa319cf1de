import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.tasks.prompts import Style, make_task, style_of, write
from rlvr_jax.tasks.verify import exact


def user(text):
  return {"role": "user", "content": text}


SHOT = Example("1+1?", "2", "s", {"solution": "One and one. #### 2"})
BARE = Example("2+2?", "4", "s")


def test_chat_prompts_by_hand():
  assert write(BARE, [], Style()) == (user("2+2?"),)
  style = Style(template="Q: {question} A{}:", system="Be brief.")
  assert write(BARE, [SHOT, BARE], style) == (
    {"role": "system", "content": "Be brief."},
    user("Q: 1+1? A{}:"),
    {"role": "assistant", "content": "One and one. #### 2"},
    user("Q: 2+2? A{}:"),
    {"role": "assistant", "content": "4"},
    user("Q: 2+2? A{}:"),
  )


def test_plain_prompts_by_hand():
  style = Style(template="Q: {question}\nA:", system="Sums.", chat=False)
  assert write(BARE, [SHOT], style) == "Sums.\n\nQ: 1+1?\nA: One and one. #### 2\n\nQ: 2+2?\nA:"
  assert write(BARE, [], Style(chat=False)) == "2+2?"


def test_a_prompt_that_is_a_chat_keeps_its_turns():
  system, turn = {"role": "system", "content": "Own."}, {"role": "assistant", "content": "Yes?"}
  chat = Example((system, user("Hello"), turn, user("2+2?")), "4", "s")
  assert write(chat, [SHOT], Style(template="<{question}>")) == (
    system,
    user("<1+1?>"),
    {"role": "assistant", "content": "One and one. #### 2"},
    user("Hello"),
    turn,
    user("<2+2?>"),
  )
  assert write(BARE, [chat], Style())[:3] == (user("Hello"), turn, user("2+2?"))
  with pytest.raises(ValueError, match="system message of its own"):
    write(chat, [], Style(system="Other."))
  with pytest.raises(ValueError, match="chat=False"):
    write(chat, [], Style(chat=False))


def test_question_text_is_not_a_template():
  example = Example("{question} {0} %s", "1", "s")
  assert write(example, [], Style(template="a {question} b")) == (user("a {question} {0} %s b"),)


def test_few_shot_examples_leave_the_training_set():
  train = [Example(f"q{i % 6}", str(i % 6), "s") for i in range(12)]  # each question twice
  task = make_task(
    train, {"test": [Example("x", "1", "t")]}, verify=exact, style=Style(few_shot=2), seed=0
  )
  (prompt,) = [e.prompt for e in task.evals["test"]]
  shots = {turn["content"] for turn in prompt[:-1] if turn["role"] == "user"}
  asked = [e.prompt[-1]["content"] for e in task.train]
  assert len(shots) == 2 and len(asked) == 8
  assert shots | set(asked) == {f"q{i}" for i in range(6)} and shots.isdisjoint(asked)
  assert all(e.prompt[:-1] == prompt[:-1] for e in task.train)
  assert task.sources == ("s", "t")
  seeds = [make_task(train, {}, verify=exact, style=Style(few_shot=2), seed=i) for i in range(5)]
  assert any(other.train[0].prompt[:-1] != prompt[:-1] for other in seeds)
  with pytest.raises(
    ValueError, match="needs more than 6 different training questions, there are 6"
  ):
    make_task(train, {}, verify=exact, style=Style(few_shot=6), seed=0)


def test_what_is_trained_on_and_held_out_is_refused_with_its_rows():
  train = [Example(f"q{i}", "1", "s", {"file_row": f"train.jsonl:{i}"}) for i in range(9)]
  held = [
    Example((user("  Q3 \n"),), "1", "s", {"file_row": "test.jsonl:7"}),
    Example("q5", "1", "s"),
  ]
  match = r"2 training questions .* train.jsonl:3 = test.jsonl:7, train.jsonl:5 = test\[1\]; remove"
  with pytest.raises(ValueError, match=match):
    make_task(train, {"test": held}, verify=exact, style=Style(), seed=0)


def test_style_of_refuses_what_it_does_not_know():
  def factory(*, path, seed=0, **style):
    return style_of(factory, style, template="{question}!")

  assert factory(path="x") == Style(template="{question}!")
  assert factory(path="x", few_shot=3, template="{question}").few_shot == 3
  with pytest.raises(ValueError, match=r"did you mean .*system"):
    factory(path="x", sytem="a")
  with pytest.raises(ValueError, match=r"'factory': 'sead'; did you mean .*seed"):
    factory(path="x", sead=1)
  for wrong, match in [
    ({"template": "no slot"}, "template"),
    ({"template": "{question} {question}"}, "once"),
    ({"system": 3}, "system"),
    ({"few_shot": -1}, "few_shot"),
    ({"few_shot": True}, "few_shot"),
    ({"chat": "yes"}, "chat"),
  ]:
    with pytest.raises(ValueError, match=match):
      factory(path="x", **wrong)
