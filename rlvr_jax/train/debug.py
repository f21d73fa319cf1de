"""Ways to look for a fault: random rollouts, rollouts without learning, and a step kept to be run again.

A dump is the folder WORKDIR/dumps/<step>: the whole state before the step, what it trained on, and what came
of it. `train.loop.replay` runs the step again from it, and compares.
"""

import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import hosts, keys
from rlvr_jax.core.types import EOS, LENGTH, OPEN, Learner, Rows, RunState, Tally
from rlvr_jax.decode.decode import DecodeCounts
from rlvr_jax.train.checkpoint import Checkpointer
from rlvr_jax.train.collect import Batch
from rlvr_jax.train.mirror import local

DUMPS = "dumps"
_BATCH_FILE = "batch.npz"
_AFTER_FILE = "after.json"


def mock_rollout(*, median: float = 64.0, spread: float = 0.5):
  """A rollout that runs no model: uniform tokens, to test everything behind the sampler at full size.

  The length of a response is round(median * exp(spread * z)), z standard normal; one that does not reach the
  row's limit ends with the end token. Rows depend on their uid alone, as sampled ones do.

  Args:
    median: of the lengths, in tokens, > 0.
    spread: standard deviation of the logarithm of a length, >= 0.

  Raises:
    ValueError: if one is out of range.
  """
  if not median > 0 or not spread >= 0:
    raise ValueError(f"mock rollouts need median > 0 and spread >= 0, got {median} and {spread}")

  @jax.jit
  def grow(rows: Rows, vocab_logprob, version, eos_ids, vocab):
    def one(uid, places):
      key = jax.random.wrap_key_data(uid)
      z = jax.random.normal(keys.stream(key, "length"), (), jnp.float32)
      return z, jax.random.randint(keys.stream(key, "tokens"), (places,), 0, vocab, jnp.int32)

    t = rows.tokens.shape[1]
    z, drawn = jax.vmap(lambda uid: one(uid, t))(rows.uid)
    length = jnp.maximum(jnp.round(median * jnp.exp(spread * z)), 1.0).astype(jnp.int32)
    is_open = rows.valid & (rows.status == OPEN)
    end = jnp.where(is_open, jnp.minimum(rows.response_start + length, rows.limit), rows.length)
    place = jnp.arange(t, dtype=jnp.int32)[None]
    new = (place >= rows.length[:, None]) & (place < end[:, None])
    ends = end < rows.limit
    last = new & (place == end[:, None] - 1) & ends[:, None]
    # A token that happens to end a response would contradict the length.
    other = jnp.isin(drawn, eos_ids)
    drawn = jnp.where(other, (drawn + 1) % vocab, drawn)
    tokens = jnp.where(last, eos_ids[0], drawn)
    put = lambda value, old: jnp.where(new, value, old)
    made = new.sum(1)
    rows = rows.replace(
      tokens=put(tokens, rows.tokens),
      behavior_logprobs=put(vocab_logprob, rows.behavior_logprobs),
      full_logprobs=put(vocab_logprob, rows.full_logprobs),
      entropy=put(-vocab_logprob, rows.entropy),
      version=put(version, rows.version),
      response_mask=rows.response_mask | new,
      length=jnp.maximum(end, rows.length),
      status=jnp.where(is_open, jnp.where(ends, EOS, LENGTH), rows.status),
    )
    return rows, made

  def rollout(policy, params, rows, version, eos_ids, **sizes):
    vocab = policy.vocab_size
    vocab_logprob = jnp.asarray(-np.log(vocab), jnp.float32)
    rows, made = grow(rows, vocab_logprob, version, eos_ids, vocab)
    none = {f.name: jnp.zeros_like(made) for f in dataclasses.fields(DecodeCounts)}
    ticks = {"ticks": made.max(), "slot_ticks": made.sum()}
    return rows, DecodeCounts(**none | {"generated": made} | ticks)

  return rollout


def no_learning(learner: Learner, baseline, rows: Rows, *rest):
  """In the place of train.learn: the step counts, the parameters stay."""
  return learner.replace(step=learner.step + 1), baseline, {"finite": True}, {}


# --------------------------------------------------------------------------------------------------
# Dumps


def folder(workdir: str | os.PathLike, step: int) -> Path:
  return local(workdir) / DUMPS / str(step)


def dump_before(workdir: str | os.PathLike, state: RunState) -> None:
  """Keeps the state before a step, in the place of an older dump of it."""
  where = folder(workdir, int(state.learner.step))
  hosts.first(lambda: shutil.rmtree(where, ignore_errors=True))
  with Checkpointer(where, keep=1) as checkpoints:
    checkpoints.save(state)
    checkpoints.finish()


def dump_after(workdir: str | os.PathLike, step: int, batch: Batch, state: RunState) -> None:
  """Keeps what the step trained on, and what it came to."""
  arrays = _flat(batch.rows, batch.tally)
  epoch = int(hosts.host(state.collector.epoch))
  after = {"epoch": epoch, "batch": _digest(arrays), "learner": digest(state)}
  if hosts.is_first():
    np.savez(folder(workdir, step) / _BATCH_FILE, **arrays)
    text = json.dumps(after, indent=2) + "\n"
    (folder(workdir, step) / _AFTER_FILE).write_text(text)


def read_dump(workdir: str | os.PathLike, step: int, like: RunState):
  """(state before the step, its batch, what it came to).

  Raises:
    ValueError: if there is no dump of that step, or one of another run.
  """
  where = folder(workdir, step)
  if not (where / _AFTER_FILE).exists():
    raise ValueError(f"there is no dump of step {step} in {where.parent}; --dump={step} writes one")
  with Checkpointer(where, keep=1) as checkpoints:
    state = checkpoints.restore(like)
  after: dict[str, Any] = json.loads((where / _AFTER_FILE).read_text())
  with np.load(where / _BATCH_FILE) as file:
    arrays = dict(file)
  if _digest(arrays) != after["batch"]:
    raise ValueError(f"{where / _BATCH_FILE} is not the batch that {_AFTER_FILE} speaks of")
  part = lambda prefix: {
    k.removeprefix(prefix): jnp.asarray(v) for k, v in arrays.items() if k.startswith(prefix)
  }
  extras = part("extras/")
  batch = Batch(Rows(**part("rows/"), extras=extras), Tally(**part("tally/")), {}, [])
  return state, batch, after


def digest(state: RunState) -> str:
  """Of everything that a step learns: parameters, optimizer, controllers."""
  leaves = jax.tree_util.tree_leaves_with_path((state.learner, state.baseline))
  return _digest({jax.tree_util.keystr(path): np.asarray(hosts.host(x)) for path, x in leaves})


def batch_digest(batch: Batch) -> str:
  return _digest(_flat(batch.rows, batch.tally))


def _flat(rows: Rows, tally: Tally) -> dict[str, Any]:
  rows, tally = hosts.host((rows, tally))
  fields = {f"rows/{k}": v for k, v in vars(rows).items() if k != "extras"}
  fields |= {f"extras/{k}": v for k, v in rows.extras.items()}
  return {
    k: np.asarray(v)
    for k, v in (fields | {f"tally/{k}": v for k, v in vars(tally).items()}).items()
  }


def _digest(arrays: dict[str, np.ndarray]) -> str:
  total = hashlib.sha256()
  for name in sorted(arrays):
    value = np.ascontiguousarray(arrays[name])
    total.update(f"{name} {value.dtype} {value.shape} ".encode() + value.tobytes())
  return total.hexdigest()
