"""The training loop: collect -> verify -> learn, with evaluation, records and checkpoints around it."""

import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import hosts, ledger
from rlvr_jax.core.records import Example, Task, Tokenizer
from rlvr_jax.core.types import Params, Policy, PromptTable, Recipe, RunState
from rlvr_jax.tasks.pool import VerifierPool
from rlvr_jax.tasks.table import tokenise
from rlvr_jax.train.annotate import Model, make_annotate
from rlvr_jax.train.checkpoint import Checkpointer
from rlvr_jax.train.collect import Batch, make_collect
from rlvr_jax.train.config import METRICS_FILE, Config, to_json
from rlvr_jax.train.critic import attach, make_baseline
from rlvr_jax.train.evaluate import make_evaluate, stop_rules
from rlvr_jax.train.forms import Forms, make_forms
from rlvr_jax.train.learn import make_learn
from rlvr_jax.train.metrics import (
  CompileCounter,
  Progress,
  Sample,
  Writers,
  before_after_table,
  read_metrics,
)
from rlvr_jax.train.offer import Offer
from rlvr_jax.train.rewards import RewardFunction, Scorer
from rlvr_jax.train.state import init_state, make_optimizer, make_schedule


class Interrupted(Exception):
  """The run was asked to stop and its state has been saved."""


class NotFinite(Exception):
  """Too many updates in a row were not finite; the batch has been written to the workdir."""


class Outcome(NamedTuple):
  """What a run leaves behind."""

  state: RunState
  params: Params  # trained, as the policy that was given reads them
  before: dict[str, float]  # evaluation before the first update
  after: dict[str, float]  # evaluation after the last


class Placement(NamedTuple):
  """Where things live; see launch.meshes. The default is one device."""

  rows: Any = staticmethod(lambda rows: rows)  # constrains row arrays inside jitted functions
  state: Any = staticmethod(lambda state, policy: state)  # puts a RunState on the devices
  lanes: int = 1  # learner bins computed side by side


class _Prompts(NamedTuple):
  """A prompt set ready to be rolled out and verified."""

  name: str
  table: PromptTable
  examples: list[Example]


def _prompt_sets(tokenizer: Tokenizer, task: Task, config: Config) -> list[_Prompts]:
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
    made.append(_Prompts(name, table, [examples[i] for i in kept]))
  width = max(one.table.tokens.shape[1] for one in made)
  return [one._replace(table=_widen(one.table, width, tokenizer.pad_id)) for one in made]


def _widen(table: PromptTable, width: int, pad_id: int) -> PromptTable:
  more = width - table.tokens.shape[1]
  tokens: Any = np.pad(table.tokens, ((0, 0), (0, more)), constant_values=pad_id)
  return table.replace(tokens=tokens)


