"""The two programs that `tasks.code` starts in sandboxes. Standard library only: it is run as a text.

`program` holds the completion's code and calls its functions on request. `tests` holds the unit tests,
which see those functions as `Remote` objects. The two share no memory and no files: all that passes
between them, through the process that started both, is values written as JSON. So a completion can
neither read the tests, nor reach into them, nor say that they passed.
"""

import ast
import builtins
import collections.abc
import ctypes
import importlib
import io
import itertools
import json
import os
import platform
import resource
import struct
import sys
from typing import Any

_MAX_ITEMS = 100_000  # taken from an iterator that a program returns
_PLAIN_INT = 2**63


def limit_resources(limits):
  """Sets limits that the process cannot lift: {name of the rlimit: value}."""
  for name, value in limits.items():
    number = getattr(resource, name)
    _, hard = resource.getrlimit(number)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))


# Linux system calls that are refused, by machine. In order: audit number of the architecture, clone;
# then fork, vfork, those that signal, trace or read other processes, sockets, and io_uring, which
# would do the same behind the filter. Source: linux/audit.h and the tables of unistd.h.
_CALLS = {
  "x86_64": (
    (0xC000003E, 56),
    (57, 58, 62, 200, 234, 129, 297, 424, 101, 310, 311, 434, 41, 53, 425),
  ),
  "aarch64": ((0xC00000B7, 220), (129, 130, 131, 138, 240, 424, 117, 270, 271, 434, 198, 199, 425)),
}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _IF_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _NOT_PERMITTED, _NOT_THERE, _ALLOW = 0x80000000, 0x50001, 0x50026, 0x7FFF0000


def forbid_processes_and_network():
  """For good: no new process (threads may start), no signal to another, no socket.

  By a seccomp filter, because the kernel does not hold root to a limit on processes. On machines
  without one a limit of no new processes is all there is.
  """
  if sys.platform != "linux" or platform.machine() not in _CALLS:
    limit_resources({"RLIMIT_NPROC": 0})
    return
  (architecture, clone), refused = _CALLS[platform.machine()]
  steps = [
    (_LOAD, 0, 0, 4),  # the architecture
    (_IF_EQUAL, 1, 0, architecture),
    (_RETURN, 0, 0, _KILL),
    (_LOAD, 0, 0, 0),  # the number of the call
    (_IF_AT_LEAST, 0, 1, 0x40000000),  # calls of the x32 kind
    (_RETURN, 0, 0, _NOT_PERMITTED),
  ]
  for call in refused:
    steps += [(_IF_EQUAL, 0, 1, call), (_RETURN, 0, 0, _NOT_PERMITTED)]
  steps += [
    (_IF_EQUAL, 0, 1, _CLONE3),  # its flags are out of reach; libc then uses clone
    (_RETURN, 0, 0, _NOT_THERE),
    (_IF_EQUAL, 0, 3, clone),
    (_LOAD, 0, 0, 16),  # its first argument, the flags
    (_IF_BITS, 1, 0, _CLONE_THREAD),
    (_RETURN, 0, 0, _NOT_PERMITTED),
    (_RETURN, 0, 0, _ALLOW),
  ]
  code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
  program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
  libc = ctypes.CDLL(None, use_errno=True)
  libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
  no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
  if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(
    set_seccomp, filter_mode, ctypes.addressof(program), 0, 0
  ):
    raise OSError(ctypes.get_errno(), "no seccomp filter could be set")


def encode(value, refer):
  """A value as JSON; `refer` gives the reference of one that has no such form, or raises."""
  again = lambda items: [encode(item, refer) for item in items]
  if value is None or isinstance(value, bool):
    return value
  if isinstance(value, int):
    return value if abs(value) < _PLAIN_INT else {"int": hex(value)}
  if isinstance(value, float):
    return float(value)
  if isinstance(value, str):
    return str(value)
  if isinstance(value, list):
    return again(value)
  if isinstance(value, (tuple, set, frozenset)):
    kind = next(k for k in (tuple, frozenset, set) if isinstance(value, k))
    return {kind.__name__: again(value)}
  if isinstance(value, dict):
    return {"dict": [again(pair) for pair in value.items()]}
  if isinstance(value, complex):
    return {"complex": [value.real, value.imag]}
  if isinstance(value, (bytes, bytearray)):
    return {type(value).__name__: value.decode("latin-1")}
  if isinstance(value, range):
    return {"range": [value.start, value.stop, value.step]}
  if isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase):
    return {"iter": again(itertools.islice(value, _MAX_ITEMS))}
  return {"ref": refer(value)}


def decode(data: Any, resolve) -> Any:
  """The value that `encode` wrote; of exactly the types named here."""
  again = lambda items: [decode(item, resolve) for item in items]
  if isinstance(data, list):
    return again(data)
  if not isinstance(data, dict):
    return data
  ((kind, inside),) = data.items()
  if kind == "int":
    return int(inside, 16)
  if kind == "dict":
    return {key: value for key, value in map(again, inside)}
  if kind == "complex":
    return complex(*inside)
  if kind in ("bytes", "bytearray"):
    return getattr(builtins, kind)(inside.encode("latin-1"))
  if kind in ("tuple", "set", "frozenset", "iter"):
    return getattr(builtins, kind)(again(inside))
  if kind == "range":
    return range(*inside)
  if kind == "ref":
    return resolve(inside)
  raise ValueError(f"no value is a {kind}")


