import collections
import math
import pickle
import re
import subprocess
import sys

import pytest

from rlvr_jax.core.table import build
from rlvr_jax.tasks import TASKS
from rlvr_jax.tasks.reasoning_gym import reasoning_gym
from rlvr_jax.tasks.verify import VerifierPool

ONE_DIGIT = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
QUICKSTART = [
  {"name": "chain_sum", "args": ONE_DIGIT},
  {"name": "products", "args": ONE_DIGIT},
  {"name": "gcd", "args": {"max_value": 20}},
  {"name": "lcm", "args": {"max_value": 10}},
]
SYSTEM = "Answer with the number only."


def reckon(example):
  """The answer from the question's own text."""
  text = example.prompt[-1]["content"]
  numbers = [int(n) for n in re.findall(r"\d+", text)]
  if example.source == "gcd":
    return math.gcd(*numbers)
  if example.source == "lcm":
    return math.lcm(*numbers)
  a, operator, b = re.search(r"(\d+) ([-+*]) (\d+)", text).groups()
  a, b = int(a), int(b)
  return {"+": a + b, "-": a - b, "*": a * b}[operator]


def questions(examples):
  return [e.prompt[-1]["content"] for e in examples]


@pytest.fixture(scope="module")
def quickstart():
  args = {"mixture": QUICKSTART, "train_size": 1000, "eval_size": 80, "system": SYSTEM}
  return build("task", "reasoning_gym", TASKS, args)


def test_quickstart_examples(quickstart):
  heldout = quickstart.evals["heldout"]
  assert quickstart.sources == ("chain_sum", "products", "gcd", "lcm")
  assert collections.Counter(e.source for e in quickstart.train) == dict.fromkeys(
    quickstart.sources, 250
  )
  assert collections.Counter(e.source for e in heldout) == dict.fromkeys(quickstart.sources, 20)
  for example in [*quickstart.train, *heldout]:
    system, user = example.prompt
    assert system == {"role": "system", "content": SYSTEM}
    assert user["role"] == "user"
    assert float(example.answer) == reckon(example)
  # One-digit products have 100 questions and small lcms fewer: the split must be disjoint still.
  assert len(set(questions(heldout))) == 80
  assert set(questions(heldout)).isdisjoint(questions(quickstart.train))


def test_quickstart_verifies_the_final_number(quickstart):
  heldout = quickstart.evals["heldout"]
  right = [f"<think>7 9</think>It must be {reckon(e)}." for e in heldout]
  wrong = [f"<think>{reckon(e)}</think>It must be {reckon(e) + 1}." for e in heldout]
  with VerifierPool(quickstart.verify, workers=1) as pool:
    assert [v.correct for v in pool(heldout, right)] == [1.0] * 80
    assert [v.correct for v in pool(heldout, wrong)] == [0.0] * 80


def test_the_seed_and_nothing_else_decides(quickstart):
  args = {"mixture": QUICKSTART, "train_size": 1000, "eval_size": 80, "system": SYSTEM}
  assert reasoning_gym(**args) == quickstart
  other = reasoning_gym(**args, seed=1)
  assert questions(other.train) != questions(quickstart.train)
  assert reasoning_gym(mixture=QUICKSTART[:1], train_size=5, eval_size=0).evals == {}
  (message,) = reasoning_gym(mixture=QUICKSTART[:1], train_size=5, eval_size=0).train[0].prompt
  assert message["role"] == "user"


def test_mappings_labels_and_weights():
  task = reasoning_gym(
    mixture={
      "leg_counting": {"weight": 3},
      "hard": {"name": "chain_sum", "args": {"min_digits": 3, "max_digits": 3}},
    },
    train_size=40,
    eval_size=8,
  )
  assert task.sources == ("leg_counting", "hard")
  assert collections.Counter(e.source for e in task.train) == {"leg_counting": 30, "hard": 10}
  hard = [q for e in task.train if e.source == "hard" for q in questions([e])]
  assert all(re.search(r"\b\d{3}\b", q) for q in hard)


OTHERS = ["gsm_symbolic", "basic_arithmetic", "leg_counting", "spell_backward", "number_sorting"]
OTHERS += ["fraction_simplification", "complex_arithmetic", "time_intervals", "countdown"]


