"""The training loop: collect -> verify -> learn, with evaluation, records and checkpoints around it."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rlvr_jax.core import hosts, ledger
from rlvr_jax.core.records import Example, Task, Tokenizer
from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import Params, Policy, Recipe, RunState
from rlvr_jax.tasks.pool import COUNTERS, VerifierPool
from rlvr_jax.train import debug
from rlvr_jax.train.annotate import Model
from rlvr_jax.train.checkpoint import Checkpointer, Due
from rlvr_jax.train.collect import Batch
from rlvr_jax.train.config import METRICS_FILE, Config, to_json
from rlvr_jax.train.health import Watch
from rlvr_jax.train.metrics import (
  CompileCounter,
  Progress,
  Sample,
  Writers,
  before_after_table,
  read_metrics,
)
from rlvr_jax.train.mirror import Mirror, local
from rlvr_jax.train.parts import Parts, Placement, make_parts, prompt_sets
from rlvr_jax.train.records import Records, Rollout
from rlvr_jax.train.rewards import RewardFunction, Scorer
from rlvr_jax.train.turn import collect, learn, make_turn, sampler_of, schedule_of


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


class _Desk(NamedTuple):
  """What a run writes to and listens to."""

  workdir: Path
  writers: Writers
  records: Records | None  # of the first process
  watch: Watch
  checkpoints: Checkpointer
  progress: Progress
  compiled: CompileCounter
  stop: "_StopSignals"
  trace: "_Trace"
  clock: "Clock"
  examples: list[Example]
  pool: VerifierPool


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
  profile: range = range(0),
  dump: int | None = None,
  mirror: Mirror | None = None,
) -> Outcome:
  """Trains to the end, or resumes the newest checkpoint of the workdir and trains on.

  The parameters are taken over, not copied: see train.state.init_state. What `rewards` say is in
  rows.extras["reward/<name>"], for the recipe's reward to read.

  Args:
    models: the policies that the recipe annotates with; "reference" is `params` unless it is given.
    profile: steps of which a JAX trace is written to workdir/trace.
    dump: a step to keep for `replay`.
    mirror: of the workdir, a folder here; has a copy of it whenever a checkpoint is complete.

  Writes metrics.jsonl (one object a step: what step s collected and learned, and, as eval/..., what the
  parameters before its update scored; the last object holds the final evaluation), rollouts.jsonl and
  completions.jsonl (see train.records), checkpoints/, and what the loggers write.

  Raises:
    Interrupted: after Ctrl-C or SIGTERM, once the state is saved. A second Ctrl-C stops at once.
    NotFinite: after `max_bad_steps` updates in a row that could not be applied.
    OSError: if the last checkpoint could not be written.
    ValueError: for sizes that do not fit each other, before anything is computed.
  """
  workdir = local(workdir)
  clock = Clock()
  handed = [params]
  del params  # taken over
  sets = prompt_sets(tokenizer, task, config)
  examples = sets[0].examples
  loggers = config.loggers if hosts.is_first() else ()
  watch = Watch(config.alarms, functions=[function.name for function in rewards])
  with (
    VerifierPool(task.verify, config.verifier_workers, config.verifier_seconds) as pool,
    Scorer(rewards, examples) as scorer,
    CompileCounter() as compiled,
    Writers(workdir, loggers, json.loads(to_json(config))) as writers,
    _records(config, workdir) as records,
    Checkpointer(
      workdir, keep=config.keep_checkpoints, config=config, mirror=mirror
    ) as checkpoints,
    _StopSignals() as stop,
    _Trace(workdir, profile) as trace,
  ):
    parts, state = make_parts(
      config, policy, handed, tokenizer, recipe, task, sets, hosts.shared(pool), scorer,
      models or {}, placement,
    )  # fmt: skip
    del models  # the parts have what they need of them
    schedule = schedule_of(recipe, config.debug)
    if schedule and dump is not None:
      raise ValueError("a step can be dumped only under a schedule that collects nothing ahead")
    state = _resume(config, parts, state, checkpoints, writers, schedule.ahead if schedule else 0)
    start = int(state.learner.step)
    if records is not None:
      records.rewind(start)
    past = _rows(workdir) if start else []
    for row in past:
      watch.look(row["step"], row)
    if past and (lost := start - len(past)):
      print(f"WARNING: {METRICS_FILE} lacks {lost} of the {start} steps that were made", flush=True)
    before = _first_evaluation(workdir) if start else {}
    with Progress(config.steps, start=start) as progress:
      desk = _Desk(
        workdir, writers, records, watch, checkpoints, progress, compiled, stop, trace, clock,
        examples, pool,
      )  # fmt: skip
      clock.lap("setup")
      turn = make_turn(parts, schedule, state)
      state, first = _steps(config, parts, turn, state, desk, dump)
      before = first or before
      # Saved before the last evaluation: a resumed run does that again, and books it once.
      checkpoints.save(state)
      after: dict[str, float] = {}
      if config.eval_every:
        after, booked = _evaluate(parts, state, desk)
        _offer(config, state, after, desk)
        state = booked
        writers.write(int(state.learner.step), after | _totals(state))
      checkpoints.finish()
      if any(hosts.gather(stop.requested)):  # else a sweep would go on with its next run
        raise Interrupted("stopped after the last step; the same command ends the run")
    if before and after:
      print(f"\n{before_after_table(before, after)}")
    counted = {name: n for name, n in zip(COUNTERS, state.verifier.tolist(), strict=True) if n}
    print(f"{compiled.count} compilations; verifier: {counted}")
    return Outcome(state, parts.forms.merged(state.learner.params), before, after)


def _resume(
  config: Config,
  parts: Parts,
  state: RunState,
  checkpoints: Checkpointer,
  writers: Writers,
  ahead: int,
) -> RunState:
  """The newest state of the run, or the one given; metrics of later steps are forgotten."""
  # Arrays that are restored are bound to their devices. Programs differ in that, and a run that goes on
  # should find those that it compiled when it began.
  state = jax.tree.map(
    lambda x: jax.device_put(x, x.sharding) if isinstance(x, jax.Array) else x, state
  )
  if checkpoints.latest() is not None:
    state = checkpoints.restore(state.replace(queue=(parts.hand(parts.collect.empty()),) * ahead))
    print(f"resumed from step {int(state.learner.step)}")
  if parts.offer is not None:
    parts.offer.seek(state.offered)
  start = int(state.learner.step)
  if start > config.steps:
    raise ValueError(f"the checkpoint is at step {start}, past steps = {config.steps}")
  writers.rewind(start)
  return state


def _steps(config: Config, parts: Parts, turn, state: RunState, desk: _Desk, dump: int | None):
  """Trains until the steps or the tokens are used up; (state, evaluation before step 0 if there was one)."""
  due = Due(steps=config.checkpoint_every, minutes=config.checkpoint_minutes)
  first: dict[str, float] = {}
  bad = 0
  desk.clock.take()  # the time before the first step is no part of it
  while (step := int(state.learner.step)) < config.steps and not _spent(config, state):
    desk.trace.at(step)
    evaluated: dict[str, float] = {}
    if config.eval_every and step % config.eval_every == 0:
      evaluated, after = _evaluate(parts, state, desk)
      # Without what this evaluation is booked with: a run that resumes here makes it again.
      _offer(config, state, evaluated, desk)
      state = after
      first = evaluated if step == 0 else first
    desk.clock.lap("eval" if evaluated else "records")
    if step == dump:
      debug.dump_before(desk.workdir, state)
    generated = int(state.ledger["generated"].sum())
    state, batch, learned, finite, spent = turn(state)
    state = _counted(state, desk.pool)
    desk.clock.lap("learn", **spent)  # of what overlaps with collecting, only what is left
    if step == dump:
      debug.dump_after(desk.workdir, step, batch, state)
    generated = int(state.ledger["generated"].sum()) - generated
    metrics = evaluated | batch.metrics | learned
    metrics |= _run_metrics(parts, state, step, generated, desk)
    _record(config, step, metrics, batch, desk)
    bad = 0 if finite else bad + 1
    if not finite:
      desk.progress.print(
        f"step {step}: logits, loss or gradient are not finite; nothing was learned"
      )
    if bad >= config.max_bad_steps:
      raise NotFinite(_dump_bad(desk.workdir, step, batch, bad))
    desk.clock.lap("records")
    # What one process was asked, or finds due, all do.
    heard = hosts.gather((desk.stop.requested, due(step + 1)))
    if any(stop for stop, _ in heard):
      desk.checkpoints.save(state)
      desk.checkpoints.finish()
      raise Interrupted(f"stopped after step {step}; the same command resumes from there")
    if any(now for _, now in heard):
      desk.checkpoints.save(state)
    desk.checkpoints.poll()
    desk.clock.lap("checkpoint")
  return state, first


def _evaluate(parts: Parts, state: RunState, desk: _Desk) -> tuple[dict[str, float], RunState]:
  evaluated, state = parts.evaluate(state)
  desk.progress.print(_eval_line(int(state.learner.step), evaluated))
  return evaluated, _counted(state, desk.pool)


def _offer(config: Config, state: RunState, evaluated: dict[str, float], desk: _Desk) -> None:
  """Keeps the state if it is the best so far, where the config asks for that."""
  if config.keep_best:
    if config.keep_best not in evaluated:
      raise unknown("metric in keep_best", config.keep_best, evaluated)
    desk.checkpoints.offer(state, config.keep_best, evaluated[config.keep_best])


def _counted(state: RunState, pool: VerifierPool) -> RunState:
  """The state with what the verifier's pools counted since the last call."""
  mine = np.array([pool.counters.pop(name, 0) for name in COUNTERS], np.int64)
  return state.replace(verifier=state.verifier + np.sum(hosts.gather(mine), 0))


