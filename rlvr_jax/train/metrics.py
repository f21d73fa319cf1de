"""Metrics of a run: their names, the files they are written to, and what is shown while it runs."""

import json
import math
import os
import re
import statistics
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import jax.monitoring
import numpy as np
import rich.console
import rich.progress
import rich.table
import rich.text
import tensorboardX

from rlvr_jax.core import ledger
from rlvr_jax.core.table import unknown
from rlvr_jax.train.config import METRICS_FILE


class Metric(NamedTuple):
  """One metric. In a name, <x> stands for a word: reward/<source>/mean covers reward/gsm8k/mean."""

  name: str
  unit: str
  description: str


# Every metric there is, for all writers and plots. Unless it says cumulative, of this step alone.
METRICS = (
  Metric("reward/mean", "reward", "mean shaped reward of the rows generated that have one"),
  Metric("reward/std", "reward", "their standard deviation"),
  Metric("reward/<source>/mean", "reward", "mean over the rows of one data source"),
  Metric(
    "reward/<function>/mean",
    "reward",
    "mean value of one reward function, before its weight, over the rows that it applies to",
  ),
  Metric("group/frac_zero_std", "fraction", "groups whose rewards are all equal: no signal"),
  Metric("group/frac_all_0", "fraction", "groups with no correct row"),
  Metric("group/frac_all_1", "fraction", "groups with correct rows only"),
  Metric("group/size_mean", "rows", "mean rows of a group"),
  Metric("group/trained", "groups", "groups in the learner's batch"),
  Metric("posterior/brier", "1", "mean squared distance of believed solve rate and verdict"),
  Metric("posterior/log_loss", "nats", "mean surprise of a verdict under the believed solve rate"),
  Metric("posterior/ece", "1", "expected calibration error: believed against realised, by bins"),
  Metric("completion/length_mean", "tokens", "mean length of a response"),
  Metric("completion/length_max", "tokens", "longest response"),
  Metric("completion/error_frac", "fraction", "responses that ended with logits not finite"),
  Metric("completion/truncated_frac", "fraction", "responses cut off at the length limit"),
  Metric("critic/loss", "", "loss of the critic"),
  Metric("critic/explained", "fraction", "variance of the returns that the critic explains"),
  Metric("critic/error", "", "mean absolute error of the probe's predictions"),
  Metric("policy/loss", "", "value of the objective"),
  Metric("policy/entropy", "nats", "mean entropy of the trained tokens' distributions"),
  Metric("policy/kl_old", "nats", "KL from the policy before the update, mean over tokens"),
  Metric("policy/clip_frac_low", "fraction", "tokens whose ratio was clipped from below"),
  Metric("policy/clip_frac_high", "fraction", "tokens whose ratio was clipped from above"),
  Metric("policy/vetoed_frac", "fraction", "tokens whose loss a veto or a capped weight dropped"),
  Metric("policy/kl_ref", "nats", "k3 estimate of the KL to the reference, mean over tokens"),
  Metric("policy/ratio_max", "ratio", "largest ratio of new to behaviour probability"),
  Metric("policy/grad_norm", "", "global norm of the gradient before it is limited"),
  Metric("policy/lr", "", "learning rate"),
  Metric("mismatch/logp_diff_mean", "nats", "mean |learner's - sampler's log-prob| of a token"),
  Metric("mismatch/logp_diff_max", "nats", "largest such difference"),
  Metric("mismatch/kl_k3", "nats", "k3 estimate of KL(sampler, learner), mean over tokens"),
  Metric("mismatch/ess", "fraction", "effective sample size of the ratios over the tokens"),
  Metric("rollout/staleness_mean", "updates", "mean age of the trained tokens"),
  Metric("rollout/staleness_max", "updates", "oldest trained token"),
  Metric("rollout/waste_frac", "fraction", "cumulative: discarded of generated and reused tokens"),
  Metric("rollout/ticks", "ticks", "steps of the decoding loop"),
  Metric("rollout/slot_use", "fraction", "tokens drawn per slot computed"),
  Metric("rollout/rounds", "rounds", "rounds it took to fill the batch"),
  *(
    Metric(f"tokens/{entry}", "tokens", f"cumulative: {description}")
    for entry, description in ledger.ENTRIES.items()
  ),
  Metric("tokens/discarded", "tokens", "cumulative: rejected and surplus response tokens"),
  Metric("verifier/timeout_frac", "fraction", "responses that took too long to judge"),
  Metric("verifier/failed_frac", "fraction", "responses whose verifier crashed or raised"),
  *(
    Metric(f"verifier/{name}", unit, f"cumulative: {description}")
    for name, unit, description in (
      ("verified", "responses", "judged by the verifier, evaluations included"),
      ("timeout", "responses", "that took too long to judge"),
      ("crashed", "responses", "that took the verifier's process down"),
      ("memory", "responses", "whose verifier ran out of memory"),
      ("forked", "responses", "whose verifier left a process behind"),
      ("error", "responses", "whose verifier raised"),
      ("restarts", "processes", "of the verifier that were replaced"),
    )
  ),
  Metric("train/skipped_steps", "updates", "cumulative: updates left out because not finite"),
  Metric("train/epoch", "epochs", "passes over the prompt table that are complete"),
  Metric("time/<phase>_seconds", "s", "wall time of a phase of the step"),
  Metric(
    "perf/tokens_per_second",
    "tokens/s",
    "tokens generated per second of the step, evaluation apart",
  ),
  Metric("perf/sharing", "ratio", "tokens of the learner's rows per token it ran the model on"),
  Metric("memory/peak_frac", "fraction", "most memory in use so far, of the fullest device"),
  Metric("perf/compilations", "programs", "cumulative: programs compiled by XLA"),
  Metric("eval/<set>/avg@<k>", "verdict", "mean verdict of k responses, partial credit included"),
  Metric("eval/<set>/pass@<k>", "fraction", "unbiased chance that one of k responses is correct"),
  Metric("eval/<set>/maj@<k>", "fraction", "majority of k responses is correct"),
  Metric("eval/<set>/<source>/pass@<k>", "fraction", "pass@k of one data source of the set"),
)


