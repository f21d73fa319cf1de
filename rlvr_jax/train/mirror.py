"""A workdir in an object store (gs://, s3://, memory://, whatever fsspec knows), kept as a folder here.

An object store has no appending, no renaming and no locks, and a run needs all three. So the run works in a
folder of this machine, and `Mirror` copies it: down when the run begins, up in the background whenever a
checkpoint is complete, and once more at the end. In the store a list of files is written after what it names,
so that what is there is a run as it was at some checkpoint, whatever was cut short.

A second run on the same machine is refused by the folder's lock. One on another machine takes the workdir
over, since nobody can tell whether the first still lives; the first stops when it next copies something.
"""

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import jax

_LIST = "mirror.json"  # {"files": [...]} of the newest complete copy
_OWNER = "mirror.owner"  # of the run that writes to the workdir
_NOT_COPIED = re.compile(r"\.lock$|\.tmp$|\.removed\b|orbax-checkpoint-tmp")


def is_remote(path: str | os.PathLike) -> bool:
  """Whether a path has a scheme, like gs://bucket/run.

  Raises:
    ValueError: for gs:/bucket/run, what pathlib.Path makes of it; for file://, a folder of this machine.
  """
  found = re.match(r"[A-Za-z][\w+.-]*:/(/?)", os.fspath(path))
  if found and not found[1]:
    raise ValueError(
      f"{os.fspath(path)}: a slash is missing behind the scheme; give a string, pathlib.Path drops it"
    )
  if found and os.fspath(path).startswith(("file:", "local:")):
    raise ValueError(f"{os.fspath(path)}: give a folder of this machine without the scheme")
  return found is not None


def local(path: str | os.PathLike) -> Path:
  """A path that has to be a folder or file of this machine.

  Raises:
    ValueError: if it has a scheme; Path would make a folder of that name.
  """
  if is_remote(path):
    raise ValueError(
      f"{os.fspath(path)}: only launch.train, launch.report and launch.diagnose take a workdir with a "
      "scheme; give a folder here, or where the bucket is mounted"
    )
  return Path(path)


class Taken(OSError):
  """Another run writes to the workdir now."""


class Mirror:
  """Keeps a folder and a workdir of an object store equal; see the top of the file."""

  def __init__(self, url: str | os.PathLike, folder: Path):
    """Empties the folder, but for its lock.

    Raises:
      ValueError: for a scheme that fsspec does not know.
      ImportError: if the package for it is not installed; says which.
    """
    self.url, self.folder = os.fspath(url).rstrip("/"), folder
    self._store, self._root = fsspec.core.url_to_fs(self.url)
    self._token = secrets.token_hex(8)
    self._copied: dict[str, tuple[int, int]] = {}  # name -> size and time of what the store has
    self._thread = ThreadPoolExecutor(1)
    self._pending: Future | None = None
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
      if path.is_dir():
        shutil.rmtree(path)
      elif path.name != ".lock":
        path.unlink()

  def pull(self, wanted: Callable[[str], Any] = lambda name: True) -> None:
    """Brings what the store has of the workdir, or the files whose names are wanted, into the folder."""
    listed = self._read(_LIST)
    names = json.loads(listed)["files"] if listed is not None else []
    for name in filter(wanted, names):
      path = self.folder / name
      path.parent.mkdir(parents=True, exist_ok=True)
      self._store.get_file(f"{self._root}/{name}", str(path))
      self._copied[name] = _version(path)

  def close(self) -> None:
    self._thread.shutdown()

  def take_over(self) -> None:
    """From now on no other run may write to the workdir."""
    self._store.pipe_file(f"{self._root}/{_OWNER}", self._token.encode())

  def push(self) -> None:
    """Begins to copy what is new, after the copy before it."""
    self.settle()
    self._pending = self._thread.submit(self._push)

  def busy(self) -> bool:
    """Whether it is copying."""
    return self._pending is not None and not self._pending.done()

  def settle(self) -> None:
    """Waits for the copy that was begun. One that failed is printed: the next one has its files too.

    Raises:
      Taken: if another run has the workdir now.
    """
    try:
      self._wait()
    except Taken:
      raise
    except OSError as error:
      print(f"WARNING: {error}", flush=True)

  def finish(self) -> None:
    """Copies what is new, and gives the folder up.

    Raises:
      Taken: if another run has the workdir now.
      OSError: if something could not be copied; the folder stays.
    """
    self.push()
    self._wait()
    shutil.rmtree(self.folder)

  def _wait(self) -> None:
    pending, self._pending = self._pending, None
    try:
      if pending is not None:
        pending.result()
    except Taken:
      raise
    except Exception as error:  # every store has errors of its own
      raise OSError(
        f"{self.url} could not be written, {self.folder} has what it lacks: "
        f"{type(error).__name__}: {error}"
      ) from error

  def _push(self) -> None:
    if self._read(_OWNER) != self._token.encode():
      raise Taken(f"another run has taken {self.url} over; this one ends")
    there = {name: _version(self.folder / name) for name in _names(self.folder)}
    for name, version in there.items():
      if self._copied.get(name) != version:
        self._store.put_file(str(self.folder / name), f"{self._root}/{name}")
    text = json.dumps({"files": sorted(there)}, indent=2) + "\n"
    self._store.pipe_file(f"{self._root}/{_LIST}", text.encode())
    for name in self._copied.keys() - there.keys():
      with contextlib.suppress(FileNotFoundError):  # of a copy that was cut short behind it
        self._store.rm_file(f"{self._root}/{name}")
    self._copied = there

  def _read(self, name: str) -> bytes | None:
    try:
      return self._store.cat_file(f"{self._root}/{name}")
    except FileNotFoundError:
      return None


