"""Whole training steps on the toy policy: collect and learn, without files, tokenizer or processes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.condition.hints import Wording
from rlvr_jax.core import ledger
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import PromptTable, Recipe, RunState
from rlvr_jax.train.annotate import Model, make_annotate
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.critic import attach, make_baseline
from rlvr_jax.train.learn import make_learn
from rlvr_jax.train.metrics import CompileCounter
from rlvr_jax.train.optimizers import adam, scaled, with_rate
from rlvr_jax.train.state import init_state
from tests import toy

VOCAB, END, PROMPTS, BUDGET, NEW = 4, 3, 3, 12, 3
QUESTIONS = [[a, b] for a in range(3) for b in range(2)]
LENGTHS = [2, 2, 1, 2, 2, 1]  # of QUESTIONS; what is behind is padding
NUM_PROMPTS = len(QUESTIONS)


class Step(NamedTuple):
  """One step of a run, on the host."""

  rows: Any
  tally: Any
  metrics: dict
  ledger: ledger.Ledger  # after the step
  compiled: int  # programs compiled so far


class Run(NamedTuple):
  start: RunState
  end: RunState
  steps: list[Step]


def starts_with_zero(prompt_ids, texts):
  """Right: the first token of the response is 0."""
  return [Verdict(float(text.startswith("0"))) for text in texts]


def alternates(prompt_ids, texts):
  """Every other response is right, whatever it says: no group is all right or all wrong."""
  return [Verdict(float(i % 2)) for i in range(len(texts))]


def always_wrong(prompt_ids, texts):
  return [Verdict(0.0) for _ in texts]


def wording(texts):
  """Hints of one token, which the policy writes after 0 1."""
  del texts
  prompts = [ids[:n] for ids, n in zip(QUESTIONS, LENGTHS)]
  return Wording(
    ask=lambda i, levels: [0, 1],
    read=lambda ids, levels: [ids[:1]] * levels,
    put=lambda i, hint: [*hint, *prompts[i]],
  )


def solve_rate(params) -> float:
  """The chance that `starts_with_zero` holds, mean over the prompts: exact, whatever was drawn."""
  ends = [(n - 1, ids[n - 1]) for ids, n in zip(QUESTIONS, LENGTHS)]
  return float(np.mean([jax.nn.softmax(params["table"][at])[0] for at in ends]))


def run(recipe: Recipe, steps: int, *, verify=starts_with_zero, rate=0.05, seed=0) -> Run:
  """Trains `table_policy` on six prompts: three prompts and twelve rows a round."""
  toy.spare_maps()
  policy = toy.table_policy(VOCAB, 2 + NEW)
  table = PromptTable(
    tokens=jnp.array(QUESTIONS, jnp.int32),
    length=jnp.array(LENGTHS, jnp.int32),
    source=jnp.zeros(NUM_PROMPTS, jnp.int32),
  )
  optimizer = with_rate(scaled(adam(b2=0.999), recipe.step_scale), rate)
  collect = make_collect(
    policy, recipe, table, verify, lambda ids: "".join(map(str, ids)),
    sources=("toy",), prompts=PROMPTS, budget=BUDGET, max_new_tokens=NEW, eos_ids=[END],
  )  # fmt: skip
  learn = make_learn(
    policy, recipe, optimizer, num_rows=BUDGET, num_places=collect.num_places,
    num_prompts=NUM_PROMPTS,
  )  # fmt: skip
  params, sizes = policy.init(jax.random.key(seed)), {"num_places": collect.num_places}
  state = init_state(recipe, optimizer, params, table=table, seed=seed, **sizes)
  baseline = None
  if recipe.baseline:
    baseline = make_baseline(
      policy, recipe.baseline, num_rows=BUDGET, num_places=collect.num_places
    )
    state = state.replace(baseline=baseline.init(state.learner.params))
  learn = attach(learn, baseline)
  models = _models(policy, recipe, seed)
  annotate = make_annotate(policy, recipe, models, num_rows=BUDGET, num_places=collect.num_places)
  start, out = jax.device_get(state), []
  with CompileCounter() as compiled:
    for _ in range(steps):
      learner, collector, books = state.learner, state.collector, state.ledger
      collector, batch, books, _ = collect(
        learner.params, learner.step, learner.control, collector, books
      )
      key = jax.random.wrap_key_data(collector.key)
      learner, credit, learned, booked = learn(
        learner, state.baseline, annotate(learner.params, batch.rows), batch.tally,
        collector.epoch, key,
      )  # fmt: skip
      books = ledger.book(books, booked)
      state = state.replace(learner=learner, collector=collector, ledger=books, baseline=credit)
      rows, tally = jax.device_get((batch.rows, batch.tally))
      out.append(Step(rows, tally, batch.metrics | learned, books, compiled.count))
  return Run(start, jax.device_get(state), out)


def _models(policy, recipe, seed):
  """The teacher likes the right answer; all other models are the policy before the first update."""
  start = policy.init(jax.random.key(seed))
  teacher = {"table": start["table"].at[..., 0].add(2.0)}
  return {name: Model(policy, teacher if name == "teacher" else start) for name in recipe.annotate}


def booked(run: Run, entry: str) -> list[int]:
  """Tokens of a ledger entry in each step."""
  return np.diff([0, *(ledger.totals(s.ledger)[entry] for s in run.steps)]).tolist()
