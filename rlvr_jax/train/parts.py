"""What a run is made of: prompt sets, the functions of a step, evaluation, and the state before step 0."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import ledger
from rlvr_jax.core.records import Example, Task, Texts, Tokenizer
from rlvr_jax.core.types import Policy, PromptTable, Recipe, RunState
from rlvr_jax.tasks.table import tokenise
from rlvr_jax.train import debug
from rlvr_jax.train.annotate import Model, make_annotate
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.config import Config
from rlvr_jax.train.critic import attach, make_baseline
from rlvr_jax.train.evaluate import make_evaluate, stop_rules
from rlvr_jax.train.forms import Forms, make_forms
from rlvr_jax.train.learn import Apart, make_learn
from rlvr_jax.train.offer import Offer
from rlvr_jax.train.rewards import Scorer
from rlvr_jax.train.state import init_state, make_optimizer, make_schedule


class Placement(NamedTuple):
  """Where things live; see launch.meshes. The default is one device."""

  rows: Any = staticmethod(lambda rows: rows)  # constrains row arrays inside jitted functions
  rollout_rows: Any = None  # the same where batches are collected; None: as `rows`
  push: Any = staticmethod(lambda tree: tree)  # puts what the sampler reads on its devices
  hand: Any = staticmethod(lambda tree: tree)  # puts what was collected on those that learn
  state: Any = staticmethod(lambda state, policy: state)  # puts a RunState on the devices
  # Lays a learner's new state over the devices, inside jitted functions.
  learner: Any = staticmethod(lambda learner, policy: learner)
  lanes: int = 1  # learner bins computed side by side
  apart: Apart | None = None  # see train.learn


class PromptSet(NamedTuple):
  """A prompt set ready to be rolled out and verified."""

  name: str
  table: PromptTable
  examples: list[Example]


class Parts(NamedTuple):
  """The functions of a run."""

  forms: Forms  # without `trained`: the state has it
  collect: Callable[..., Any]  # of train.collect
  annotate: Callable[..., Any]  # of train.annotate
  learn: Callable[..., Any]  # of train.learn, with the baseline attached
  begin: Callable[..., Any]  # the halves of `learn`, without a baseline; see train.learn
  finish: Callable[..., Any]
  evaluate: Callable[[RunState], tuple[dict[str, float], RunState]]
  schedule: optax.Schedule  # learning rate of an update
  offer: Offer | None  # the stream of prompts, if there is one
  num_prompts: int
  updates: int  # a step
  push: Callable[[Any], Any]  # of the placement
  hand: Callable[[Any], Any]

  def offered(self) -> np.ndarray | None:
    """Where the stream of prompts is."""
    return None if self.offer is None else self.offer.position

  def epoch(self, state: RunState) -> int:
    """Passes over the table: those that are complete, or as many prompts as have been offered."""
    if self.offer is None:
      return int(state.collector.epoch)
    return int(state.offered[0]) // self.num_prompts


def make_parts(
  config: Config,
  policy: Policy,
  params: list,
  tokenizer: Tokenizer,
  recipe: Recipe,
  task: Task,
  sets: list[PromptSet],
  judge: Callable[..., Any],
  scorer: Scorer,
  models: Mapping[str, Model],
  placement: Placement,
) -> tuple[Parts, RunState]:
  """The functions of a run, and its state before step 0, which has taken the parameters over.

  Args:
    params: [parameters]; the list is emptied, so that no second copy lives on.
    sets: of `prompt_sets`.
    judge: (examples, completions) -> verdicts.
    models: the policies that the recipe annotates with; "reference" is `params` unless it is given.

  Raises:
    ValueError: for sizes that do not fit each other.
  """
  prompts, *held = sets
  schedule = make_schedule(config, recipe.updates)
  optimizer = make_optimizer(config, schedule, recipe.step_scale)
  forms = make_forms(config, policy, params.pop())
  offer = _offer(config, prompts, task)
  collect = _collect(
    config, forms, recipe, prompts, tokenizer, task, judge, scorer, offer, placement
  )
  sizes: dict[str, Any] = {
    "num_rows": config.budget,
    "num_places": collect.num_places,
    "bin_tokens": config.bin_tokens,
    "lanes": placement.lanes,
  }
  reads = {
    "read_tokens": config.read_tokens,
    "constrain": placement.rows,
    "frozen": forms.frozen,
  }
  num_prompts = len(prompts.examples)
  reader = forms.learner  # not `forms`: that holds the parameters
  learn = make_learn(
    reader, recipe, optimizer, num_prompts=num_prompts, **sizes, **reads, apart=placement.apart,
    settle=lambda learner: placement.learner(learner, reader),
  )  # fmt: skip
  begin, finish = learn.begin, learn.finish
  baseline = _baseline(config, forms, recipe, sizes)
  learn = attach(learn, baseline) if config.debug != "rollout" else debug.no_learning
  state = init_state(
    recipe, optimizer, forms.trained, table=prompts.table, num_places=collect.num_places,
    seed=config.seed, frozen=forms.frozen,
  )  # fmt: skip
  forms = forms._replace(trained=None)  # the state has taken them over
  if baseline:
    state = state.replace(baseline=baseline.init(state.learner.params))
  state = state.replace(offered=None if offer is None else offer.position)
  state = placement.state(state, forms.learner)
  models = dict(models)
  if "reference" in recipe.annotate and "reference" not in models:
    start_params = jax.tree.map(jnp.copy, forms.merged(state.learner.params))
    models["reference"] = Model(policy, start_params)
  annotate = make_annotate(
    forms.learner, recipe, models, **sizes, **reads, offload=config.offload_models
  )
  evaluate = _evaluations(config, policy, forms.merged, tokenizer, held, judge, placement)
  parts = Parts(
    forms,
    collect,
    annotate,
    learn,
    begin,
    finish,
    evaluate,
    schedule,
    offer,
    num_prompts,
    recipe.updates,
    placement.push,
    placement.hand,
  )
  return parts, state


def _collect(
  config: Config, forms, recipe, prompts, tokenizer, task, judge, scorer, offer, placement
):
  return make_collect(
    forms.actor,
    recipe,
    prompts.table,
    lambda index, texts: judge([prompts.examples[i] for i in index], texts),
    tokenizer.decode,
    prompts=config.prompts,
    budget=config.budget,
    max_new_tokens=config.max_new_tokens,
    eos_ids=tokenizer.eos_ids,
    stops=stop_rules(config.stop_strings, tokenizer),
    constrain=placement.rollout_rows or placement.rows,
    sources=task.sources,
    scorer=scorer,
    offer=offer,
    texts=Texts(prompts.examples, tokenizer),
  )


def prompt_sets(tokenizer: Tokenizer, task: Task, config: Config) -> list[PromptSet]:
  """The training set, then the held-out sets; all tables equally wide, so that they share programs."""
  if not task.train:
    raise ValueError("the task has held-out sets only: there is nothing to train on")
  sets = {"train": list(task.train)}
  if config.eval_every:
    sets |= {name: evenly(examples, config.eval_prompts) for name, examples in task.evals.items()}
  made = []
  for name, examples in sets.items():
    table, kept, dropped = tokenise(
      tokenizer,
      examples,
      max_length=config.max_prompt_length,
      sources=task.sources,
      long=config.long_prompts,
      cache=config.prompt_cache or None,
    )
    if dropped:
      limit = config.max_prompt_length
      print(f"{name}: dropped {dropped} of {len(examples)} prompts, of more than {limit} tokens")
    made.append(PromptSet(name, table, [examples[i] for i in kept]))
  width = max(one.table.tokens.shape[1] for one in made)
  return [one._replace(table=_widen(one.table, width, tokenizer.pad_id)) for one in made]


def _widen(table: PromptTable, width: int, pad_id: int) -> PromptTable:
  more = width - table.tokens.shape[1]
  tokens: Any = np.pad(table.tokens, ((0, 0), (0, more)), constant_values=pad_id)
  return table.replace(tokens=tokens)


def _evaluations(
  config: Config, policy, merged, tokenizer, held: list[PromptSet], judge, placement
):
  """evaluate(state) -> (metrics of every held-out set, state with the tokens booked)."""
  runs = []
  for number, prompts in enumerate(held):

    def verify(index, texts, examples=prompts.examples):
      return judge([examples[i] for i in index], texts)

    runs.append(
      make_evaluate(
        policy,
        prompts.name,
        prompts.table,
        [example.source for example in prompts.examples],
        verify,
        tokenizer.decode,
        samples=config.eval_samples,
        rows=max(config.budget, config.eval_samples),
        max_new_tokens=config.max_new_tokens,
        temperature=config.eval_temperature,
        eos_ids=tokenizer.eos_ids,
        seed=config.seed + number,
        stops=stop_rules(config.stop_strings, tokenizer),
        constrain=placement.rows,
      )
    )

  def evaluate(state: RunState):
    metrics, books, params = {}, state.ledger, merged(state.learner.params)
    for run in runs:
      more, tokens = run(params)
      metrics |= more
      books = ledger.book(books, {"evaluated": tokens})
    return metrics, state.replace(ledger=books)

  return evaluate


def _baseline(config: Config, forms: Forms, recipe: Recipe, sizes: dict[str, Any]):
  """The baseline that learns beside the policy, if the recipe has one."""
  if recipe.baseline is None:
    return None
  if config.lora_rank:
    raise ValueError("a recipe with a baseline that learns needs lora_rank = 0")
  return make_baseline(forms.learner, recipe.baseline, **sizes)


def _offer(config: Config, prompts: PromptSet, task: Task) -> Offer | None:
  if not config.candidates:
    return None
  weights = config.source_weights
  return Offer(
    prompts.table, task.sources, candidates=config.candidates, weights=weights, seed=config.seed
  )


def evenly(examples, num: int) -> list[Example]:
  """`num` examples spread over the whole sequence, in order; all if there are fewer."""
  if num >= len(examples):
    return list(examples)
  return [examples[i * len(examples) // num] for i in range(num)]
