"""The whole RunState in one orbax checkpoint: saved in the background, restored onto any shardings."""

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rlvr_jax.core import hosts
from rlvr_jax.core.types import RunState
from rlvr_jax.train.config import CHECKPOINTS, Config, from_json, refuse_another, to_json
from rlvr_jax.train.mirror import Mirror, local

_BEST_FILE = "best.json"
_TEMPORARY = "orbax-checkpoint-tmp"  # in the names of what orbax has not finished
_REMOVED = ".removed"  # ends the names of what is being deleted
_DAMAGED = ".damaged"  # ends the names of what could not be read


class Mismatch(ValueError):
  """A checkpoint that is whole, and belongs to another run."""


class Checkpointer:
  """Keeps the newest checkpoints of a run, and the best, in workdir/checkpoints.

  A checkpoint is complete or absent: orbax writes to a temporary folder and renames it. Older ones go
  once a newer one is complete.
  """

  def __init__(
    self,
    workdir: str | os.PathLike,
    *,
    keep: int,
    config: Config | None = None,
    mirror: Mirror | None = None,
  ):
    """Opens the folder, and clears away what a process that was killed has left half done.

    Args:
      workdir: the run's folder, which no other process writes to.
      keep: how many of the newest are kept, at least 1.
      config: of the run; saved along, and compared before anything is restored.
      mirror: of the workdir; copies each checkpoint that is complete.
    """
    self._folder = (local(workdir) / CHECKPOINTS).resolve()
    self._keep, self._config, self._mirror = keep, config, mirror
    self._saving: int | None = None
    self._best: dict[str, Any] | None = None  # of the last evaluation that was the best so far
    hosts.first(self._clear)
    self._manager = self._open()

  def _clear(self) -> None:
    for path in self._folder.iterdir() if self._folder.exists() else ():
      if _TEMPORARY in path.name or path.name.endswith(_REMOVED):
        shutil.rmtree(path) if path.is_dir() else path.unlink()

  def _open(self) -> ocp.CheckpointManager:
    # Without the handler, a manager that has saved nothing itself cannot read what there is.
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(create=True),
      item_handlers=ocp.StandardCheckpointHandler(),
    )

  def latest(self) -> int | None:
    """Step of the newest checkpoint; one that is still being written counts."""
    return self._manager.latest_step()

  # ------------------------------------------------------------------------------------------------
  # Saving

  def save(self, state: RunState) -> None:
    """Begins to save the state under its step, unless that is saved already; waits for the save before.

    What happens to the state afterwards makes no difference: orbax has read it by then or, on CPUs, holds
    views of it, and JAX does not give memory that is viewed to the next update. A save that fails, now or
    later, is printed, and the checkpoints there are stay; `finish` raises it.
    """
    step = int(state.learner.step)
    self._settle()
    if step in self._manager.all_steps():
      return
    meta = None if self._config is None else {"config": json.loads(to_json(self._config))}
    try:
      args: Any = ocp.args.StandardSave(state)
      self._manager.save(step, args=args, custom_metadata=meta, force=True)
    except Exception as error:
      self._saving = step
      self._failed(error)
    else:
      self._saving = step

  def poll(self) -> None:
    """Has a checkpoint copied to the mirror once it is complete: before the next one is due."""
    mirror = self._mirror
    if mirror is None or mirror.busy() or self._saving is None:
      return
    if not self._manager.is_saving_in_progress():
      self._settle()

  def finish(self) -> None:
    """Waits for the save that was begun.

    Raises:
      OSError: if it could not be written; says which checkpoint is the newest.
    """
    if error := self._settle():
      raise OSError(error)

  def _settle(self) -> str | None:
    """Waits, then removes what is no longer kept. Returns what went wrong, which is printed too."""
    if self._saving is None:
      return None
    try:
      self._manager.wait_until_finished()
    except Exception as error:
      return self._failed(error)
    step, self._saving = self._saving, None
    if self._best and self._best["step"] == step:
      hosts.first(lambda: _write(self._folder / _BEST_FILE, json.dumps(self._best) + "\n"))
    self._tidy()
    return None

  def _tidy(self) -> None:
    if self._mirror is not None:
      self._mirror.settle()  # it may be copying what is removed now
    self._prune()
    if self._mirror is not None:
      self._mirror.push()

  def _failed(self, error: Exception) -> str:
    if jax.process_count() > 1:  # the others do not know, and wait
      raise error
    step, self._saving = self._saving, None
    self._manager = self._open()  # the old one counts the step among those that are there
    good = self.latest()
    there = f"the newest is of step {good}" if good is not None else "there is none yet"
    text = f"the checkpoint of step {step} could not be written; {there}: {_line(error)}"
    print(f"WARNING: {text}", flush=True)
    self._clear()  # half a checkpoint may be what fills the disk
    return text

  def _prune(self) -> None:
    steps = sorted(self._manager.all_steps())
    best = (self.best() or {}).get("step")
    old = [step for step in steps[: -self._keep] if step != best]

    def remove():
      for step in old:
        path = self._folder / f"{step}{_REMOVED}"
        (self._folder / str(step)).rename(path)  # so that half of one never has the name of a whole
        shutil.rmtree(path)

    if old:
      hosts.first(remove)
      self._manager.reload()

  # ------------------------------------------------------------------------------------------------
  # The best

  def best(self) -> dict[str, Any] | None:
    """{"step", "metric", "value"} of the checkpoint that is kept for its evaluation."""
    file = self._folder / _BEST_FILE
    try:
      found = json.loads(file.read_text()) if file.exists() else None
    except ValueError as error:
      print(f"WARNING: {file} is damaged, the best so far is not known: {_line(error)}", flush=True)
      return None
    return found if found and found["step"] in self._manager.all_steps() else None

  def offer(self, state: RunState, metric: str, value: float) -> None:
    """Saves the state, and keeps it as the best, if the metric is higher than that of the best so far."""
    best = self._best or self.best()
    if best and best["metric"] == metric and best["value"] >= value:
      return
    step = int(state.learner.step)
    self._settle()
    self._best = {"step": step, "metric": metric, "value": float(value)}
    if step in self._manager.all_steps():
      hosts.first(lambda: _write(self._folder / _BEST_FILE, json.dumps(self._best) + "\n"))
      self._tidy()
    else:
      self.save(state)

  # ------------------------------------------------------------------------------------------------
  # Restoring

  def restore(self, like: RunState) -> RunState:
    """The newest state that can be read. One that cannot is left out aloud, and set aside.

    Args:
      like: a state of the same structure; its arrays name shapes, dtypes and the shardings wanted.

    Raises:
      Mismatch: if what was saved has another config, other shapes or types; orbax would cast them silently.
      ValueError: if there is none, or none that can be read.
    """
    self._settle()
    damaged: list[int] = []
    for step in sorted(self._manager.all_steps(), reverse=True):
      try:
        restored = self._read(step, like)
      except Mismatch:
        raise
      except Exception as error:
        print(f"WARNING: checkpoint {step} is damaged: {_line(error)}", flush=True)
        damaged.append(step)
      else:
        self._set_aside(damaged)
        return restored
    if damaged:
      raise ValueError(
        f"no checkpoint in {self._folder} can be read; bring one back, or move the folder away to begin anew"
      )
    raise ValueError("there is no checkpoint to restore")

  def _set_aside(self, steps: list[int]) -> None:
    def move():
      for step in steps:
        name = f"{step}{_DAMAGED}"
        if (self._folder / name).exists():
          shutil.rmtree(self._folder / name)
        (self._folder / str(step)).rename(self._folder / name)

    if steps:
      hosts.first(move)
      self._manager.reload()

  def _read(self, step: int, like: RunState) -> RunState:
    meta = self._manager.metadata(step)
    custom: Any = meta.custom_metadata or {}
    if self._config is not None and "config" in custom:
      try:
        refuse_another(from_json(json.dumps(custom["config"])), self._config, f"checkpoint {step}")
      except ValueError as error:
        raise Mismatch(str(error)) from error
    saved = _leaves(meta.item_metadata)
    if not saved:
      raise ValueError("it does not say what it holds")
    _check(step, saved, _leaves(like))
    template = jax.tree.map(_template, like)
    args: Any = ocp.args.StandardRestore(template)
    restored: Any = self._manager.restore(step, args=args)
    if not np.array_equal(restored.frozen, like.frozen):
      raise Mismatch(
        f"checkpoint {step} was trained on other frozen weights than the policy has now; "
        "give the policy it was made with"
      )
    return restored

  def close(self) -> None:
    self._settle()
    self._manager.close()

  def __enter__(self) -> "Checkpointer":
    return self

  def __exit__(self, *_) -> None:
    self.close()