def _pattern(name: str) -> str:
  words = {"k": r"[1-9]\d*"}
  return re.sub(r"<(\w+)>", lambda m: words.get(m[1], r"[^/]+"), re.sub(r"([@.])", r"\\\1", name))


_EXACT = {metric.name: metric for metric in METRICS if "<" not in metric.name}
_PATTERNS = [(re.compile(_pattern(m.name)), m) for m in METRICS if "<" in m.name]


def find(name: str) -> Metric:
  """The entry of METRICS that declares `name`.

  Raises:
    ValueError: if none does; lists the close ones.
  """
  if name in _EXACT:
    return _EXACT[name]
  for pattern, metric in _PATTERNS:
    if pattern.fullmatch(name):
      return metric
  raise unknown("metric", name, [metric.name for metric in METRICS])


# --------------------------------------------------------------------------------------------------
# Files


class Writers:
  """Writes metrics to each of the chosen loggers.

    jsonl        workdir/metrics.jsonl, one object a line; a number that is not finite is null
    tensorboard  event files in workdir/tensorboard
    wandb        Weights & Biases, a run named after the workdir

  Opening a workdir that has metrics goes on with them; after restoring a checkpoint call `rewind`.
  """

  def __init__(self, workdir: str | os.PathLike, loggers: Sequence[str], config: Any = None):
    """Opens the loggers.

    Args:
      workdir: folder of the run, made when there is none.
      loggers: names among jsonl, tensorboard, wandb.
      config: mapping shown beside the run in wandb.

    Raises:
      ValueError: for an unknown logger.
      ImportError: for wandb when it is not installed.
    """
    workdir = Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    self._last_step = -1
    opened = []
    try:
      for name in loggers:
        if name not in _LOGGERS:
          raise unknown("logger", name, _LOGGERS)
        opened.append(_LOGGERS[name](workdir, config))
    except BaseException:
      for logger in opened:
        logger.close()
      raise
    self._loggers = opened

  def write(self, step: int, metrics: Mapping[str, Any]) -> None:
    """Writes one step's metrics: the line of jsonl at once, the rest within seconds.

    Args:
      step: number of the step; not below that of the last call.
      metrics: name -> a number or an array of one.

    Raises:
      ValueError: for a name that METRICS does not declare, a value that is not one number, or a
        step that goes back. Nothing is written then.
    """
    if step < self._last_step:
      raise ValueError(f"metrics of step {step} after step {self._last_step}; call rewind first")
    values = {}
    for name in sorted(metrics):
      find(name)
      values[name] = _number(name, metrics[name])
    self._last_step = step
    for logger in self._loggers:
      logger.write(step, values)

  def rewind(self, step: int) -> None:
    """Forgets what was written for `step` and later, since these steps will be run again."""
    self._last_step = min(self._last_step, step - 1)
    for logger in self._loggers:
      logger.rewind(step)

  def close(self) -> None:
    for logger in self._loggers:
      logger.close()

  def __enter__(self) -> "Writers":
    return self

  def __exit__(self, *_) -> None:
    self.close()


