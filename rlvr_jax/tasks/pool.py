"""Verification in processes that can be killed."""

import collections
import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Pipe, wait
from typing import Any

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks import worker as worker_module

COUNTERS = ("verified", "timeout", "crashed", "memory", "forked", "error", "restarts")
_MAX_CHUNK = 64  # items in a message
_START_SECONDS = 120.0
_START = (
  "import sys; sys.path[:] = sys.argv[2:]; "
  f"from {worker_module.__name__} import main; main(int(sys.argv[1]))"
)


def needs_processes(verify: Callable) -> Callable:
  """Marks a verifier that may hang or take all memory: VerifierPool refuses it without workers."""
  vars(verify)["needs_processes"] = True
  return verify


class VerifierPool:
  """Runs `verify` on many completions at once, in processes of their own.

  pool(examples, texts) -> verdicts, in the order of the items. An item that overruns its time is
  killed and judged wrong, with every process it started, and so is one that takes its process down;
  the other items go on, the process is replaced, the pool stays usable:

    rule "timeout"           longer than time_limit_seconds
    rule "crashed"           two processes died of it (exit, segmentation fault, out of memory); one may
                             have been killed from outside
    rule "memory"            MemoryError, which the memory limit causes
    rule "forked"            a process that it started outlived it; that is killed
    rule "error: <message>"  verify raised, or returned no Verdict

  `counters` counts these outcomes ("timeout", "crashed", "memory", "forked", "error", and "verified"
  for the rest) and "restarts" of processes, which are COUNTERS, and "messages" sent to them. Items
  travel up to 64 to a message, yet each is timed by itself, from the reply to the one before it.

  Calls may come from any thread; one runs at a time. An exception in a call (Ctrl-C) kills the
  processes that are busy, and the next call starts new ones. Processes end with `close`, with the
  `with` block, with the interpreter, and, if that is killed, when their item ends or is overdue.
  They are started from a fresh interpreter that imports the module of `verify` and not `__main__`,
  in a session of their own, and see no accelerator (JAX_PLATFORMS=cpu).

  Args:
    verify: (example, text) -> Verdict; a function at the top of an importable module, or anything
      else that pickles.
    workers: processes. 0 runs verify in the calling thread, for verifiers that are known to be
      harmless: what it raises is still caught, but the limits are not applied and nothing can be
      killed. Refused for those that are known not to be (`needs_processes`).
    time_limit_seconds: wall-clock time for one item.
    memory_limit_mib: address space in MiB that a process may take on top of what it holds when
      ready; the processes that it starts may take as much each. Enforced on Linux alone.

  Raises:
    ValueError: for an argument out of range, or a `verify` that the processes cannot import.
    RuntimeError: in a call, when closed, or when a process cannot be started (with its traceback).
  """

  def __init__(
    self,
    verify: Callable[[Example, str], Verdict],
    workers: int = 2,
    time_limit_seconds: float = 10.0,
    memory_limit_mib: int = 1024,
  ):
    if workers < 0 or time_limit_seconds <= 0 or memory_limit_mib <= 0:
      raise ValueError(
        "want workers >= 0, time_limit_seconds > 0 and memory_limit_mib > 0, got "
        f"{workers}, {time_limit_seconds} and {memory_limit_mib}"
      )
    if not workers and getattr(verify, "needs_processes", False):
      raise ValueError(f"{verify!r} must run in processes that can be killed: set workers >= 1")
    self.counters: collections.Counter[str] = collections.Counter()
    self._verify = verify
    self._time_limit = time_limit_seconds
    self._lock = threading.Lock()
    self._closed = False
    self._workers: list[_Worker] = []
    self._setup = _setup(verify, time_limit_seconds, memory_limit_mib) if workers else b""
    # Holds the list, not self, so that a pool nobody holds any more is collected and closed.
    self._finalizer = weakref.finalize(self, _kill_all, self._workers)
    for _ in range(workers):
      self._workers.append(_Worker(self._setup))

  def __call__(self, examples: Sequence[Example], texts: Sequence[str]) -> list[Verdict]:
    """Verdicts of texts[i], a completion of examples[i]; as many, in the same order."""
    if len(examples) != len(texts):
      raise ValueError(f"{len(examples)} examples and {len(texts)} texts")
    with self._lock:
      if self._closed:
        raise RuntimeError("this VerifierPool is closed")
      if not self._workers:
        replies = [
          worker_module.judge(self._verify, *item) for item in zip(examples, texts, strict=True)
        ]
      else:
        items = [pickle.dumps(item) for item in zip(examples, texts, strict=True)]
        try:
          replies = self._run(items)
        except BaseException:
          for index, worker in enumerate(self._workers):
            if worker.pending or not worker.alive():
              self._replace(index)
          raise
      self.counters.update(outcome for outcome, _ in replies)
    return [Verdict(*verdict) for _, verdict in replies]

  def close(self) -> None:
    """Ends the processes. Waits for a call that is running in another thread."""
    with self._lock:
      self._closed = True
      self._finalizer()

  def __enter__(self) -> "VerifierPool":
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def _run(self, items: list[bytes]) -> list[worker_module.Reply]:
    waiting = collections.deque(range(len(items)))
    replies: list[Any] = [None] * len(items)
    left = len(items)
    suspects: set[int] = set()  # of having taken a process down
    chunk = max(1, min(_MAX_CHUNK, len(items) // (4 * len(self._workers))))
    while left:
      for index, worker in enumerate(self._workers):
        if not worker.pending and not worker.alive():
          worker = self._replace(index)
        if worker.ready and not worker.pending and waiting:
          count = min(chunk, len(waiting))
          worker.send([waiting.popleft() for _ in range(count)], items, self._time_limit)
          self.counters["messages"] += 1

      busy: dict[Any, int] = {
        w.connection: i for i, w in enumerate(self._workers) if w.pending or not w.ready
      }
      first = min(self._workers[i].deadline for i in busy.values())
      heard = wait(list(busy), max(0.0, first - time.monotonic()))

      # Replies before deadlines: this thread may itself have been held up for longer than a limit.
      for connection in heard:
        worker = self._workers[busy.pop(connection)]
        outcome, value = worker.receive()
        if outcome == "failed":
          raise RuntimeError(f"a verifier process did not start:\n{value}")
        if outcome == "crashed" and worker.pending and worker.pending[0] not in suspects:
          suspects.add(worker.pending[0])  # stays pending, and is the first of what waits
        elif worker.pending and outcome != "ready":
          replies[worker.pending.popleft()] = (outcome, value)
          left -= 1
          worker.deadline = time.monotonic() + self._time_limit
        if outcome in ("crashed", "memory"):  # what filled the memory may still be held
          waiting.extendleft(reversed(worker.pending))
          self._replace(self._workers.index(worker))
      for index in busy.values():
        worker = self._workers[index]
        if time.monotonic() < worker.deadline or worker.connection.poll():
          continue
        if not worker.ready:
          raise RuntimeError(f"a verifier process did not start in {_START_SECONDS} seconds")
        replies[worker.pending.popleft()] = ("timeout", (0.0, None, "timeout"))
        left -= 1
        waiting.extendleft(reversed(worker.pending))
        self._replace(index)
    return replies

  def _replace(self, index: int) -> "_Worker":
    self._workers[index].kill()
    self._workers[index] = _Worker(self._setup)
    self.counters["restarts"] += 1
    return self._workers[index]


class _Worker:
  """One process, and the items it was sent and has not answered."""

  def __init__(self, setup: bytes):
    self.connection, theirs = Pipe()
    paths = [os.path.abspath(path) for path in sys.path]
    with theirs:
      self.process = subprocess.Popen(
        [sys.executable, "-c", _START, str(theirs.fileno()), *paths],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,  # Ctrl-C is ours; and the whole session can be killed
      )
    self.ready = False
    self.pending: collections.deque[int] = collections.deque()
    self.deadline = time.monotonic() + _START_SECONDS
    self.connection.send_bytes(setup)

  def alive(self) -> bool:
    if not hasattr(os, "waitid"):  # macOS
      return self.process.poll() is None
    # Not poll(): once the status is taken, the group can no longer be killed without doubt.
    done = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return self.process.returncode is None and os.waitid(os.P_PID, self.process.pid, done) is None

  def send(self, indices: list[int], items: list[bytes], time_limit: float) -> None:
    self.pending.extend(indices)
    self.deadline = time.monotonic() + time_limit
    with contextlib.suppress(OSError):  # a process that died is found when it is listened to
      self.connection.send_bytes(pickle.dumps([items[i] for i in indices]))

  def receive(self) -> tuple[str, Any]:
    """A reply; or ("ready", None), ("failed", why it did not start), ("crashed", a verdict)."""
    try:
      outcome, value = pickle.loads(self.connection.recv_bytes())
    except (EOFError, OSError):
      if not self.ready:
        return "failed", f"it ended with status {self.process.wait()} before it was ready"
      return "crashed", (0.0, None, "crashed")
    self.ready = self.ready or outcome == "ready"
    return outcome, value

  def kill(self) -> None:
    if self.process.returncode is None:  # once it is known, another process may have the id
      others = worker_module.descendants(self.process.pid)
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(self.process.pid, signal.SIGKILL)
      worker_module.kill_each(others)
      self.process.wait()
    self.connection.close()


def _kill_all(workers: list[_Worker]) -> None:
  while workers:
    workers.pop().kill()


def _setup(verify: Callable, time_limit_seconds: float, memory_limit_mib: int) -> bytes:
  try:
    # Example comes along so that its module, too, is imported before the first item.
    pickled = pickle.dumps((verify, Example))
  except Exception as error:
    raise ValueError(
      f"verify must be a function at the top of a module, since it is sent to other processes; "
      f"{verify!r} cannot be: {error}"
    ) from error
  if b"__main__" in pickled:
    raise ValueError(
      f"{verify!r} is defined in the script being run, which the verifier processes do not import; "
      "move it to a module, or use workers=0"
    )
  return pickle.dumps(
    {
      "verify": pickled,
      "time_limit_seconds": time_limit_seconds,
      "memory_limit_mib": memory_limit_mib,
    }
  )
