"""Workdirs in an object store: what is copied, when, and what a run that was cut short finds there."""

import contextlib
import json
import os
from pathlib import Path

import fsspec
import pytest

from rlvr_jax.train import mirror as mirror_lib
from rlvr_jax.train.config import InUse, hold_workdir
from rlvr_jax.train.mirror import Mirror, Taken, local, reading, working, writing

URL = "memory://bucket/run"
free = lambda folder: contextlib.nullcontext()


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
  """An empty store, and another folder for what is here."""
  monkeypatch.setattr(mirror_lib.tempfile, "tempdir", str(tmp_path))
  monkeypatch.chdir(tmp_path)
  made = fsspec.filesystem("memory")
  made.store.clear()
  yield made
  made.store.clear()
  assert not [name for name in os.listdir(tmp_path) if ":" in name]


def _listed(store):
  return json.loads(store.cat("/bucket/run/mirror.json"))["files"]


def _files(store):
  names = (name.removeprefix("/bucket/run/") for name in store.find("/bucket/run"))
  return sorted(name for name in names if not name.startswith("mirror."))


@pytest.mark.parametrize(
  ("path", "remote"),
  [("gs://b/x", True), ("memory://x", True), ("/a/b", False), ("a:b", False), ("c/gs://d", False)],
)
def test_what_has_a_scheme(path, remote):
  assert mirror_lib.is_remote(path) == remote
  if remote:
    with pytest.raises(ValueError, match="give a folder here"):
      local(path)
  else:
    assert str(local(path)) == os.path.normpath(path)


def test_a_scheme_that_lost_its_slash_is_no_folder():
  for use in (mirror_lib.is_remote, local):
    with pytest.raises(ValueError, match=r"gs:/b/x: a slash is missing"):
      use(Path("gs://b/x"))
    with pytest.raises(ValueError, match=r"file:///b/x: give a folder of this machine without"):
      use("file:///b/x")


def test_the_store_has_what_the_folder_had_at_the_last_push(store):
  with working(URL, hold=free) as (folder, mirror):
    (folder / "checkpoints" / "1").mkdir(parents=True)
    (folder / "checkpoints" / "1" / "a").write_text("one")
    (folder / "metrics.jsonl").write_text("1\n")
    for name in (".lock", "config.json.7.tmp", "checkpoints/1.removed", "2.orbax-checkpoint-tmp"):
      (folder / name).write_text("not this")
    mirror.push()
    mirror.settle()
    assert _files(store) == _listed(store) == ["checkpoints/1/a", "metrics.jsonl"]
    (folder / "checkpoints" / "1" / "a").unlink()
    (folder / "checkpoints" / "2").mkdir()
    (folder / "checkpoints" / "2" / "a").write_text("two")
    with (folder / "metrics.jsonl").open("a") as file:
      file.write("2\n")
    assert _files(store) == ["checkpoints/1/a", "metrics.jsonl"]
  assert _files(store) == _listed(store) == ["checkpoints/2/a", "metrics.jsonl"]
  assert not folder.exists()
  with working(URL, hold=free) as (folder, _):
    assert (folder / "metrics.jsonl").read_text() == "1\n2\n"
    assert (folder / "checkpoints" / "2" / "a").read_text() == "two"
  with reading(URL) as folder:
    assert os.listdir(folder) == ["metrics.jsonl"] and folder.name == "run"
  with reading(URL, "checkpoints") as folder:
    assert sorted(os.listdir(folder)) == ["checkpoints", "metrics.jsonl"]
  with writing(f"{URL}/report.html") as file:
    file.write_text("page")
  assert store.cat("/bucket/run/report.html") == b"page"


def test_a_copy_that_was_cut_short_is_not_seen(store, monkeypatch):
  """The list is written last: until then the store's run is the one before."""
  with working(URL, hold=free) as (folder, mirror):
    (folder / "a").write_text("1")
    mirror.push()
    mirror.settle()
    put = store.put_file
    full = lambda here, there: (_ for _ in ()).throw(RuntimeError("quota")) if "c" in there else 0

    def put_some(here, there):
      full(here, there.rpartition("/")[2])
      put(here, there)

    with monkeypatch.context() as patch:
      patch.setattr(store, "put_file", put_some)
      (folder / "a").unlink()
      for name in ("b", "c"):
        (folder / name).write_text("2")
      mirror.push()
      mirror.settle()  # is printed, and the run goes on
      assert _listed(store) == ["a"] and store.exists("/bucket/run/a")
    mirror.push()  # has everything that the one before should have had
    mirror.settle()
    assert _files(store) == _listed(store) == ["b", "c"]


def test_what_cannot_be_copied_is_told_and_stays_here(store, monkeypatch, capsys):
  def fail(*args):
    raise RuntimeError("no quota")

  with (
    pytest.raises(OSError, match=r"memory://bucket/run could not be written, .* no quota"),
    working(URL, hold=free) as (folder, mirror),
  ):
    (folder / "a").write_text("1")
    monkeypatch.setattr(store, "put_file", fail)
    mirror.push()
    mirror.settle()
    assert "WARNING: memory://bucket/run could not be written" in capsys.readouterr().out
  assert (folder / "a").read_text() == "1"


def test_what_a_run_that_fails_has_written_is_copied(store):
  with pytest.raises(KeyError), working(URL, hold=free) as (folder, _):
    (folder / "a").write_text("1")
    raise KeyError
  assert _files(store) == ["a"]


def test_a_second_run_on_this_machine_is_refused_and_elsewhere_takes_over(store, tmp_path):
  with pytest.raises(Taken, match="another run has taken memory://bucket/run over"):  # noqa: SIM117
    with working(URL, hold=hold_workdir) as (folder, _):
      (folder / "a").write_text("first")
      with pytest.raises(InUse), working(URL, hold=hold_workdir):
        pass
      assert (folder / "a").exists()
      other = Mirror(URL, tmp_path / "elsewhere")
      other.take_over()
      (other.folder / "a").write_text("second")
      other.finish()
      other.close()
  assert store.cat("/bucket/run/a") == b"second"


def test_several_processes_are_refused(monkeypatch):
  monkeypatch.setattr(mirror_lib.jax, "process_count", lambda: 2)
  with (
    pytest.raises(ValueError, match="several processes need a workdir that all of them see"),
    working(URL, hold=free),
  ):
    pass


def test_a_scheme_whose_package_is_missing_is_named():
  with (
    pytest.raises((ImportError, ValueError), match="gcsfs"),
    working("gs://b/x", hold=free),
  ):
    pass
  with pytest.raises(ValueError, match="nothing"), working("nothing://b/x", hold=free):
    pass
