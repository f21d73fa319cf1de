import contextlib
import gc
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import rlvr_jax
from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.verify import VerifierPool, verify

LIMIT = 1.0


def run(pool, texts, answer="right"):
  return pool([Example("q", answer, "s")] * len(texts), texts)


def outcomes(verdicts):
  return [(v.correct, v.rule) for v in verdicts]


def alive(pid):
  with contextlib.suppress(ProcessLookupError, FileNotFoundError):
    os.kill(pid, 0)
    status = pathlib.Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
  return False


def wait_until(condition, seconds=20.0):
  end = time.monotonic() + seconds
  while not condition() and time.monotonic() < end:
    time.sleep(0.05)
  return condition()


@pytest.fixture
def pool(verifiers):
  with VerifierPool(verifiers.obey, workers=2, time_limit_seconds=LIMIT) as pool:
    yield pool


def test_results_are_in_the_order_of_the_items(pool):
  texts = [f"{i}" for i in range(300)]
  examples = [Example("q", f"{i if i % 3 else -1}", "s") for i in range(300)]
  verdicts = pool(examples, texts)
  assert [v.parsed for v in verdicts] == texts
  assert [v.correct for v in verdicts] == [float(i % 3 != 0) for i in range(300)]
  assert all(isinstance(v, Verdict) for v in verdicts)
  assert pool([], []) == []


def test_what_goes_wrong_costs_its_own_item_and_is_counted(pool):
  texts = ["right"] * 200
  texts[3], texts[50], texts[51], texts[100] = "sleep 1000", "exit", "exit", "raise x"
  texts[120], texts[150], texts[199] = "none", "nan", "system_exit"
  rules = [rule for _, rule in outcomes(run(pool, texts))]
  assert [i for i, rule in enumerate(rules) if rule == "timeout"] == [3]
  assert [i for i, rule in enumerate(rules) if rule == "crashed"] == [50, 51]
  assert rules[100] == "error: KeyError: 'x'"
  assert [i for i, rule in enumerate(rules) if rule.startswith("error")] == [100, 120, 150, 199]
  assert rules.count("same") == 193
  counted = dict(pool.counters)
  messages = counted.pop("messages")
  assert counted == {"timeout": 1, "crashed": 2, "error": 4, "verified": 193, "restarts": 5}
  assert messages <= 200
  assert outcomes(run(pool, ["right", "wrong"])) == [(1.0, "same"), (0.0, "same")]


@pytest.mark.parametrize("order", ["power", "backtrack"])
def test_t50_hung_c_code_is_killed_in_time(pool, order):
  run(pool, ["right"])  # so that the start of a process is not in the measured time
  start = time.monotonic()
  verdicts = run(pool, ["right", order, "right"])
  assert outcomes(verdicts) == [(1.0, "same"), (0.0, "timeout"), (1.0, "same")]
  assert LIMIT <= time.monotonic() - start < 10 * LIMIT
  assert outcomes(run(pool, ["right"])) == [(1.0, "same")]


def test_each_item_has_the_whole_limit_however_many_share_a_message(verifiers):
  with VerifierPool(verifiers.obey, workers=1, time_limit_seconds=0.6) as pool:
    verdicts = run(pool, ["sleep 0.2"] * 16)
    assert [v.rule for v in verdicts] == ["same"] * 16
    assert pool.counters["messages"] == 4  # so one message took 0.8 seconds
    assert pool.counters["restarts"] == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the memory limit is enforced on Linux alone")
def test_memory_hog_fails_and_a_smaller_one_does_not(verifiers):
  with VerifierPool(verifiers.obey, workers=1, memory_limit_mib=256) as pool:
    verdicts = run(pool, ["hog 100", "hog 10000", "right"])
    assert outcomes(verdicts) == [(0.0, "allocated"), (0.0, "memory"), (1.0, "same")]
    assert pool.counters["memory"] == 1
    assert pool.counters["restarts"] == 1  # what filled the memory might still be held