def _run_metrics(
  parts: Parts, state: RunState, step: int, generated: int, desk: _Desk
) -> dict[str, float]:
  """What a step cost, and where the run is. Takes the seconds of the clock."""
  seconds = desk.clock.take()
  work = sum(v for k, v in seconds.items() if k != "eval")
  return (
    _totals(state)
    | _memory()
    | {
      **{f"time/{k}_seconds": v for k, v in seconds.items()},
      "time/step_seconds": work,
      "perf/tokens_per_second": generated / work,
      "perf/compilations": desk.compiled.count,
      "policy/lr": np.asarray(parts.schedule(step * parts.updates)).item(),
      "train/epoch": parts.epoch(state),
      "train/skipped_steps": int(state.learner.skipped),
    }
  )


def _record(config: Config, step: int, metrics: dict[str, Any], batch: Batch, desk: _Desk) -> None:
  """Writes and shows a step."""
  desk.writers.write(step, metrics)
  rollouts = _rollouts(batch, desk.examples)
  if desk.records is not None:
    desk.records.write(step, rollouts)
  warnings = desk.watch.look(step, metrics)
  desk.progress.update(step + 1, metrics, [one.rule.name for one in desk.watch.active])
  for one in warnings:
    desk.progress.print(f"warning: {one.text()}")
  if step == 0:
    took, compiled = desk.clock.total(), desk.compiled.count
    desk.progress.print(f"first step done after {took:.0f} s, {compiled} compilations")
  if config.sample_every and step % config.sample_every == 0:
    shown = [_sample(one) for one in rollouts[: config.num_samples_shown]]
    desk.progress.print_samples(step, shown)