def _number(name: str, value: Any) -> int | float:
  array = np.asarray(value)
  if array.size != 1 or (array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16"):
    raise ValueError(f"metric {name!r} must be one number, not {value!r}")
  return int(array.reshape(())) if array.dtype.kind in "biu" else float(array.reshape(()))


class _Jsonl:
  def __init__(self, workdir: Path, config: Any):
    del config
    self._path = workdir / METRICS_FILE
    if self._path.exists():
      self._keep(lambda row: True)
    self._file = self._path.open("a")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    row = {k: v if math.isfinite(v) else None for k, v in {**values, "step": step}.items()}
    self._file.write(json.dumps(row, sort_keys=True) + "\n")
    self._file.flush()

  def rewind(self, step: int) -> None:
    self._file.close()
    self._keep(lambda row: row["step"] < step)
    self._file = self._path.open("a")

  def _keep(self, wanted) -> None:
    """Rewrites the file with the wanted rows; a last line cut short by a kill goes too."""
    rows = [row for row in read_metrics(self._path, merge=False) if wanted(row)]
    temporary = self._path.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    temporary.replace(self._path)

  def close(self) -> None:
    self._file.close()


class _TensorBoard:
  def __init__(self, workdir: Path, config: Any):
    del config
    self._folder = str(workdir / "tensorboard")
    self._writer: tensorboardX.SummaryWriter | None = None
    self._purge_step: int | None = None

  def write(self, step: int, values: Mapping[str, float]) -> None:
    if self._writer is None:
      # Events are only ever appended. TensorBoard itself drops those from purge_step on.
      self._writer = tensorboardX.SummaryWriter(
        self._folder, purge_step=self._purge_step, flush_secs=5
      )
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)

  def rewind(self, step: int) -> None:
    self.close()
    self._purge_step = step

  def close(self) -> None:
    if self._writer is not None:
      self._writer.close()
      self._writer = None


class _Wandb:
  def __init__(self, workdir: Path, config: Any):
    try:
      import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
      raise ImportError(
        "the logger 'wandb' needs the wandb package: pip install wandb, or leave it out of loggers"
      ) from error
    self._run = wandb.init(
      project="rlvr_jax",
      name=workdir.resolve().name,
      dir=str(workdir),
      config=dict(config or {}),
    )
    # A step of our own, since wandb's may not go back after a rewind.
    self._run.define_metric("*", step_metric="step")

  def write(self, step: int, values: Mapping[str, float]) -> None:
    self._run.log({**values, "step": step})

  def rewind(self, step: int) -> None:
    """Nothing: each process is a wandb run of its own."""

  def close(self) -> None:
    self._run.finish()


_LOGGERS = {"jsonl": _Jsonl, "tensorboard": _TensorBoard, "wandb": _Wandb}