@pytest.mark.parametrize("score", ["extract", "native"])
def test_other_generators(score):
  mixture = [{"name": name} for name in OTHERS]
  task = reasoning_gym(mixture=mixture, train_size=36, eval_size=18, score=score)
  examples = task.evals["heldout"]
  assert pickle.loads(pickle.dumps(examples)) == examples
  with VerifierPool(task.verify, workers=1) as pool:
    for wrap in ("{}", "<think>42</think>\n{}\n", r"Well. <answer>{}</answer>"):
      verdicts = pool(examples, [wrap.format(e.answer) for e in examples])
      assert [v.correct for v in verdicts] == [1.0] * 18, verdicts
    wrong = pool(examples, ["I do not know"] * 18)
    assert all(v.correct < 0.5 for v in wrong), wrong
    assert all(v.correct == 0.0 for v in pool(examples, ["<think>"] * 18))
    assert not {"error", "crashed", "timeout"} & set(pool.counters)


def test_native_accepts_answers_that_differ_from_the_generators():
  # Any expression that makes the target counts; the generator only shows one.
  args = {"min_numbers": 3, "max_numbers": 3, "operators": ("+",), "shuffle": False}
  task = reasoning_gym(
    mixture=[{"name": "countdown", "args": args}], train_size=8, eval_size=0, score="native"
  )
  example = task.train[0]
  entry = example.metadata["entry"]["metadata"]
  a, b, c = reversed(entry["numbers"])
  assert a + b + c == entry["target"]
  turned = f"{a} + ({b} + {c})"
  assert turned != example.answer
  assert task.verify(example, f"<answer>{turned}</answer>").correct == 1.0
  assert task.verify(example, f"<answer>{turned} + 1</answer>").correct < 0.5


def test_errors_name_what_is_close():
  def refused(match, *, mixture=None, **args):
    with pytest.raises(ValueError, match=match):
      reasoning_gym(mixture=mixture or QUICKSTART, train_size=20, **args)

  refused("did you mean .*chain_sum", mixture=[{"name": "chain_sums"}])
  refused("did you mean .*max_terms", mixture=[{"name": "chain_sum", "args": {"max_term": 2}}])
  refused("did you mean weight", mixture=[{"name": "chain_sum", "wieght": 2}])
  refused("refuses .*max_terms", mixture=[{"name": "chain_sum", "args": {"max_terms": 1}}])
  refused("'seed' is set by the task", mixture=[{"name": "chain_sum", "args": {"seed": 1}}])
  refused("two mixture entries", mixture=[{"name": "gcd"}, {"name": "gcd"}])
  refused("has no name", mixture=[{"weight": 1}])
  refused("must be a list of {name", mixture=["gcd"])
  refused("weights must be positive", mixture=[{"name": "gcd", "weight": 0}])
  refused("score must be", score="exact")
  refused('use score="native"', mixture=[{"name": "graph_color"}], eval_size=0)
  refused("'lcm' has only .* distinct questions", mixture=QUICKSTART[3:], eval_size=200)
  with pytest.raises(ValueError, match="mixture is empty"):
    reasoning_gym(mixture=[], train_size=20)


def test_missing_package_is_named(monkeypatch):
  for name in [name for name in sys.modules if name.partition(".")[0] == "reasoning_gym"]:
    monkeypatch.delitem(sys.modules, name)
  monkeypatch.setitem(sys.modules, "reasoning_gym", None)
  with pytest.raises(ImportError, match="pip install reasoning-gym"):
    reasoning_gym(mixture=QUICKSTART)


@pytest.mark.parametrize(
  ("module", "imports"),
  [("verify", False), ("reasoning_gym", False), ("reasoning_gym_native", True)],
)
def test_verifiers_import_the_package_only_for_its_own_scores(module, imports):
  code = f"import sys, rlvr_jax.tasks.{module}; print('reasoning_gym' in sys.modules)"
  done = subprocess.run(
    [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"],
    capture_output=True,
    text=True,
    check=True,
  )
  assert done.stdout.strip() == str(imports)