def replay(
  config: Config,
  policy: Policy,
  params,
  tokenizer: Tokenizer,
  recipe: Recipe,
  task: Task,
  workdir: str | os.PathLike,
  step: int,
  *,
  learn_only: bool = False,
  rewards: Sequence[RewardFunction] = (),
  models: Mapping[str, Model] | None = None,
  placement: Placement = Placement(),  # noqa: B008 (a NamedTuple of constants)
) -> dict[str, Any]:
  """Runs one step again from its dump, and says whether the same came of it, bit for bit.

  Args:
    step: see `train`'s `dump`.
    learn_only: take the batch from the dump instead of collecting it again.

  Returns:
    The step's metrics; "same_batch" and "same_update" among them, which are bool.

  Raises:
    ValueError: if there is no such dump, or it is of another run.
  """
  sets = prompt_sets(tokenizer, task, config)
  with (
    VerifierPool(task.verify, config.verifier_workers, config.verifier_seconds) as pool,
    Scorer(rewards, sets[0].examples) as scorer,
  ):
    parts, state = make_parts(
      config, policy, [params], tokenizer, recipe, task, sets, hosts.shared(pool), scorer,
      models or {}, placement,
    )  # fmt: skip
    state, batch, after = debug.read_dump(workdir, step, state)
    if parts.offer is not None:
      parts.offer.seek(state.offered)
    if learn_only:
      epoch = jax.numpy.asarray(after["epoch"], state.collector.epoch.dtype)
      state = state.replace(collector=state.collector.replace(epoch=epoch))
    else:
      sampler = sampler_of(parts, state.learner)
      state, batch, _ = collect(parts, state, sampler, sampler.version)
    same = debug.batch_digest(batch) == after["batch"]
    state, learned, _ = learn(parts, state, batch)
    update = debug.digest(state) == after["learner"]
    return batch.metrics | learned | {"same_batch": same, "same_update": update}


def _spent(config: Config, state: RunState) -> bool:
  """Whether the run has generated all the tokens that it may."""
  limit = config.max_generated_tokens
  return limit > 0 and int(state.ledger["generated"].sum()) >= limit