def _names(folder: Path) -> Iterator[str]:
  for parent, _, files in os.walk(folder):
    for file in files:
      name = os.path.relpath(os.path.join(parent, file), folder)
      if not _NOT_COPIED.search(name):
        yield name


def _version(path: Path) -> tuple[int, int]:
  stat = path.stat()
  return stat.st_size, stat.st_mtime_ns


def folder_for(url: str | os.PathLike) -> Path:
  """The folder of this machine that a run with this workdir works in."""
  text = os.fspath(url).rstrip("/")
  key = hashlib.sha256(text.encode()).hexdigest()[:12]
  name = f"{text.rpartition('/')[2]}-{key}"
  return Path(tempfile.gettempdir()) / f"rlvr_jax-{os.getuid()}" / name


@contextlib.contextmanager
def working(
  workdir: str | os.PathLike, *, hold: Callable[[Path], Any]
) -> Iterator[tuple[Path, Any]]:
  """(folder to work in, its Mirror or None): the workdir itself unless it has a scheme.

  Args:
    hold: (folder) -> a context in which no other process has it.

  Raises:
    ValueError: for several processes, or a scheme that is not known.
  """
  if not is_remote(workdir):
    with hold(Path(workdir)):
      yield Path(workdir), None
    return
  if jax.process_count() > 1:
    raise ValueError(
      f"{os.fspath(workdir)}: several processes need a workdir that all of them see; mount the bucket, as "
      "launch/tpu_pod.sh --bucket does"
    )
  folder = folder_for(workdir)
  with hold(folder):
    mirror = Mirror(workdir, folder)
    try:
      mirror.pull()
      mirror.take_over()
      print(f"working in {folder}, copied to {mirror.url}")
      yield folder, mirror
    except BaseException:  # what the run has written is worth having, whatever ended it
      try:
        mirror.finish()
      except OSError as error:  # of the two errors the other one is the cause
        print(f"WARNING: {error}", flush=True)
      raise
    else:
      mirror.finish()
    finally:
      mirror.close()


@contextlib.contextmanager
def reading(workdir: str | os.PathLike, *folders: str) -> Iterator[Path]:
  """A folder with the files of a run, for as long as the block lasts: the workdir itself unless it has a
  scheme. Of its folders, like checkpoints, it then has those that are named."""
  if not is_remote(workdir):
    yield Path(workdir)
    return
  with tempfile.TemporaryDirectory() as parent:
    name = os.fspath(workdir).rstrip("/").rpartition("/")[2]
    mirror = Mirror(workdir, Path(parent) / name)
    mirror.pull(lambda file: "/" not in file or file.split("/")[0] in folders)
    mirror.close()
    yield mirror.folder


@contextlib.contextmanager
def writing(path: str | os.PathLike) -> Iterator[Path]:
  """A file here that is at `path` when the block is done: the path itself unless it has a scheme."""
  if not is_remote(path):
    yield Path(path)
    return
  with tempfile.TemporaryDirectory() as parent:
    file = Path(parent) / os.fspath(path).rpartition("/")[2]
    yield file
    store, root = fsspec.core.url_to_fs(os.fspath(path))
    store.put_file(str(file), root)
