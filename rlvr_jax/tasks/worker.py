"""The process that `VerifierPool` hands its items to. Imports nothing but what `verify` needs."""

import contextlib
import ctypes
import faulthandler
import glob
import math
import os
import pickle
import resource
import signal
import sys
import time
import traceback
from multiprocessing.connection import Connection

_PR_SET_CHILD_SUBREAPER = 36

# Seconds after the pool should have killed a hung worker when it goes by itself: the pool is gone.
ORPHAN_GRACE_SECONDS = 5.0
# Seconds that the processes an item killed itself may take to be gone.
DYING_SECONDS = 0.5


Reply = tuple[str, tuple[float, str | None, str]]  # outcome, fields of the verdict


def judge(verify, example, text: str) -> Reply:
  """Calls verify; the outcome is "verified", "error" or "memory".

  Whatever verify raises, SystemExit included, is the failure of this one item.
  """
  try:
    correct, parsed, rule = verify(example, text)
    if not math.isfinite(correct):
      raise ValueError(f"verify returned correct={correct}")
    return "verified", (float(correct), None if parsed is None else str(parsed), str(rule))
  except MemoryError:
    return "memory", (0.0, None, "memory")
  except BaseException as error:
    return "error", (0.0, None, f"error: {type(error).__name__}: {error}"[:300])


def main(descriptor: int) -> None:
  """Answers the messages of the pool at the other end of a socket until that end is closed."""
  os.set_inheritable(descriptor, False)
  connection, parent, own = Connection(descriptor), os.getppid(), os.getpid()
  # A signal to all processes of a job: the run decides. What an item starts gets the default back.
  signal.signal(signal.SIGTERM, lambda *_: None)
  try:
    if sys.platform == "linux":  # orphans of what an item starts become ours, to be ended
      ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    setup = pickle.loads(connection.recv_bytes())
    # What an item needs is imported here, or the first item would pay for it from its time limit.
    verify, _ = pickle.loads(setup["verify"])
    _limit_memory(setup["memory_limit_mib"])
  except EOFError:
    return
  except BaseException:
    connection.send_bytes(pickle.dumps(("failed", traceback.format_exc())))
    return
  watchdog = setup["time_limit_seconds"] + ORPHAN_GRACE_SECONDS
  try:
    connection.send_bytes(pickle.dumps(("ready", None)))
    with open(os.devnull, "w") as nowhere:
      while True:
        # A process forked by the parent may hold the other end open: then no end of file comes.
        while not connection.poll(2.0):
          if os.getppid() != parent:
            return
        for item in pickle.loads(connection.recv_bytes()):
          # A thread without the interpreter lock: it ends even a worker stuck in C code.
          faulthandler.dump_traceback_later(watchdog, exit=True, file=nowhere)
          reply = _judge_item(verify, item)
          if os.getpid() != own:
            os._exit(0)  # forked by the item: two would answer
          if _end_children():
            reply = "forked", (0.0, None, "forked")
          reply = pickle.dumps(reply)
          faulthandler.cancel_dump_traceback_later()
          connection.send_bytes(reply)
  except (EOFError, ConnectionError):
    return


def _judge_item(verify, item: bytes) -> Reply:
  try:
    example, text = pickle.loads(item)
  except Exception as error:
    return "error", (0.0, None, f"error: {type(error).__name__}: {error}"[:300])
  return judge(verify, example, text)


def _end_children() -> bool:
  """Kills the processes that an item left running; whether there were any."""
  found, patience = False, time.monotonic() + DYING_SECONDS
  while True:
    try:
      pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return found
    if pid == 0 and time.monotonic() < patience:
      time.sleep(0.001)
    elif pid == 0:
      found = True
      kill_each(descendants(os.getpid()))
      os.waitpid(-1, 0)


def kill_each(pids: list[int]) -> None:
  for pid in pids:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.kill(pid, signal.SIGKILL)


def descendants(root: int) -> list[int]:
  """The processes below one, those in sessions of their own included; elsewhere than Linux, none."""
  children: dict[int, list[int]] = {}
  for path in glob.glob("/proc/[0-9]*/stat"):
    with contextlib.suppress(OSError), open(path, errors="replace") as file:
      pid, _, rest = file.read().partition(" ")
      parent = int(rest.rpartition(")")[2].split()[1])
      children.setdefault(parent, []).append(int(pid))
  below = list(children.get(root, ()))
  for pid in below:
    below += children.get(pid, ())
  return below


def _limit_memory(mib: int) -> None:
  """Lets the address space grow by so much from what it is now; elsewhere than Linux, nothing."""
  if sys.platform != "linux":
    return
  with open("/proc/self/statm") as file:
    pages = int(file.read().split()[0])
  limit = pages * resource.getpagesize() + mib * 2**20
  _, hard = resource.getrlimit(resource.RLIMIT_AS)
  if hard == resource.RLIM_INFINITY or limit < hard:
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
