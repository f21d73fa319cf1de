"""The process that `VerifierPool` hands its items to. Imports nothing but what `verify` needs."""

import faulthandler
import math
import os
import pickle
import resource
import sys
import traceback
from multiprocessing.connection import Connection

# Seconds after the pool should have killed a hung worker when it goes by itself: the pool is gone.
ORPHAN_GRACE_SECONDS = 5.0


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
  connection, parent = Connection(descriptor), os.getppid()
  try:
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
          reply = pickle.dumps(_judge_item(verify, item))
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