def running(mark):
  """Processes with the mark as a word of their command line."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):
      found += [path] if mark in re.split(r"[\s\0]", path.read_text()) else []
  return found


@pytest.mark.skipif(sys.platform != "linux", reason="whose child is whose is read from /proc")
def test_processes_of_an_item_end_with_it(verifiers):
  with VerifierPool(verifiers.obey, workers=1, time_limit_seconds=3.0) as pool:
    mark = f"{os.getpid()}.5"
    texts = ["right", "fork", "wrong", f"daemon {mark}", "right", f"hung {mark}", "run", "right"]
    rules = [(v.correct, v.rule) for v in run(pool, texts)]
    # Were the answer of a forked process taken, those after it would be one off.
    assert [rules[i] for i in (0, 2, 4, 6, 7)] == [
      (1.0, "same"), (0.0, "same"), (1.0, "same"), (0.0, "same"), (1.0, "same"),
    ]  # fmt: skip
    assert rules[1] == (0.0, "same")
    assert rules[3] == (0.0, "forked")
    assert rules[5] == (0.0, "timeout")
    assert (pool.counters["forked"], pool.counters["timeout"]) == (1, 1)
    assert wait_until(lambda: not running(mark))


def test_text_that_is_no_unicode_is_judged_like_any_other(pool):
  texts = ["\udcff\ud800", "right", "\x00", "\udcff"]
  verdicts = pool([Example("q", "\udcff", "s")] * 4, texts)
  assert [v.correct for v in verdicts] == [0.0, 0.0, 0.0, 1.0]
  assert [v.parsed for v in verdicts] == texts


def test_t49_scores_are_the_same_from_other_threads(pool):
  texts = [["right", "wrong", f"{n}"] * 20 for n in range(4)]
  here = [outcomes(run(pool, t)) for t in texts]
  there = [None] * 4

  def work(n):
    there[n] = outcomes(run(pool, texts[n]))

  threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert there == here
  assert here[0][:2] == [(1.0, "same"), (0.0, "same")]


def test_thousands_of_items_travel_in_few_messages():
  texts = [f"The answer is {i}." for i in range(4096)]
  examples = [Example("q", str(i - i % 2), "s") for i in range(4096)]
  with VerifierPool(verify, workers=2) as pool:
    assert sum(v.correct for v in pool(examples, texts)) == 2048
    assert pool.counters == {"verified": 4096, "messages": 4096 // 64}


def test_processes_are_others_and_see_no_accelerator(pool):
  pids = {v.parsed for v in run(pool, ["pid", "sleep 0.2"] * 20)} - {"sleep 0.2"}
  assert pids and str(os.getpid()) not in pids
  assert run(pool, ["environment JAX_PLATFORMS"])[0].parsed == "cpu"


def test_processes_import_nothing_heavy(pool):
  order = "modules jax numpy flax grain reasoning_gym rlvr_jax.core.records"
  assert run(pool, [order])[0].parsed == "rlvr_jax.core.records"


def test_without_workers_it_runs_here(verifiers):
  with VerifierPool(verifiers.obey, workers=0) as pool:
    verdicts = run(pool, ["right", "raise x", "pid"])
    assert outcomes(verdicts)[:2] == [(1.0, "same"), (0.0, "error: KeyError: 'x'")]
    assert verdicts[2].parsed == str(os.getpid())
    assert pool.counters == {"verified": 2, "error": 1}
  with VerifierPool(lambda example, text: Verdict(1.0), workers=0) as pool:
    assert run(pool, ["x"]) == [Verdict(1.0)]


def test_close_leaves_no_process_and_refuses_more(pool):
  pids = [int(v.parsed) for v in run(pool, ["pid"] * 8)]
  pool.close()
  assert not any(alive(pid) for pid in pids)
  with pytest.raises(RuntimeError, match="closed"):
    run(pool, ["right"])
  pool.close()


def test_a_pool_that_nobody_holds_is_closed(verifiers):
  pool = VerifierPool(verifiers.obey, workers=1)
  pid = int(run(pool, ["pid"])[0].parsed)
  del pool
  gc.collect()
  assert not alive(pid)


def test_a_process_killed_between_calls_is_replaced(verifiers):
  with VerifierPool(verifiers.obey, workers=1) as pool:
    pid = int(run(pool, ["pid"])[0].parsed)
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: not alive(pid))
    assert outcomes(run(pool, ["right"])) == [(1.0, "same")]
    assert pool.counters["crashed"] == 0


def test_ctrl_c_in_a_call_leaves_the_pool_usable(pool):
  old = signal.signal(
    signal.SIGINT, signal.default_int_handler
  )  # a shell's background jobs ignore it
  try:
    _interrupted(pool)
  finally:
    signal.signal(signal.SIGINT, old)


def _interrupted(pool):
  run(pool, ["right"] * 2)
  timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
  timer.start()
  with pytest.raises(KeyboardInterrupt):
    run(pool, ["sleep 0.9"] * 20)
  assert outcomes(run(pool, ["right", "wrong"])) == [(1.0, "same"), (0.0, "same")]


ORPHAN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sys.path[:] = {path!r}
import unruly_verifiers
from rlvr_jax.core.records import Example
from rlvr_jax.tasks.verify import VerifierPool
pool = VerifierPool(unruly_verifiers.obey, workers=2, time_limit_seconds=1.0)
example = Example("q", "right", "s")
pool([example] * 20, ["pid"] * 20)
print(*[w.process.pid for w in pool._workers], flush=True)
pool([example], [{order!r}])
input()
"""


