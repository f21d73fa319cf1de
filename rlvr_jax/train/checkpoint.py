"""The whole RunState in one orbax checkpoint: save, and restore onto the shardings wanted now."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from rlvr_jax.core.types import RunState
from rlvr_jax.train.config import CHECKPOINTS


class Checkpointer:
  """Keeps the newest checkpoints of a run in workdir/checkpoints.

  A checkpoint is complete or absent: orbax writes to a temporary folder and renames it, and only then
  removes the oldest.
  """

  def __init__(self, workdir: str | os.PathLike, *, keep: int):
    """Args: workdir, the run's folder; keep, how many checkpoints, at least 1."""
    options = ocp.CheckpointManagerOptions(
      max_to_keep=keep, create=True, enable_async_checkpointing=False
    )
    # Without the handler, a manager that has saved nothing itself cannot read what there is.
    self._manager = ocp.CheckpointManager(
      (Path(workdir) / CHECKPOINTS).absolute(),
      options=options,
      item_handlers=ocp.StandardCheckpointHandler(),
    )

  def latest(self) -> int | None:
    """Step of the newest complete checkpoint."""
    return self._manager.latest_step()

  def save(self, state: RunState) -> None:
    """Saves the state under its step, unless that is saved already."""
    step = int(state.learner.step)
    if step not in self._manager.all_steps():
      self._manager.save(step, args=ocp.args.StandardSave(state))

  def restore(self, like: RunState) -> RunState:
    """The newest state.

    Args:
      like: a state of the same structure; its arrays name shapes, dtypes and the shardings wanted.

    Raises:
      ValueError: if what was saved has other shapes or types. orbax would cast them silently.
    """
    step = self._manager.latest_step()
    if step is None:
      raise ValueError("there is no checkpoint to restore")
    self._check(step, like)
    template = jax.tree.map(_template, like)
    restored: Any = self._manager.restore(step, args=ocp.args.StandardRestore(template))
    if not np.array_equal(restored.frozen, like.frozen):
      raise ValueError(
        f"checkpoint {step} was trained on other frozen weights than the policy has now; "
        "give the policy it was made with"
      )
    return restored

  def _check(self, step: int, like: RunState) -> None:
    saved = _leaves(self._manager.item_metadata(step))
    wanted = _leaves(like)
    if set(saved) != set(wanted):
      some = sorted(set(saved) ^ set(wanted))[:4]
      raise ValueError(
        f"checkpoint {step} has other contents than this run, e.g. {', '.join(some)}; "
        "use another workdir"
      )
    for name, want in wanted.items():
      have = saved[name]
      if tuple(have.shape) != tuple(want.shape) or np.dtype(have.dtype) != np.dtype(want.dtype):
        raise ValueError(
          f"checkpoint {step}: {name} is {have.dtype}{list(have.shape)}, this run needs "
          f"{want.dtype}{list(want.shape)}; use another workdir"
        )

  def close(self) -> None:
    self._manager.close()

  def __enter__(self) -> "Checkpointer":
    return self

  def __exit__(self, *_) -> None:
    self.close()


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