def train(
  config: Config,
  policy: Policy,
  params,
  tokenizer: Tokenizer,
  recipe: Recipe,
  task: Task,
  workdir: str | os.PathLike,
  *,
  rewards: Sequence[RewardFunction] = (),
  models: Mapping[str, Model] | None = None,
  placement: Placement = Placement(),  # noqa: B008 (a NamedTuple of constants)
) -> Outcome:
  """Trains to the end, or resumes the newest checkpoint of the workdir and trains on.

  The parameters are taken over, not copied: see train.state.init_state. What `rewards` say is in
  rows.extras["reward/<name>"], for the recipe's reward to read.

  Args:
    models: the policies that the recipe annotates with; "reference" is `params` unless it is given.

  Writes metrics.jsonl (one object a step: what step s collected and learned, and, as eval/..., what the
  parameters before its update scored; the last object holds the final evaluation), checkpoints/, and
  what the loggers write.

  Raises:
    Interrupted: after Ctrl-C or SIGTERM, once the state is saved. A second Ctrl-C stops at once.
    NotFinite: after `max_bad_steps` updates in a row that could not be applied.
    ValueError: for sizes that do not fit each other, before anything is computed.
  """
  workdir = Path(workdir)
  started = time.perf_counter()
  prompts, *held = _prompt_sets(tokenizer, task, config)
  schedule = make_schedule(config, recipe.updates)
  optimizer = make_optimizer(config, schedule, recipe.step_scale)
  num_prompts = len(prompts.examples)
  forms = make_forms(config, policy, params)
  del params  # taken over
  with (
    VerifierPool(task.verify, config.verifier_workers, config.verifier_seconds) as pool,
    Scorer(rewards, prompts.examples) as scorer,
    CompileCounter() as compiled,
    Writers(
      workdir, config.loggers if hosts.is_first() else (), json.loads(to_json(config))
    ) as writers,
    Checkpointer(workdir, keep=config.keep_checkpoints) as checkpoints,
    _StopSignals() as stop,
  ):
    judge = hosts.shared(pool)
    verify = lambda index, texts: judge([prompts.examples[i] for i in index], texts)
    decode_text = tokenizer.decode
    offer = _offer(config, prompts, task)
    collect = make_collect(
      forms.actor,
      recipe,
      prompts.table,
      verify,
      decode_text,
      prompts=config.prompts,
      budget=config.budget,
      max_new_tokens=config.max_new_tokens,
      eos_ids=tokenizer.eos_ids,
      stops=stop_rules(config.stop_strings, tokenizer),
      constrain=placement.rows,
      sources=task.sources,
      num_samples=config.num_samples_shown,
      scorer=scorer,
      offer=offer,
    )
    learn = make_learn(
      forms.learner,
      recipe,
      optimizer,
      num_rows=config.budget,
      num_places=collect.num_places,
      num_prompts=num_prompts,
      bin_tokens=config.bin_tokens,
      read_tokens=config.read_tokens,
      lanes=placement.lanes,
      constrain=placement.rows,
      frozen=forms.frozen,
    )
    baseline = _baseline(config, forms, recipe, collect.num_places, placement)
    learn = attach(learn, baseline)
    evaluate = _evaluations(config, policy, forms.merged, tokenizer, held, judge, placement)
    sizes = {"table": prompts.table, "num_places": collect.num_places, "seed": config.seed}
    state = init_state(recipe, optimizer, forms.trained, **sizes, frozen=forms.frozen)
    forms = forms._replace(trained=None)  # the state has taken them over
    if baseline:
      state = state.replace(baseline=baseline.init(state.learner.params))
    state = state.replace(offered=None if offer is None else offer.position)
    state = placement.state(state, forms.learner)
    models = dict(models or {})
    if "reference" in recipe.annotate and "reference" not in models:
      start_params = jax.tree.map(jnp.copy, forms.merged(state.learner.params))
      models["reference"] = Model(policy, start_params)
    annotate = make_annotate(
      forms.learner,
      recipe,
      models,
      num_rows=config.budget,
      num_places=collect.num_places,
      bin_tokens=config.bin_tokens,
      read_tokens=config.read_tokens,
      lanes=placement.lanes,
      constrain=placement.rows,
      frozen=forms.frozen,
      offload=config.offload_models,
    )
    models = None  # annotate has what it needs of them
    if checkpoints.latest() is not None:
      state = checkpoints.restore(state)
      print(f"resumed from step {int(state.learner.step)}")
    if offer is not None:
      offer.seek(state.offered)
    start = int(state.learner.step)
    if start > config.steps:
      raise ValueError(f"the checkpoint is at step {start}, past steps = {config.steps}")
    writers.rewind(start)
    before = _first_evaluation(workdir) if start else {}
    bad = 0
    with Progress(config.steps, start=start) as progress:
      for step in range(start, config.steps):
        begin = time.perf_counter()
        evaluated: dict[str, float] = {}
        if config.eval_every and step % config.eval_every == 0:
          evaluated, state = evaluate(state)
          progress.print(_eval_line(step, evaluated))
          before = evaluated if step == 0 else before
        seconds = {"eval": time.perf_counter() - begin}
        learner, collector, books = state.learner, state.collector, state.ledger
        generated = int(books["generated"].sum())
        collector, batch, books, spent = collect(
          forms.rollout(learner.params), learner.step, learner.control, collector, books
        )
        tick = time.perf_counter()
        key = jax.random.wrap_key_data(collector.key)
        rows = annotate(learner.params, batch.rows)
        learner, credit, learned, booked = learn(
          learner, state.baseline, rows, batch.tally, collector.epoch, key
        )
        seconds |= spent | {"learn": time.perf_counter() - tick}
        # A row whose logits are not finite has no tokens, so that the loss never hears of it.
        finite = learned.pop("finite") and batch.metrics["completion/error_frac"] < 1
        books = ledger.book(books, booked)
        offered = None if offer is None else offer.position
        state = state.replace(
          learner=learner, collector=collector, ledger=books, baseline=credit, offered=offered
        )
        generated = int(books["generated"].sum()) - generated
        work = sum(v for k, v in seconds.items() if k != "eval")
        metrics = evaluated | batch.metrics | learned | _ledger_metrics(books)
        metrics |= {f"time/{k}_seconds": v for k, v in seconds.items()}
        metrics |= {
          "time/step_seconds": work,
          "perf/tokens_per_second": generated / work,
          "perf/compilations": compiled.count,
          "policy/lr": np.asarray(schedule(step * recipe.updates)).item(),
          "train/epoch": _epoch(collector, offered, num_prompts),
          "train/skipped_steps": int(learner.skipped),
        }
        writers.write(step, metrics)
        progress.update(step + 1, metrics)
        if step == 0:
          took = time.perf_counter() - started
          progress.print(f"first step done after {took:.0f} s, {compiled.count} compilations")
        if config.sample_every and step % config.sample_every == 0:
          progress.print_samples(step, _shown(batch, prompts.examples, scorer))
        bad = 0 if finite else bad + 1
        if not finite:
          progress.print(
            f"step {step}: logits, loss or gradient are not finite; nothing was learned"
          )
        if bad >= config.max_bad_steps:
          raise NotFinite(_dump(workdir, step, batch, bad))
        if any(hosts.gather(stop.requested)):  # of one process: of all
          checkpoints.save(state)
          raise Interrupted(f"stopped after step {step}; the same command resumes from there")
        if config.checkpoint_every and (step + 1) % config.checkpoint_every == 0:
          checkpoints.save(state)
      # Saved before the last evaluation: a resumed run does that again, and books it once.
      checkpoints.save(state)
      after, state = evaluate(state) if config.eval_every else ({}, state)
      if after:
        progress.print(_eval_line(config.steps, after))
        writers.write(config.steps, after | _ledger_metrics(state.ledger))
    if before and after:
      print(f"\n{before_after_table(before, after)}")
    print(f"{compiled.count} compilations; verifier: {dict(pool.counters)}")
    return Outcome(state, forms.merged(state.learner.params), before, after)