def read_metrics(path: str | os.PathLike, *, merge: bool = True) -> list[dict[str, Any]]:
  """The rows of a metrics.jsonl in order of writing; null is None.

  A last line that was cut short is left out.

  Args:
    path: the file.
    merge: make rows of the same step one row.

  Raises:
    ValueError: if another line is no JSON object with a step.
  """
  rows = []
  for number, line in enumerate(text := Path(path).read_text().splitlines(keepends=True), 1):
    try:
      row = json.loads(line)
      if not isinstance(row, dict) or "step" not in row:
        raise ValueError("not an object with a step")
      if not line.endswith("\n"):
        raise ValueError("cut short")
    except ValueError as error:
      if number == len(text) and not line.endswith("\n"):
        break
      raise ValueError(f"{path}, line {number}: {error}") from error
    if merge and rows and rows[-1]["step"] == row["step"]:
      rows[-1].update(row)
    else:
      rows.append(row)
  return rows


# --------------------------------------------------------------------------------------------------
# The screen


class Sample(NamedTuple):
  """One response to be shown."""

  prompt: str
  completion: str
  reward: float
  answer: str = ""  # the reference
  rule: str = ""  # what the verifier says of it


_TABLE = (  # label, metric, format; down the columns of the terminal's table
  ("accuracy", "eval/", ".3f"),
  ("reward", "reward/mean", ".3f"),
  ("no signal", "group/frac_zero_std", ".0%"),
  ("groups", "group/trained", ".0f"),
  ("length", "completion/length_mean", ",.0f"),
  ("longest", "completion/length_max", ",.0f"),
  ("cut off", "completion/truncated_frac", ".0%"),
  ("discarded", "rollout/waste_frac", ".0%"),
  ("entropy", "policy/entropy", ".3f"),
  ("gradient", "policy/grad_norm", ".3g"),
  ("mismatch", "mismatch/kl_k3", ".1e"),
  ("seconds", "time/step_seconds", ".1f"),
)
_TABLE_ROWS = 4


