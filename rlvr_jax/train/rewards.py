"""Reward functions of the user's own, called on the host after verification.

A reward function is plain Python, called by keyword with one list entry a completion:

    def brief(prompts, completions, completion_ids, **columns):
      return [1.0 if len(ids) < 100 else 0.0 for ids in completion_ids]

  prompts         the prompts: text, or a list of chat messages
  completions     the completions, always text
  completion_ids  their token ids, the end token included
  verdicts        the verifier's: correct, parsed, rule
  answer, source, and every other column of the data set (what examples hold as metadata; None where one
                  lacks it)

It returns one value for each completion: a number (ints and bools are numbers, and 0.0 is a score), or None
where it does not apply. It may be a coroutine function; several of them run side by side. It need not take
what it does not use.
"""

import asyncio
import concurrent.futures
import inspect
import math
import numbers
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.core.table import resolve, unknown

OURS = ("prompts", "completions", "completion_ids", "verdicts")
_LARGEST = float(np.finfo(np.float32).max)
_FIELDS = (
  "answer",
  "source",
  "difficulty",
)  # of an Example; a metadata key of that name goes first


class RewardError(ValueError):
  """A reward function failed, or returned what is no reward."""


class RewardFunction(NamedTuple):
  """One function of a config's `rewards`."""

  name: str  # its values are rows.extras["reward/<name>"], their mean the metric reward/<name>/mean
  weight: float
  call: Callable
  args: Mapping[str, Any] = {}  # further keyword arguments


def reward_functions(
  rewards: Mapping[str, Any], table: Mapping[str, str]
) -> tuple[RewardFunction, ...]:
  """The functions that a config's `rewards` names.

  Args:
    rewards: a name of the table, or "module:function", -> weight, or {"weight": weight, and arguments
      of the function}.
    table: name -> "module:function".

  Raises:
    ValueError: for a name that leads to no function, two functions of one name, or an argument that the
      function does not name.
  """
  functions: dict[str, RewardFunction] = {}
  for key, value in rewards.items():
    call = resolve("reward", key, table)
    if not callable(call):
      raise ValueError(f"reward {key!r} is a {type(call).__name__}, not a function")
    args = dict(value) if isinstance(value, Mapping) else {"weight": value}
    weight = float(args.pop("weight"))
    named, _ = _parameters(key, call)
    for arg in args:  # **columns would take a misspelt one, and never tell
      if arg not in named:
        raise unknown(f"argument of reward {key!r}:", arg, set(named) - set(OURS))
    name = key.rpartition(":")[2]
    if name in functions:
      raise ValueError(f"two reward functions are called {name!r}; rename one")
    functions[name] = RewardFunction(name, weight, call, args)
  return tuple(functions.values())


class Scorer:
  """Calls reward functions: scorer(prompt ids, texts, token ids, verdicts, step) -> {name: float32 [n]}.

  NaN says that a function does not apply. Functions run in this process, in the calling thread;
  coroutines in a thread of their own that lives as long as the scorer, so that what they keep open
  (connections) stays open from step to step.

  Args:
    functions: of `reward_functions`.
    examples: the prompt set; prompt ids are indices into it.

  Raises:
    ValueError: for a function that needs a column there is not, or a column with a name of ours. In a
      call, RewardError: naming the function and the step, if it raises, or does not return one value a
      completion, each None or a finite number.
  """

  def __init__(self, functions: Sequence[RewardFunction], examples: Sequence[Example]):
    self.names = tuple(function.name for function in functions)
    self.weights = {function.name: function.weight for function in functions}
    self._functions = tuple(functions)
    self._examples = examples
    self._loop: asyncio.AbstractEventLoop | None = None
    if not functions:
      return
    self._columns = dict.fromkeys(key for example in examples for key in example.metadata)
    self._columns |= dict.fromkeys(_FIELDS)
    for name in OURS:
      if name in self._columns:
        raise ValueError(f"reward functions get {name!r} from us: rename that column of the data")
    for function in functions:
      self._check(function)

  def _check(self, function: RewardFunction) -> None:
    given = {*OURS, *self._columns, *function.args}
    for name, parameter in _parameters(function.name, function.call)[0].items():
      if name not in given and parameter.default is inspect.Parameter.empty:
        raise ValueError(
          f"reward {function.name!r} needs {name!r}, which is neither a column of the data (there are "
          f"{', '.join(sorted({*OURS, *self._columns}))}) nor an argument set in the config"
        )

  def __call__(
    self,
    prompt_ids: Sequence[int],
    texts: Sequence[str],
    token_ids: Sequence[Sequence[int]],
    verdicts: Sequence[Verdict],
    step: int,
  ) -> dict[str, np.ndarray]:
    if not self._functions:
      return {}
    examples = [self._examples[i] for i in prompt_ids]
    columns = {name: [_cell(example, name) for example in examples] for name in self._columns}
    columns |= {
      "prompts": [e.prompt if isinstance(e.prompt, str) else list(e.prompt) for e in examples],
      "completions": texts,
      "completion_ids": token_ids,
      "verdicts": verdicts,
    }
    results: dict[str, Any] = {}
    try:
      for function in self._functions:
        results[function.name] = _at(
          step, function.name, lambda f=function: self._start(f, columns)
        )
      for name, result in results.items():
        if isinstance(result, concurrent.futures.Future):
          result = _at(step, name, result.result)
        results[name] = _checked(name, step, result, len(texts))
    finally:
      for result in results.values():
        if isinstance(result, concurrent.futures.Future):
          result.cancel()
    return results

  def _start(self, function: RewardFunction, columns: Mapping[str, Sequence[Any]]):
    """What the function returns; a future of it if it is a coroutine, which then is under way."""
    named, takes_all = _parameters(function.name, function.call)
    # Copies: a function that changes its lists must not change what the next one sees.
    given = {k: list(v) for k, v in columns.items() if takes_all or k in named}
    result = function.call(**{**given, **function.args})
    if not inspect.isawaitable(result):
      return result
    if self._loop is None:
      self._loop = asyncio.new_event_loop()
      threading.Thread(target=self._loop.run_forever, name="rewards", daemon=True).start()

    async def wait():
      return await result

    return asyncio.run_coroutine_threadsafe(wait(), self._loop)

  def close(self) -> None:
    if self._loop is not None:
      self._loop.call_soon_threadsafe(self._loop.stop)
      self._loop = None

  def __enter__(self) -> "Scorer":
    return self

  def __exit__(self, *_) -> None:
    self.close()