def _evaluations(config: Config, policy, merged, tokenizer, held: list[_Prompts], judge, placement):
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


def _baseline(config: Config, forms: Forms, recipe: Recipe, num_places: int, placement: Placement):
  """The baseline that learns beside the policy, if the recipe has one."""
  if recipe.baseline is None:
    return None
  if config.lora_rank:
    raise ValueError("a recipe with a baseline that learns needs lora_rank = 0")
  return make_baseline(
    forms.learner,
    recipe.baseline,
    num_rows=config.budget,
    num_places=num_places,
    bin_tokens=config.bin_tokens,
    lanes=placement.lanes,
  )


def _offer(config: Config, prompts: _Prompts, task: Task) -> Offer | None:
  if not config.candidates:
    return None
  weights = config.source_weights
  return Offer(
    prompts.table, task.sources, candidates=config.candidates, weights=weights, seed=config.seed
  )


def _epoch(collector, offered, num_prompts: int) -> int:
  """Passes over the table: those that are complete, or as many prompts as have been offered."""
  if offered is None:
    return int(collector.epoch)
  return int(offered[0]) // num_prompts


def _first_evaluation(workdir: Path) -> dict[str, float]:
  """The evaluation before the first update, from the metrics of a run that is resumed."""
  path = workdir / METRICS_FILE
  rows = read_metrics(path) if path.exists() else []
  first = rows[0] if rows and rows[0]["step"] == 0 else {}
  return {name: value for name, value in first.items() if name.startswith("eval/")}


def evenly(examples, num: int) -> list[Example]:
  """`num` examples spread over the whole sequence, in order; all if there are fewer."""
  if num >= len(examples):
    return list(examples)
  return [examples[i * len(examples) // num] for i in range(num)]


def _eval_line(step: int, metrics: Mapping[str, float]) -> str:
  return f"eval before update {step}: " + "  ".join(
    f"{k.removeprefix('eval/')} {v:.3f}" for k, v in metrics.items()
  )


def _ledger_metrics(books: ledger.Ledger) -> dict[str, float]:
  total: dict[str, float] = dict(ledger.totals(books))
  discarded = total["rejected"] + total["surplus"]
  return {f"tokens/{k}": v for k, v in total.items()} | {
    "tokens/discarded": discarded,
    "rollout/waste_frac": discarded / max(total["generated"] + total["reused"], 1),
  }


def _shown(batch: Batch, examples: list[Example], scorer: Scorer) -> list[Sample]:
  def one(sample):
    example = examples[sample.prompt_id]
    prompt = example.prompt if isinstance(example.prompt, str) else example.prompt[-1]["content"]
    verdict, said = sample.verdict, sample.rewards
    if not scorer.names:
      return Sample(prompt, sample.text, verdict.correct, example.answer, verdict.rule)
    reward = sum(scorer.weights[name] * value for name, value in said.items())
    why = [verdict.rule, *(f"{name} {value:g}" for name, value in said.items())]
    return Sample(prompt, sample.text, reward, example.answer, ", ".join(filter(None, why)))

  return [one(sample) for sample in batch.samples]


def _dump(workdir: Path, step: int, batch: Batch, bad: int) -> str:
  """Writes the batch that could not be learned from; says where."""
  path = workdir / f"bad_batch_{step}.npz"
  rows = hosts.host(batch.rows)
  fields = {k: v for k, v in vars(rows).items() if k != "extras"} | rows.extras
  arrays: dict[str, Any] = {k: np.asarray(v) for k, v in fields.items()}
  if hosts.is_first():
    np.savez(path, **arrays)
  return (
    f"{bad} updates in a row were not finite; the last batch is in {path}. A lower learning_rate or "
    "max_grad_norm may help, or dtype=float32."
  )


class _StopSignals:
  """Turns the first Ctrl-C or SIGTERM into a request; the second one acts as usual."""

  def __init__(self):
    self.requested = False
    self._old: dict[int, Any] = {}

  def __enter__(self):
    if threading.current_thread() is threading.main_thread():
      for number in (signal.SIGINT, signal.SIGTERM):
        self._old[number] = signal.signal(number, self._heard)
    return self

  def _heard(self, number, frame):
    self.requested = True
    print("\nstopping after this step; once more to stop at once", flush=True)
    signal.signal(number, self._old[number])

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)