class Due:
  """Says when it is time for a checkpoint: every so many steps, or minutes."""

  def __init__(self, *, steps: int, minutes: float):
    """Args: steps, minutes between checkpoints; 0 for never."""
    self._steps, self._seconds = steps, 60 * minutes
    self._last = time.monotonic()

  def __call__(self, done: int) -> bool:
    """Whether it is time, after `done` steps."""
    now = time.monotonic()
    late = self._seconds > 0 and now - self._last >= self._seconds
    if late or (self._steps > 0 and done % self._steps == 0):
      self._last = now
      return True
    return False


def _check(step: int, saved: dict[str, Any], wanted: dict[str, Any]) -> None:
  if set(saved) != set(wanted):
    some = sorted(set(saved) ^ set(wanted))[:4]
    raise Mismatch(
      f"checkpoint {step} has other contents than this run, e.g. {', '.join(some)}; "
      "use another workdir"
    )
  for name, want in wanted.items():
    have = saved[name]
    if tuple(have.shape) != tuple(want.shape) or np.dtype(have.dtype) != np.dtype(want.dtype):
      raise Mismatch(
        f"checkpoint {step}: {name} is {have.dtype}{list(have.shape)}, this run needs "
        f"{want.dtype}{list(want.shape)}; use another workdir"
      )


def _leaves(tree: Any) -> dict[str, Any]:
  """Leaves by path, whatever the containers are called: orbax gives dicts back for dataclasses."""
  leaves = jax.tree_util.tree_leaves_with_path(
    tree, is_leaf=lambda x: hasattr(x, "shape") and hasattr(x, "dtype")
  )
  return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _template(x):
  """numpy stays numpy: an int64 leaf read through a JAX template would come back as int32."""
  if isinstance(x, np.ndarray):
    return np.empty_like(x)
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)


def _write(path: Path, text: str) -> None:
  temporary = path.with_name(f"{path.name}.{_TEMPORARY}")
  temporary.write_text(text)
  temporary.replace(path)


def _line(error: Exception) -> str:
  return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
