"""Spark: rollouts that branch where the agent itself says that it should explore, under a budget of leaves.

A share of a prompt's rows begins; after every step a row that is flagged goes on in several ways, as long
as there are rows left, each drawn from the same history. Then GRPO over the leaves: a token that leaves
share counts once in each, so it gets the sum of their advantages.

Here a step is `stride` tokens, for there is no environment. The flag is a pair of tags inside the step, as
in the paper, where the tokens of the tags are given; else it is the alternative of the authors' code: the
chance clip(0.5 + 0.5 (H - H_first), 0, 1), H the mean entropy of the step over the log of the vocabulary,
H_first that of the row's first step. Their code fills up to the budget with copies of leaves; here unused
rows stay out. The cold start by fine-tuning on tagged trajectories is not part of this.
"""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups, keys, masked
from rlvr_jax.core.types import OPEN, Recipe, places
from rlvr_jax.decode import tree as engine
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.tree import tree

PAPER = (
  "Spark: Strategic Policy-Aware Exploration via Dynamic Branching for Long-Horizon Agentic Learning",
  "arXiv 2601.20209",
)
STAGES = ("generate",)
CHANGES = ("rollout",)
EVIDENCE = "code"


def spark(
  *,
  roots: float = 0.5,
  branch: int = 2,
  stride: int = 16,
  open_tag: Sequence[int] = (),
  close_tag: Sequence[int] = (),
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Forks on a signal, under a leaf budget.

  Args:
    roots: share of a prompt's rows that begin, rounded up (the paper: 4 of 8); 1: none ever forks.
    branch: rows that a flagged row becomes, itself included.
    stride: tokens of a step.
    open_tag, close_tag: token ids; empty: the entropy signal.
    slots, top_k, top_p, min_p: of rollout.tree.tree. Every row needs a slot.
    ddof: of the advantage.
    **options: of `grpo`.
  """
  if not 0 < roots <= 1 or branch < 2 or stride < 1:
    raise ValueError(
      f"roots must lie in (0, 1], branch be at least 2, stride at least 1: {roots}, {branch}, {stride}"
    )
  if bool(open_tag) != bool(close_tag):
    raise ValueError("tags come in pairs: give both open_tag and close_tag, or neither")
  tags = tuple(open_tag), tuple(close_tag)
  plan = functools.cache(functools.partial(signalled, roots, branch, stride, tags))

  def rollout(policy, *args, **rest):
    grow = tree(plan(policy.vocab_size), slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)
    return grow(policy, *args, **rest)

  return grpo(ddof=ddof, **options)._replace(rollout=rollout)


def signalled(roots: float, branch: int, stride: int, tags, vocab_size: int) -> engine.Plan:
  """The plan: after each `stride` tokens, rows that are flagged fork now; the oldest row asks first."""

  def init(rows, version):
    del version
    size = groups.count(rows.group, rows.valid)[rows.group]
    begins = groups.rank(rows.group, rows.valid) < jnp.ceil(roots * size)
    return rows, begins, jnp.zeros_like(rows.length)

  def due(rows, decided):
    ended = (rows.response_length > 0) & (rows.response_length % stride == 0)
    return rows.valid & (rows.status == OPEN) & ended & (decided != rows.length)

  def decide(rows, decided):
    here = due(rows, decided)
    step = places(rows.tokens) >= (rows.length - stride)[:, None]
    if tags[0]:
      flagged = holds_pair(jnp.where(step, rows.tokens, -1), *tags)
    else:
      inside = rows.response_mask & (places(rows.tokens) < rows.length[:, None])
      first = inside & (places(rows.tokens) < (rows.response_start + stride)[:, None])
      mean = lambda mask: masked.mean(rows.entropy, mask, 1) / math.log(vocab_size)
      chance = jnp.clip(0.5 + 0.5 * (mean(inside & step) - mean(first)), 0.0, 1.0)
      flagged = _uniform(rows.uid, rows.length) < chance
    at = jnp.where(here & flagged, rows.length, -1)
    forks = engine.Forks(jnp.broadcast_to(at[:, None], (len(at), branch - 1)))
    return rows, jnp.where(here, rows.length, decided), forks

  return engine.Plan(
    init=init,
    pause=lambda rows, decided: due(rows, decided).any(),
    branch=decide,
    by_rank=False,
    lockstep=True,
  )


def holds_pair(tokens, first: Sequence[int], second: Sequence[int]):
  """bool [N]: tokens [N,T] hold the ids `first`, and somewhere behind them `second`."""
  num = tokens.shape[1]

  def begins(ids):
    padded = jnp.pad(tokens, ((0, 0), (0, len(ids))), constant_values=-1)
    return jnp.stack([padded[:, i : i + num] == x for i, x in enumerate(ids)]).all(0)

  opened = jnp.cumsum(begins(first), 1)
  opened = jnp.pad(opened, ((0, 0), (len(first), 0)))[:, :num]  # complete before this place
  return (begins(second) & (opened > 0)).any(1)


def _uniform(uid, place):
  """float32 [N], by the row and the place alone, apart from what draws the token there."""

  def one(data, place):
    return jax.random.uniform(keys.stream(jax.random.wrap_key_data(data), "flag", place))

  return jax.vmap(one)(uid, place)