class _Screen(rich.progress.Progress):
  """The bar, and under it a table of the last step and of the mean of the last 20."""

  def __init__(self, *columns, **options):
    self._past = {name: deque(maxlen=20) for _, name, _ in _TABLE}
    self._warnings = ""
    super().__init__(*columns, **options)

  def show(self, metrics: Mapping[str, Any], warnings: Sequence[str]) -> None:
    held_out = [name for name in sorted(metrics) if re.fullmatch(r"eval/[^/]+/pass@1", name)]
    values = {**metrics, "eval/": metrics[held_out[0]]} if held_out else metrics
    for name, past in self._past.items():
      if name in values:
        past.append(_number(name, values[name]))
    self._warnings = ", ".join(warnings)

  def get_renderables(self):
    yield self.make_tasks_table(self.tasks)
    if any(self._past.values()):
      table = rich.table.Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
      for _ in range(len(_TABLE) // _TABLE_ROWS):
        table.add_column(no_wrap=True)
        table.add_column("last", justify="right", no_wrap=True)
        table.add_column("mean", justify="right", style="dim", no_wrap=True)
      for i in range(_TABLE_ROWS):
        cells = []
        for label, name, form in _TABLE[i::_TABLE_ROWS]:
          past = self._past[name]
          last, mean = (past[-1], sum(past) / len(past)) if past else (None, None)
          cells += [label, *("-" if x is None else f"{x:{form}}" for x in (last, mean))]
        table.add_row(*cells)
      yield table
    if self._warnings:
      yield rich.text.Text(f"warnings: {self._warnings}", style="yellow")


class Progress:
  """Shows how far a run is: a bar and a table on a terminal, a line a step elsewhere.

  The time left is the median of the last steps times the steps left, so that the first step, which
  compiles, does not count for long.
  """

  def __init__(self, steps: int, *, start: int = 0, stream: TextIO | None = None):
    """Args: steps of the whole run; start, those done before; stream, by default stdout."""
    self._steps = steps
    self._stream = stream or sys.stdout
    self._seconds: deque[float] = deque(maxlen=20)
    self._time = time.monotonic()
    self._bar = None
    if self._stream.isatty():
      console = rich.console.Console(file=self._stream, highlight=False)
      self._bar = _Screen(
        rich.progress.TextColumn("step"),
        rich.progress.MofNCompleteColumn(),
        rich.progress.BarColumn(),
        rich.progress.TextColumn("{task.description}", markup=False),
        console=console,
      )
      self._task = self._bar.add_task("", total=steps, completed=start)
      self._bar.start()

  def update(self, step: int, metrics: Mapping[str, Any], warnings: Sequence[str] = ()) -> None:
    """After each step: `step` is how many are done, `metrics` those of the step.

    `warnings` are the names of those in force; the table of a terminal keeps them in sight.
    """
    now = time.monotonic()
    self._seconds.append(now - self._time)
    self._time = now
    left = statistics.median(self._seconds) * max(self._steps - step, 0)
    parts = []
    for label, name, form in (
      ("reward", "reward/mean", ".3f"),
      ("tokens/s", "perf/tokens_per_second", ",.0f"),
    ):
      if name in metrics:
        parts.append(f"{label} {_number(name, metrics[name]):{form}}")
    text = "  ".join([*parts, f"ETA {_duration(left)}"])
    if self._bar is not None:
      self._bar.show(metrics, warnings)
      self._bar.update(self._task, completed=step, description=text)
    else:
      self.print(f"step {step:>{len(str(self._steps))}}/{self._steps}  {text}")

  def print(self, text: str) -> None:
    """Prints lines above the bar, whatever characters are in them."""
    text = _printable(text, getattr(self._stream, "encoding", None) or "utf-8")
    if self._bar is not None:
      self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
    else:
      print(text, file=self._stream, flush=True)

  def print_samples(self, step: int, samples: Sequence[Sample]) -> None:
    """Prints responses with their reward, the prompt cut to its last 300 characters."""
    for sample in samples:
      prompt = sample.prompt if len(sample.prompt) <= 300 else "..." + sample.prompt[-300:]
      facts = [f"reward {sample.reward:g}"]
      facts += [f"answer {sample.answer}"] if sample.answer else []
      facts += [sample.rule] if sample.rule else []
      self.print(
        f"--- step {step}: {', '.join(facts)}\n"
        f"{_indent('prompt   | ', prompt)}\n{_indent('response | ', sample.completion)}"
      )

  def close(self) -> None:
    if self._bar is not None:
      self._bar.stop()

  def __enter__(self) -> "Progress":
    return self

  def __exit__(self, *_) -> None:
    self.close()


def _indent(label: str, text: str) -> str:
  blank = " " * (len(label) - 2) + "| "
  lines = text.split("\n")
  return "\n".join((label if i == 0 else blank) + line for i, line in enumerate(lines))


def _printable(text: str, encoding: str) -> str:
  """Escapes what would move the cursor, or cannot be written in the encoding."""
  text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
  return text.encode(encoding, "backslashreplace").decode(encoding)


def _duration(seconds: float) -> str:
  minutes, seconds = divmod(round(seconds), 60)
  hours, minutes = divmod(minutes, 60)
  if hours:
    return f"{hours}h{minutes:02d}m"
  return f"{minutes}m{seconds:02d}s" if minutes else f"{seconds}s"


def before_after_table(before: Mapping[str, float], after: Mapping[str, float]) -> str:
  """A plain-text table of evaluation metrics before and after training, and their difference."""
  names = [*before, *(name for name in after if name not in before)]
  cells = [("", "before", "after", "change")]
  for name in names:
    old, new = before.get(name), after.get(name)
    change = "-" if old is None or new is None else f"{new - old:+.3f}"
    old, new = ("-" if value is None else f"{value:.3f}" for value in (old, new))
    cells.append((name, old, new, change))
  width = max(len(row[0]) for row in cells)
  return "\n".join(
    f"{row[0]:<{width}}" + "".join(f"  {cell:>7}" for cell in row[1:]) for row in cells
  )


# --------------------------------------------------------------------------------------------------
# Compilations


class CompileCounter:
  """Counts programs that XLA compiles while it is open; `count` should stand still after a step.

  A jitted function's cache size is no measure of it: a cache entry may come without a compilation.
  """

  _EVENT = "/jax/core/compile/backend_compile_duration"

  def __init__(self):
    self.count = 0
    jax.monitoring.register_event_duration_secs_listener(self._heard)

  def _heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == self._EVENT:
      self.count += 1

  def close(self) -> None:
    jax.monitoring.unregister_event_duration_listener(self._heard)

  def __enter__(self) -> "CompileCounter":
    return self

  def __exit__(self, *_) -> None:
    self.close()