def _first_evaluation(workdir: Path) -> dict[str, float]:
  """The evaluation before the first update, from the metrics of a run that is resumed."""
  rows = _rows(workdir)
  first = rows[0] if rows and rows[0]["step"] == 0 else {}
  return {name: value for name, value in first.items() if name.startswith("eval/")}


def _eval_line(step: int, metrics: Mapping[str, float]) -> str:
  return f"eval before update {step}: " + "  ".join(
    f"{k.removeprefix('eval/')} {v:.3f}" for k, v in metrics.items()
  )


def _totals(state: RunState) -> dict[str, float]:
  """What the run has counted from its beginning."""
  total: dict[str, float] = dict(ledger.totals(state.ledger))
  discarded = total["rejected"] + total["surplus"]
  return {
    **{f"tokens/{name}": value for name, value in total.items()},
    **{f"verifier/{name}": n for name, n in zip(COUNTERS, state.verifier.tolist(), strict=True)},
    "tokens/discarded": discarded,
    "rollout/waste_frac": discarded / max(total["generated"] + total["reused"], 1),
  }


def _rows(workdir: Path) -> list[dict[str, Any]]:
  path = workdir / METRICS_FILE
  return read_metrics(path) if path.exists() else []


def _records(config: Config, workdir: Path):
  if not hosts.is_first():
    return contextlib.nullcontext()
  return Records(workdir, completions=config.record_completions, limit_mib=config.record_mib)


def _rollouts(batch: Batch, examples: list[Example]) -> list[Rollout]:
  def one(sample):
    example, verdict = examples[sample.prompt_id], sample.verdict
    prompt = example.prompt if isinstance(example.prompt, str) else example.prompt[-1]["content"]
    return Rollout(
      sample.prompt_id, prompt, sample.text, sample.reward, verdict.correct, sample.num_tokens,
      sample.status, example.source, example.answer, verdict.rule, verdict.parsed, sample.rewards,
    )  # fmt: skip

  return [one(sample) for sample in batch.samples]


def _sample(one: Rollout) -> Sample:
  why = [one.rule, *(f"{name} {value:g}" for name, value in one.rewards.items())]
  return Sample(one.prompt, one.completion, one.reward, one.answer, ", ".join(filter(None, why)))


def _memory() -> dict[str, float]:
  """The peak of the fullest device, where devices tell; CPUs do not."""
  stats = [device.memory_stats() or {} for device in jax.local_devices()]
  used = [
    one["peak_bytes_in_use"] / one["bytes_limit"]
    for one in stats
    if one.get("bytes_limit") and "peak_bytes_in_use" in one
  ]
  return {"memory/peak_frac": max(used)} if used else {}


def _dump_bad(workdir: Path, step: int, batch: Batch, bad: int) -> str:
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
    signal.signal(number, self._old[number])
    with contextlib.suppress(RuntimeError, OSError):  # it may come in the middle of another print
      print("\nstopping after this step; once more to stop at once", flush=True)

  def __exit__(self, *_):
    for number, handler in self._old.items():
      signal.signal(number, handler)


class _Trace:
  """Writes a JAX trace of some steps to workdir/trace."""

  def __init__(self, workdir: Path, steps: range):
    self._folder, self._steps, self._on = str(workdir / "trace"), steps, False

  def at(self, step: int) -> None:
    """Before each step."""
    if step in self._steps and not self._on:
      jax.profiler.start_trace(self._folder)
      self._on = True
    elif step not in self._steps:
      self._stop()

  def _stop(self) -> None:
    if self._on:
      jax.profiler.stop_trace()
      self._on = False
      print(f"trace of steps {self._steps.start} to {self._steps.stop - 1}: {self._folder}")

  def __enter__(self) -> "_Trace":
    return self

  def __exit__(self, *_) -> None:
    self._stop()


class Clock:
  """Wall time by phase. Nothing is left out: a lap begins where the one before ended."""

  def __init__(self):
    self._seconds: dict[str, float] = {}
    self._start = self._last = time.perf_counter()

  def lap(self, name: str, **parts: float) -> None:
    """Books the time since the last lap on `name`, but for what belongs to `parts` (name -> seconds)."""
    now = time.perf_counter()
    parts.pop(name, None)
    parts[name] = now - self._last - sum(parts.values())
    for phase, seconds in parts.items():
      self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds
    self._last = now

  def take(self) -> dict[str, float]:
    """Seconds of each phase since the last call."""
    taken, self._seconds = self._seconds, {}
    return taken

  def total(self) -> float:
    """Seconds since the clock was made."""
    return time.perf_counter() - self._start
