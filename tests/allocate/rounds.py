"""Rounds for tests of allocators."""

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Belief, Prompts, Round


def a_round(mean, *, wave=0, verdicts=None, valid=None, score=None, tokens=None, room=0):
  """A round of B prompts with beliefs `mean` and, for each, a list of verdicts so far."""
  num = len(mean)
  i = jnp.arange(num, dtype=jnp.int32)
  mean = jnp.asarray(mean, jnp.float32)
  belief = Belief(
    mean=mean,
    variance=mean * (1 - mean) / 3,
    evidence=jnp.full(num, 2.0),
    tokens=None if tokens is None else jnp.asarray(tokens, jnp.float32),
  )
  score = jnp.ones(num) if score is None else jnp.asarray(score, jnp.float32)
  there = jnp.ones(num, bool) if valid is None else jnp.asarray(valid)
  prompts = Prompts(i, i[:, None], i + 1, i, score, belief, there)
  flat = [(b, v) for b, some in enumerate(verdicts or []) for v in some]
  rows = rows_lib.blank(max(len(flat) + room, 1), 2)
  if flat:
    n = len(flat)
    group, correct = np.zeros(n + room, np.int32), np.zeros(n + room, np.float32)
    group[:n], correct[:n] = zip(*flat)
    uid = jnp.stack([jnp.arange(n + room, dtype=jnp.uint32)] * 2, 1)
    rows = rows.replace(
      group=jnp.asarray(group),
      correct=jnp.asarray(correct),
      reward=jnp.asarray(correct),
      valid=jnp.arange(n + room) < n,
      uid=uid,
    )
  return Round(prompts, rows, jnp.asarray(wave, jnp.int32), jnp.zeros((), jnp.int32))


def counts(allocator, round, width, knobs=None):
  """What the allocator gives each prompt, as a list."""
  step = lambda round, knobs: allocator.next(
    allocator.init(round.prompts, knobs), round, width, knobs
  )
  return jax.jit(step)(round, knobs or {})[0].tolist()