@pytest.mark.parametrize(
  ("order", "number"),
  [
    ("right", signal.SIGTERM),
    ("right", signal.SIGINT),
    ("right", signal.SIGKILL),
    ("power", signal.SIGKILL),  # nothing of the parent is left to end a process that hangs
  ],
)
def test_no_process_outlives_its_parent(verifiers, order, number):
  root = pathlib.Path(rlvr_jax.__file__).parents[1]
  script = ORPHAN.format(path=[str(root), *sys.path], order=order)
  parent = subprocess.Popen(
    [sys.executable, "-c", script],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  with parent:
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2 and all(alive(pid) for pid in pids)
    time.sleep(0.3)  # into the item that hangs
    parent.send_signal(number)
    parent.wait()
  assert wait_until(lambda: not any(alive(pid) for pid in pids))


def test_what_cannot_be_sent_is_refused_at_once(verifiers):
  with pytest.raises(ValueError, match="top of a module"):
    VerifierPool(lambda example, text: Verdict(1.0), workers=1)
  here = VerifierPool.__class__("Here", (), {"__module__": "__main__"})
  sys.modules["__main__"].Here = here
  try:
    with pytest.raises(ValueError, match="move it to a module"):
      VerifierPool(here, workers=1)
  finally:
    del sys.modules["__main__"].Here
  for wrong in ({"workers": -1}, {"time_limit_seconds": 0}, {"memory_limit_mib": 0}):
    with pytest.raises(ValueError, match="workers"):
      VerifierPool(verify, **wrong)


def test_a_process_that_cannot_start_says_why(verifiers, monkeypatch):
  folder = str(pathlib.Path(verifiers.__file__).parent)
  monkeypatch.setattr(sys, "path", [path for path in sys.path if path != folder])
  with (
    VerifierPool(verifiers.obey, workers=1) as pool,
    pytest.raises(RuntimeError, match="No module named 'unruly_verifiers'"),
  ):
    run(pool, ["right"])


def test_items_are_checked(pool):
  with pytest.raises(ValueError, match="1 examples and 2 texts"):
    pool([Example("q", "a", "s")], ["a", "b"])
  with pytest.raises(Exception, match="pickle"):
    pool([Example("q", "a", "s", {"f": lambda: 0})], ["a"])
  assert outcomes(run(pool, ["right"])) == [(1.0, "same")]
