r"""Python against unit tests, in the styles of MBPP and HumanEval.

example.metadata:
  "tests"        a list of programs, mostly one `assert` each (MBPP), or one program, which may define
                 `check(candidate)` (HumanEval)
  "entry_point"  name of the function under test. Optional: without it the tests find the functions
                 they call by name, which does not work for one that is named like a builtin
  "setup"        a program that is put before the completion's code, and run before the tests:
                 imports, helpers, or the head of a function with its docstring that the completion
                 goes on from. Optional

The completion's code and the tests run in two sandboxes (`tasks.sandbox`). The tests call functions
of the other side and get plain values back: numbers, strings, bytes, lists, tuples, sets, dicts
(iterators as iterators over a list). An object of any other class is a handle, which has methods and
attributes but equals nothing. So a completion that leaves early, prints, patches builtins, overrides
`==`, or looks for the tests gains nothing; changes that a function makes to its arguments are not
seen by the tests, nor can a test pass it a function.
"""

import functools
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.sandbox import Ended, Limits, Process, require

_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("", "python", "python3", "py")


def verifier(
  *, seconds: float = 6.0, memory_mib: int = 512, allow_unconfined: bool = False
) -> Callable[[Example, str], Verdict]:
  """`verify` with other limits, for a Task; refuses at once where code cannot be confined.

  Args:
    seconds: wall-clock time for the code and all its tests. Less than the pool's limit for an item,
      which would end the pool's process as well.
    memory_mib: address space of each of the two processes.
    allow_unconfined: run the code without bubblewrap, if need be (`sandbox.require`).

  Raises:
    RuntimeError: where code cannot be confined and allow_unconfined is False.
    ValueError: for limits that are not positive.
  """
  if seconds <= 0 or memory_mib <= 0:
    raise ValueError(f"want seconds > 0 and memory_mib > 0, got {seconds} and {memory_mib}")
  require(allow_unconfined)
  return functools.partial(
    verify, seconds=seconds, memory_mib=memory_mib, allow_unconfined=allow_unconfined
  )


def verify(
  example: Example,
  text: str,
  *,
  seconds: float = 6.0,
  memory_mib: int = 512,
  allow_unconfined: bool = False,
) -> Verdict:
  """Correct if the completion's code passes every test; see `verifier` for the arguments.

  The rule of the verdict says where the code was found (`extract_code`) and how it ended: "passed 3
  tests", "test 2: <error>" (the first that failed), "code: <error>", "ended" (the process is gone),
  "timeout".

  Raises:
    RuntimeError: where code cannot be confined and allow_unconfined is False.
    ValueError: for metadata that `check_reference` refuses.
  """
  setup, entry_point, tests = _metadata(example.metadata)
  code, rule = extract_code(text)
  if code is None:
    return Verdict(0.0, None, rule)
  limits = Limits(cpu_seconds=int(seconds) + 1, memory_mib=memory_mib)
  job = {"setup": setup, "entry_point": entry_point, "tests": tests}
  with (
    Process("program", limits, allow_unconfined) as program,
    Process("tests", limits, allow_unconfined) as tester,
  ):
    late = threading.Event()

    def stop():
      late.set()
      program.kill()
      tester.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
      passed, how = _converse(program, tester, f"{setup}\n{code}", job)
    except Ended:
      passed, how = False, "timeout" if late.is_set() else "ended"
    finally:
      timer.cancel()
  return Verdict(float(passed), code, f"{rule}, {how}")


def extract_code(text: str) -> tuple[str | None, str]:
  """The code of a completion, and the rule that found it.

  Only the text after the last `</think>` counts. "fenced": the last block between lines of three
  back-ticks that is Python or names no language; "bare": all of the text, without any fence. A last
  block that is not closed was cut off, and there is no code ("unclosed fence").
  """
  text = text.rpartition("</think>")[2]
  if "<think>" in text:
    return None, "unclosed think"
  if not text.strip():
    return None, "empty"
  fences = list(_FENCE.finditer(text))
  if not fences:
    return text, "bare"
  blocks, opened = [], None
  for fence in fences:
    if opened is None:
      opened = fence
    elif not fence[1]:
      if opened[1].lower() in _PYTHON:
        blocks.append(text[opened.end() + 1 : fence.start()])
      opened = None
  if opened is not None:
    return None, "unclosed fence"
  if not blocks:
    return None, "no Python"
  return blocks[-1], "fenced"


def check_reference(example: Example) -> None:
  """Raises ValueError for metadata without tests, or with programs that are not Python."""
  setup, _, tests = _metadata(example.metadata)
  for what, source in [("setup", setup), *((f"test {i + 1}", t) for i, t in enumerate(tests))]:
    try:
      compile(source, f"<{what}>", "exec")
    except (SyntaxError, ValueError) as error:
      raise ValueError(f"the {what} is not Python: {error}") from error


def _metadata(metadata: Mapping[str, Any]) -> tuple[str, str | None, list[str]]:
  tests = metadata.get("tests")
  if isinstance(tests, str):
    tests = [tests]
  if not isinstance(tests, list | tuple) or not tests or not all(isinstance(t, str) for t in tests):
    raise ValueError(f'metadata["tests"] must be a program or a list of them, got {tests!r}')
  setup, entry_point = metadata.get("setup") or "", metadata.get("entry_point")
  if not isinstance(setup, str) or not (entry_point is None or isinstance(entry_point, str)):
    raise ValueError(
      f"setup and entry_point must be strings, got {type(setup).__name__} and {entry_point!r}"
    )
  return setup, entry_point or None, list(tests)


def _converse(program: Process, tester: Process, code: str, job: dict) -> tuple[bool, str]:
  """Hands on what the tests ask and the program answers, until the tests are through."""
  program.send({"do": "load", "code": code})
  reply = program.receive()
  if not isinstance(reply, dict) or not isinstance(reply.get("value"), list):
    return False, f"code: {_described(reply)}"
  names = [name for name in reply["value"] if isinstance(name, str)]
  if job["entry_point"] is not None and job["entry_point"] not in names:
    return False, f"code: no {job['entry_point']}"
  tester.send({**job, "names": names})
  while True:
    said = tester.receive()
    if "ask" not in said:
      break
    program.send(said["ask"])
    tester.send(program.receive())
  if "passed" in said:
    return True, f"passed {said['passed']} tests"
  where = f"test {said['failed'] + 1}" if said["failed"] >= 0 else "setup"
  return False, f"{where}: {_described(said)}"


def _described(reply: Any) -> str:
  try:
    name, text = reply["error"]
    return f"{name}: {text}" if text else f"{name}"
  except (KeyError, TypeError, ValueError):
    return "no answer"