class Channel:
  """Lines of JSON over what were standard input and output; print and input see /dev/null."""

  def __init__(self):
    self._in = os.fdopen(os.dup(0), "rb")
    self._out = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
      os.dup2(nowhere, descriptor)

  def receive(self):
    line = self._in.readline()
    if not line:
      os._exit(1)
    return json.loads(line)

  def send(self, message):
    self._out.write(json.dumps(message).encode() + b"\n")
    self._out.flush()


def describe(error):
  return [type(error).__name__, str(error)[:200]]


def serve_program(channel):
  """Runs the code, says which names it defines, then answers calls."""
  space: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
  objects: dict[int, Any] = {}

  def refer(value):
    objects[len(objects)] = value
    return len(objects) - 1

  def find(target):
    return space[target] if isinstance(target, str) else objects[target]

  def load(message):
    exec(compile(message["code"], "<completion>", "exec"), space)
    return [name for name in space if not name.startswith("__")]

  def answer(message):
    if message["do"] == "load":
      return load(message)
    target = find(message["target"])
    if message["do"] == "get":
      return encode(getattr(target, message["name"]), refer)
    arguments = decode(message["arguments"], find)
    return encode(target(*arguments[0], **arguments[1]), refer)

  while True:
    message = channel.receive()
    try:
      reply = {"value": answer(message)}
      json.dumps(reply)
    except BaseException as error:  # SystemExit, too, is the answer to one call
      reply = {"error": describe(error)}
    channel.send(reply)


class Remote:
  """A function or object of the program. It has no value here: it equals itself alone."""

  def __init__(self, ask, target):
    self._ask, self._target = ask, target

  def __call__(self, *arguments, **named):
    return self._ask(do="call", target=self._target, arguments=[list(arguments), named])

  def __getattr__(self, name):
    if name.startswith("__"):
      raise AttributeError(name)
    return self._ask(do="get", target=self._target, name=name)


class ProgramError(Exception):
  """What a program raised that is not one of Python's own exceptions."""


def run_tests(channel):
  """Runs every test; sends {"passed": number} or {"failed": index, "error": ...} at the end."""
  job = channel.receive()

  def ask(**message):
    if "arguments" in message:
      positional, named = message["arguments"]
      message["arguments"] = [[encode(a, refer) for a in positional], encode(named, refer)]
    channel.send({"ask": message})
    reply = channel.receive()
    if "error" not in reply:
      return decode(reply["value"], lambda target: Remote(ask, target))
    name, text = reply["error"]
    kind = getattr(builtins, str(name), None)
    if isinstance(kind, type) and issubclass(kind, Exception):
      try:
        error = kind(str(text))
      except TypeError:  # UnicodeDecodeError and its like want more
        error = ProgramError(f"{name}: {text}")
      raise error
    raise ProgramError(f"{name}: {text}")

  def refer(value):
    if isinstance(value, Remote):
      return value._target
    raise TypeError(f"a test passes a {type(value).__name__}, which cannot be sent to the program")

  space: dict[str, Any] = {"__name__": "tests"}
  for name in job["names"]:
    if not hasattr(builtins, name):
      space[name] = Remote(ask, name)
  entry_point = job["entry_point"]
  index = -1
  try:
    # A module that the tests forgot to import is the true one, never the program's.
    for name in modules_used(job["tests"]) - {entry_point}:
      space[name] = importlib.import_module(name)
    exec(compile(job["setup"], "<setup>", "exec"), space)  # over names of the program
    if entry_point is not None:
      space[entry_point] = Remote(ask, entry_point)
    for index, test in enumerate(job["tests"]):  # noqa: B007 (read when a test raises)
      exec(compile(test, "<test>", "exec"), space)
      if entry_point is not None and defines_check(test):
        space["check"](space[entry_point])
  except BaseException as error:
    channel.send({"failed": index, "error": describe(error)})
  else:
    channel.send({"passed": len(job["tests"])})


def modules_used(tests):
  """Names of the standard library that stand before a dot."""
  nodes = (node for test in tests for node in ast.walk(ast.parse(test)))
  bases = (node.value for node in nodes if isinstance(node, ast.Attribute))
  return {base.id for base in bases if isinstance(base, ast.Name)} & sys.stdlib_module_names


def defines_check(test):
  return any(
    isinstance(node, ast.FunctionDef) and node.name == "check" for node in ast.parse(test).body
  )


def main(role, limits):
  channel = Channel()
  limit_resources(json.loads(limits))
  forbid_processes_and_network()
  if role == "program":
    sys.setrecursionlimit(5000)
    serve_program(channel)
  else:
    run_tests(channel)


if __name__ == "__main__":
  main(*sys.argv[1:])