def _parameters(name: str, call: Callable) -> tuple[dict[str, inspect.Parameter], bool]:
  """The parameters that can be given by keyword, and whether any other can (**columns)."""
  kind = inspect.Parameter
  try:
    parameters = inspect.signature(call).parameters.values()
  except (TypeError, ValueError) as error:
    raise ValueError(f"reward {name!r}: cannot tell its arguments: {error}") from error
  for p in parameters:
    if p.kind is kind.POSITIONAL_ONLY and p.default is kind.empty:
      raise ValueError(f"reward {name!r}: {p.name!r} must be accepted as a keyword argument")
  named = {
    p.name: p for p in parameters if p.kind in (kind.POSITIONAL_OR_KEYWORD, kind.KEYWORD_ONLY)
  }
  return named, any(p.kind is kind.VAR_KEYWORD for p in parameters)


def _cell(example: Example, column: str) -> Any:
  if column in example.metadata:
    return example.metadata[column]
  return getattr(example, column) if column in _FIELDS else None


def _at(step: int, name: str, function: Callable[[], Any]) -> Any:
  """function(), with the reward's name, the step and the place in what it raises."""
  try:
    return function()
  except Exception as error:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    raise RewardError(
      f"reward {name!r} failed at step {step}: {type(error).__name__}: {error} "
      f"({frame.filename}, line {frame.lineno})"
    ) from error


def _checked(name: str, step: int, result: Any, num: int) -> np.ndarray:
  """float32 [num] of what a function returned; NaN for None."""
  wrong = f"reward {name!r} at step {step} must return {num} values, one a completion"
  if isinstance(result, (str, bytes, Mapping)) or not hasattr(result, "__getitem__"):
    raise RewardError(f"{wrong}, not a {type(result).__name__}: {_short(result)}")
  if len(getattr(result, "shape", (num,))) != 1:
    raise RewardError(f"{wrong}, not an array of shape {tuple(result.shape)}")
  values = list(result)
  if len(values) != num:
    raise RewardError(f"{wrong}, but returned {len(values)}")
  out = np.full(num, np.nan, np.float32)
  for i, value in enumerate(values):
    if value is None:
      continue
    array = np.asarray(value)
    if array.ndim or not (isinstance(value, numbers.Real) or array.dtype.kind in "biuf"):
      raise RewardError(
        f"{wrong}, each a number or None; value {i} is a {type(value).__name__}: {_short(value)}"
      )
    number = float(value)
    if not math.isfinite(number) or abs(number) > _LARGEST:
      raise RewardError(
        f"{wrong}, each finite; value {i} is {number}. None says that it does not apply"
      )
    out[i] = number
  return out


def _short(value: Any) -> str:
  text = repr(value)
  return text if len(text) <= 80 else text[:80] + "..."
