"""Python processes for code that nobody trusts.

`confinement` says what this machine offers:

  "bwrap"    bubblewrap: namespaces of their own, so no network and no sight of other processes; of
             the files, /usr and the Python installation, read only; a folder in memory to write to
  "rlimits"  no bubblewrap, or one that may not make namespaces. The process starts in a temporary
             folder, but can read and write whatever its user can

Either way limits hold for processor time, memory, file size, open files, and on Linux a filter of
system calls forbids new processes, signals to others and sockets. "rlimits" is refused unless
allowed, because the files are open.
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from typing import Any, NamedTuple

from rlvr_jax.tasks import harness

_MAX_LINE = 2**22  # bytes of a message


class Limits(NamedTuple):
  """Of one process."""

  cpu_seconds: int = 10
  memory_mib: int = 512  # address space
  files_mib: int = 16  # of one file; with bubblewrap of all files together
  open_files: int = 64


class Ended(Exception):
  """The process is gone, or sent what is no message."""


class Unconfined(RuntimeError, ValueError):
  """Code cannot be confined here: a ValueError too, so that commands say it in one line."""


def require(allow_unconfined: bool = False) -> str:
  """`confinement`, or an error if code cannot be confined and nobody allowed that.

  Raises:
    Unconfined: if only "rlimits" is there and allow_unconfined is False.
  """
  found = confinement()
  if found != "bwrap" and not allow_unconfined:
    raise Unconfined(
      "code of a completion is not run here, because it cannot be confined: bubblewrap (bwrap) is not "
      "installed or may not make namespaces. Install it (apt install bubblewrap), or accept with "
      "allow_unconfined=True that such code can read and write every file you can"
    )
  if found != "bwrap":
    _warn()
  return found


@functools.cache
def confinement() -> str:
  """ "bwrap" or "rlimits"; found out once a process, by trying."""
  if shutil.which("bwrap") is None:
    return "rlimits"
  command = [*_bwrap(Limits()), *_python("print(1)")]
  try:
    done = subprocess.run(command, capture_output=True, timeout=20, check=False)
  except (OSError, subprocess.TimeoutExpired):
    return "rlimits"
  return "bwrap" if done.returncode == 0 and done.stdout.strip() == b"1" else "rlimits"


class Process:
  """`harness` in one role, in a sandbox; messages to and from it are JSON values.

  Args:
    role: "program" or "tests".
    limits: of the process.
    allow_unconfined: see `require`.

  Raises:
    RuntimeError: see `require`.
  """

  def __init__(self, role: str, limits: Limits, allow_unconfined: bool = False):
    rlimits = {
      "RLIMIT_CPU": limits.cpu_seconds,
      "RLIMIT_AS": limits.memory_mib * 2**20,
      "RLIMIT_FSIZE": limits.files_mib * 2**20,
      "RLIMIT_NOFILE": limits.open_files,
      "RLIMIT_CORE": 0,
    }
    command = [*_python(_source()), role, json.dumps(rlimits)]
    self._folder = None
    if require(allow_unconfined) == "bwrap":
      command = [*_bwrap(limits), *command]
    else:
      self._folder = tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True)
    self._process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      cwd=self._folder.name if self._folder else "/",
      env={"PATH": "/usr/local/bin:/usr/bin:/bin", **_environment()},
      start_new_session=True,  # so that the whole group can be killed
    )

  def send(self, message: Any) -> None:
    """Raises Ended if nobody listens any more."""
    assert self._process.stdin is not None
    try:
      self._process.stdin.write(json.dumps(message).encode() + b"\n")
      self._process.stdin.flush()
    except OSError as error:
      raise Ended from error

  def receive(self) -> Any:
    """The next message; Ended if there is none, or one beyond 4 MiB or that is not JSON."""
    assert self._process.stdout is not None
    line = self._process.stdout.readline(_MAX_LINE)
    if not line.endswith(b"\n"):
      raise Ended
    try:
      return json.loads(line)
    except (ValueError, RecursionError) as error:
      raise Ended from error

  def kill(self) -> None:
    """Ends the process and its group; from any thread."""
    if self._process.returncode is None:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(self._process.pid, signal.SIGKILL)

  def __enter__(self) -> "Process":
    return self

  def __exit__(self, *_) -> None:
    self.kill()
    for pipe in (self._process.stdin, self._process.stdout):
      with contextlib.suppress(OSError):  # what could not be written any more
        if pipe is not None:
          pipe.close()
    self._process.wait()
    if self._folder is not None:
      self._folder.cleanup()


@functools.cache
def _source() -> str:
  return pathlib.Path(harness.__file__).read_text()


@functools.cache
def _warn() -> None:
  warnings.warn(
    "code of completions runs without bubblewrap: it can read and write every file you can",
    stacklevel=3,
  )


def _environment() -> dict[str, str]:
  return {"PYTHONHASHSEED": "0", "LANG": "C.UTF-8"}


def _python(source: str) -> list[str]:
  # Its own site-packages stay out; -P: nor does the folder it stands in provide modules.
  return [os.path.realpath(sys.executable), "-s", "-S", "-P", "-c", source]


def _bwrap(limits: Limits) -> list[str]:
  command = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "65534", "--gid", "65534"]
  command += ["--die-with-parent", "--cap-drop", "ALL"]
  for folder in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"):
    if os.path.islink(folder):
      command += ["--symlink", os.readlink(folder), folder]
    elif os.path.isdir(folder):
      command += ["--ro-bind", folder, folder]
  prefix = os.path.realpath(sys.base_prefix)
  if not prefix.startswith("/usr/") and prefix != "/usr":
    command += ["--ro-bind", prefix, prefix]
  command += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
  command += ["--proc", "/proc", "--dev", "/dev"]
  command += ["--size", str(limits.files_mib * 2**20), "--tmpfs", "/tmp", "--chdir", "/tmp"]
  command += ["--remount-ro", "/dev", "--remount-ro", "/", "--clearenv"]
  for name, value in _environment().items():
    command += ["--setenv", name, value]
  return command
