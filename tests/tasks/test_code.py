import contextlib
import pathlib
import pickle
import sys
import time

import pytest

from rlvr_jax.core.records import Example
from rlvr_jax.tasks import code, sandbox
from rlvr_jax.tasks.verify import VerifierPool

confined = pytest.mark.skipif(
  sandbox.confinement() != "bwrap", reason="needs bubblewrap: apt install bubblewrap"
)
pytestmark = [
  pytest.mark.skipif(sys.platform != "linux", reason="the sandbox's limits are Linux's"),
  pytest.mark.filterwarnings("ignore:code of completions runs without bubblewrap"),
]

ADD = {"tests": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"], "entry_point": "add"}
RIGHT = "def add(a, b):\n  return a + b"


def judge(text, metadata=None, *, fenced=True, **limits):
  text = f"Look:\n```python\n{text}\n```\nDone." if fenced else text
  example = Example("q", "", "s", metadata or ADD)
  return code.verify(example, text, **{"seconds": 10.0, "allow_unconfined": True, **limits})


def test_right_and_wrong_code():
  verdict = judge(RIGHT)
  assert verdict == (1.0, RIGHT + "\n", "fenced, passed 2 tests")
  half = "def add(a, b):\n  return 3"
  assert judge(half)[::2] == (0.0, "fenced, test 2: AssertionError")
  assert judge("def add(a, b) return a")[2].startswith("fenced, code: SyntaxError")
  assert judge("def sub(a, b):\n  return a")[::2] == (0.0, "fenced, code: no add")
  assert judge("def add(a, b):\n  raise KeyError(a)")[2] == "fenced, test 1: KeyError: '1'"
  assert judge("1 / 0")[2] == "fenced, code: ZeroDivisionError: division by zero"


SCORES = ["__eq__", "__ne__", "__bool__", "__lt__", "__len__"]
ALWAYS = "\n".join(f"  def {name}(self, *other):\n    return True" for name in SCORES)
CHEATS = {
  "exit": "import sys\nsys.exit(0)",
  "hard exit": "import os\nos._exit(0)",
  "exit in the function": "import os\ndef add(a, b):\n  os._exit(0)",
  "quit in the function": "def add(a, b):\n  raise SystemExit(0)",
  "prints success": "print('passed')\nprint('{\"passed\": 2}', flush=True)\ndef add(a, b):\n  return 0",
  "writes to every descriptor": (
    "import os\nfor fd in range(64):\n  try:\n    os.write(fd, b'{\"passed\": 2}\\n')\n"
    "  except OSError:\n    pass\ndef add(a, b):\n  return 0"
  ),
  "equals everything": f"class Any:\n{ALWAYS}\ndef add(a, b):\n  return Any()",
  "an int that equals everything": f"class Any(int):\n{ALWAYS}\ndef add(a, b):\n  return Any(9)",
  "no assertions": "import builtins\nbuiltins.AssertionError = None\ndef add(a, b):\n  return 0",
  "patches the comparison": "import operator\noperator.eq = lambda a, b: True\ndef add(a, b): return 0",
  "its own tests": "def add(a, b):\n  return 0\ndef check(candidate):\n  pass",
  "looks for the tests": (
    "import gc, glob\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'tests' in o]\n"
    "for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/tmp/*'):\n"
    "  try:\n    found += [1] * (b'2, 2) ' + b'== 4' in open(path, 'rb').read())\n"
    "  except OSError:\n    pass\n"
    "def add(a, b):\n  return a + b if found else 0"
  ),
  "walks the stack": (
    "import sys\ndef add(a, b):\n  frame = sys._getframe()\n  while frame:\n"
    "    if 'tests' in frame.f_locals or 'job' in frame.f_locals:\n      return a + b\n"
    "    frame = frame.f_back\n  return 0"
  ),
  "traces": "import sys\nsys.settrace(lambda *a: None)\ndef add(a, b):\n  return 0",
  "refers to itself": "def add(a, b):\n  r = []\n  r.append(r)\n  return r",
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_do_not_pass(cheat):
  verdict = judge(CHEATS[cheat])
  assert verdict.correct == 0.0, verdict.rule


LIMITED = {
  "sleep": ("import time\ntime.sleep(1000)", "timeout"),
  "loop": ("while True: pass", "timeout"),
  "loop in the function": ("def add(a, b):\n  while True: pass", "timeout"),
  "never reads": ("import time\ndef add(a, b):\n  time.sleep(1000)", "timeout"),
  "10 GB": ("def add(a, b):\n  return len(bytearray(10**10))", "test 1: MemoryError"),
  "fork": ("import os\ndef add(a, b):\n  os.fork()\n  return a + b", "test 1: PermissionError"),
  "fork bomb": ("import os\nwhile True: os.fork()", "code: PermissionError"),
  "spawn": ("import subprocess\nsubprocess.run(['true'])", "code: PermissionError"),
  "kill": ("import os\nos.kill(os.getppid(), 9)", "code: PermissionError"),
  "network": ("import socket\nsocket.socket()", "code: PermissionError"),
  "large file": (
    "with open('x', 'wb') as f:\n  while True: f.write(bytes(10**6))",
    "code: OSError",
  ),
  "large reply": ("def add(a, b):\n  return '9' * 10**7", "ended"),
  "segmentation fault": ("import ctypes\nctypes.string_at(0)", "ended"),
  "deep": ("def add(a, b):\n  return add(a, b)", "test 1: RecursionError"),
  "surrogate": ("x = '\udcff'", "code: UnicodeEncodeError"),
}


@pytest.mark.parametrize("name", LIMITED)
def test_limits_hold(name):
  text, rule = LIMITED[name]
  verdict = judge(text, seconds=1.0 if rule == "timeout" else 10.0)
  assert verdict.correct == 0.0
  assert verdict.rule.startswith(f"fenced, {rule}")


def test_harmless_things_still_work():
  text = "import threading\nt = threading.Thread(target=print)\nt.start()\nt.join()\n"
  text += "with open('note', 'w') as f:\n  f.write('x')\nassert open('note').read() == 'x'\n"
  text += "import collections, heapq, itertools, math, re, string\n"
  assert judge(text + RIGHT).correct == 1.0


@confined
def test_it_writes_in_its_folder_alone_and_sees_nothing(tmp_path):
  secret = tmp_path / "secret"
  secret.write_text("seen")
  for target in (secret, tmp_path / "new", "/usr/new", "/new", "/dev/shm/new", "/etc/new"):
    verdict = judge(f"open({str(target)!r}, 'w')\n{RIGHT}")
    assert "Error" in verdict.rule and verdict.correct == 0.0
    assert not pathlib.Path(target).exists() or target == secret
  assert secret.read_text() == "seen"
  assert "FileNotFoundError" in judge(f"open({str(secret)!r})\n{RIGHT}").rule
  alone = "import os\nassert len([p for p in os.listdir('/proc') if p.isdigit()]) <= 2\n"
  alone += "assert 'PATH' not in os.environ and os.getuid() == 65534\n"
  assert judge(alone + RIGHT).correct == 1.0


def test_humaneval_style():
  tests = "METADATA = {}\ndef check(candidate):\n  assert candidate(2) == poly(2)\n"
  setup = "import math\ndef poly(x):\n  return x * x\n\ndef square(x: int) -> int:\n"
  setup += '  """The square."""\n'
  metadata = {"tests": tests, "entry_point": "square", "setup": setup}
  assert judge("def square(x):\n  return x ** 2", metadata).rule == "fenced, passed 1 tests"
  assert judge("  return math.prod([x, x])", metadata, fenced=False).rule == "bare, passed 1 tests"
  assert judge("def square(x):\n  return 5", metadata).rule == "fenced, test 1: AssertionError"
  # A helper of the tests is the setup's, whatever the completion makes of it.
  cheat = "def square(x):\n  return 5\ndef poly(x):\n  return 5"
  assert judge(cheat, metadata).correct == 0.0


def test_mbpp_style():
  pairs = {"tests": ["assert longest([Pair(1, 2), Pair(3, 4)]) == 4"]}
  text = "class Pair:\n  def __init__(self, a, b):\n    self.b = b\n"
  text += "def longest(pairs):\n  return max(p.b for p in pairs)"
  assert judge(text, pairs).correct == 1.0
  builtin = {"tests": ["assert sum(10, 15) == 6"], "entry_point": "sum"}
  text = "def sum(a, b):\n  return [n for n in range(1, b) if a % n == b % n == 0][-1] + 1"
  assert judge(text, builtin).correct == 1.0
  # Nor are builtins the completion's, where they are not what is tested.
  near = {"tests": ["assert abs(half(3) - 1.5) < 0.1"], "entry_point": "half"}
  assert judge("def half(x):\n  return 0\ndef abs(x):\n  return 0", near).correct == 0.0
  # `math` is the library although the tests do not import it.
  near = {"tests": ["assert math.isclose(half(3), 1.5)"], "entry_point": "half"}
  assert judge("import math\ndef half(x):\n  return x / 2", near).correct == 1.0
  cheat = "class math:\n  isclose = lambda a, b: True\ndef half(x):\n  return 0"
  assert judge(cheat, near).correct == 0.0


VALUES = [
  "None", "True", "-7", "10**5000", "1.5", "float('inf')", "1 + 2j", "'ä\\n\\udcff'", "b'\\xff\\x00'",
  "[1, [2]]", "(1, (2, 3))", "{1, 2}", "frozenset({1})", "{1: 'a', (1, 2): [None]}", "range(1, 9, 2)",
]  # fmt: skip


def test_values_pass_both_ways_unchanged():
  tests = [f"x = {v}\ny = same(x)\nassert y == x and type(y) is type(x), y" for v in VALUES]
  tests += ["assert list(iter_of([1, 2])) == [1, 2]", "assert counts('aab') == {'a': 2, 'b': 1}"]
  tests += ["try:\n  fail()\n  assert False\nexcept ValueError as e:\n  assert str(e) == 'why'"]
  tests += ["assert same(x=1) == 1", "assert box(3).get() == 3 and box(3).value == 3"]
  tests += ["assert box(3) != box(3)", "assert value_of(box(4)) == 4"]
  text = """
import collections
def same(x): return x
def iter_of(x): return (y for y in x)
def counts(x): return collections.Counter(x)
def fail(): raise ValueError("why")
class box:
  def __init__(self, value): self.value = value
  def __eq__(self, other): return True
  def get(self): return self.value
def value_of(box): return box.value
"""
  assert judge(text, {"tests": tests}).rule == f"fenced, passed {len(tests)} tests"
  refused = judge(text, {"tests": ["same(lambda: 0)"]}).rule
  assert (
    refused
    == "fenced, test 1: TypeError: a test passes a function, which cannot be sent to the program"
  )


def test_verdicts_repeat():
  text = "def add(a, b):\n  return hash('x') + a"
  metadata = {"tests": ["assert add(1, 2) == 0, add(1, 2)"], "entry_point": "add"}
  assert judge(text, metadata) == judge(text, metadata)  # another seed of hash() would show


@pytest.mark.parametrize(
  ("text", "found", "rule"),
  [
    ("```python\na = 1\n```", "a = 1\n", "fenced"),
    ("```\na = 1\n```\nand\n```py\nb = 2\n```", "b = 2\n", "fenced"),
    ("```python\na = 1\n```\nIt prints\n```text\n1\n```", "a = 1\n", "fenced"),
    ("```python\na = 1\n```\nor\n```python\nb = ", None, "unclosed fence"),
    ("```text\n1\n```", None, "no Python"),
    ("  a = 1", "  a = 1", "bare"),
    ("<think>```python\na = 1\n```</think>", None, "empty"),
    ("<think>```python\na = 1\n```", None, "unclosed think"),
    ("<think>x</think>```python\nb = 2\n```", "b = 2\n", "fenced"),
    ("", None, "empty"),
  ],
)
def test_the_last_closed_block_is_the_code(text, found, rule):
  assert code.extract_code(text) == (found, rule)


def test_unfit_data_is_refused():
  for metadata in (
    {},
    {"tests": []},
    {"tests": [1]},
    {"tests": "assert f(1"},
    {"tests": "f()", "setup": "def f(:"},
    {"tests": "f()", "setup": 3},
    {"tests": "f()", "entry_point": 3},
  ):
    with pytest.raises(ValueError, match=r"tests|test 1|setup"):
      code.check_reference(Example("q", "", "s", metadata))
  code.check_reference(Example("q", "", "s", ADD))


def test_without_bubblewrap_it_refuses_unless_allowed(monkeypatch):
  monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
  monkeypatch.setattr(sandbox, "confinement", sandbox.confinement.__wrapped__)
  sandbox._warn.cache_clear()
  with pytest.raises(RuntimeError, match="apt install bubblewrap"):
    code.verifier()
  with pytest.raises(RuntimeError, match="allow_unconfined=True"):
    judge(RIGHT, allow_unconfined=False)
  with pytest.warns(UserWarning, match="without bubblewrap"):
    assert judge(RIGHT).correct == 1.0
  for text, rule in (LIMITED[n] for n in ("fork bomb", "network", "10 GB", "large file", "kill")):
    assert judge(text).rule.startswith(f"fenced, {rule}")
  assert judge("import os\nos.setsid\nwhile True: pass", seconds=0.5).rule == "fenced, timeout"


def test_a_bubblewrap_that_does_not_work_is_not_trusted(monkeypatch, tmp_path):
  broken = tmp_path / "bwrap"
  broken.write_text("#!/bin/sh\nexit 1\n")
  broken.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
  assert sandbox.confinement.__wrapped__() == "rlimits"


def alive(mark):
  """Processes with the mark on their command line."""
  found = []
  for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):
      found += [path] if mark in path.read_bytes() else []
  return found


def test_the_pool_kills_what_the_sandbox_runs():
  verify = code.verifier(seconds=100.0, memory_mib=301, allow_unconfined=True)
  mark = str(301 * 2**20).encode()  # in the limits on the command line
  assert pickle.loads(pickle.dumps(verify)).keywords == verify.keywords
  texts = [f"```python\n{text}\n```" for text in (RIGHT, "while True: pass", RIGHT)]
  with VerifierPool(verify, workers=1, time_limit_seconds=3.0) as pool:
    verdicts = pool([Example("q", "", "s", ADD)] * 3, texts)
    assert [v.correct for v in verdicts] == [1.0, 0.0, 1.0]
    assert verdicts[1].rule == "timeout"
    assert pool.counters["forked"] == 0
  end = time.monotonic() + 10
  while alive(mark) and time.monotonic() < end:
    time.sleep(0.05)
  assert not alive(mark)
  for wrong in ({"seconds": 0}, {"memory_mib": -1}):
    with pytest.raises(ValueError, match="seconds > 0"):
      code.verifier(**wrong)
