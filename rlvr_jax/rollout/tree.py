"""Rows that fork: the rows given to a prompt are the leaves of its trees."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import OPEN, places
from rlvr_jax.decode import logits
from rlvr_jax.decode import tree as engine


def tree(
  plan: engine.Plan, *, slots: int = 0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
):
  """Grows trees as a plan says.

  Args:
    plan: `schedule`, `late`, or one of your own, see decode.tree.Plan.
    slots: rows decoded at a time; 0 means all of them.
    top_k, top_p, min_p: what may be sampled, see decode.logits.

  Returns:
    rollout, as rollout.linear.linear. Rows that became no leaf come back not valid.
  """
  rule = logits.truncation(top_k=top_k, top_p=top_p, min_p=min_p)
  if slots < 0:
    raise ValueError(f"slots must be at least 0 (0: one for every row), got {slots}")

  def rollout(policy, params, rows, version, eos_ids, *, num_contexts, prompt_places, stops=None):
    rows, counts, _ = engine.grow(
      policy,
      params,
      rows,
      plan,
      version=version,
      eos_ids=eos_ids,
      slots=slots or len(rows.status),
      num_contexts=num_contexts,
      prompt_places=prompt_places,
      rule=rule,
      stops=stops,
    )
    return rows, counts

  return rollout


def schedule(splits=(0.25, 0.5, 0.75), *, children: int = 2, expected: int = 0) -> engine.Plan:
  """Every row becomes `children` rows at fixed places; it goes on as one of them.

  A prompt needs a multiple of children ** len(splits) rows: each of so many is one tree. A row that ends
  before a split does not fork there, and the rows that its children would have been stay unused.

  Args:
    splits: shares of `expected` response tokens after which rows fork, ascending in (0, 1); at least one
      token is shared.
    children: rows that a row becomes, itself included.
    expected: response tokens; 0: as many as a row may get.

  Raises:
    ValueError: here for splits out of order, in a rollout if a prompt has too few rows.
  """
  splits = tuple(float(x) for x in splits)
  if not splits or list(splits) != sorted(set(splits)) or not 0 < splits[0] <= splits[-1] < 1:
    raise ValueError(f"splits must ascend inside (0, 1), got {splits}")
  if children < 2 or expected < 0:
    raise ValueError(
      f"children must be at least 2, expected at least 0, got {children}, {expected}"
    )
  leaves = children ** len(splits)

  def init(rows, version):
    del version
    return rows, groups.rank(rows.group, rows.valid) % leaves == 0, jnp.zeros_like(rows.length)

  def due(rows, decided):
    total = jnp.full_like(rows.limit, expected) if expected else rows.limit - rows.response_start
    share = jnp.floor(total[:, None] * jnp.asarray(splits, jnp.float32)[None]).astype(jnp.int32)
    here = (jnp.maximum(share, 1) == rows.response_length[:, None]).any(1)
    return rows.valid & (rows.status == OPEN) & here & (decided != rows.length)

  def branch(rows, decided):
    forks = due(rows, decided)
    at = jnp.where(forks, rows.length, -1)
    at = jnp.broadcast_to(at[:, None], (len(at), children - 1))
    return rows, jnp.where(forks, rows.length, decided), engine.Forks(at)

  return engine.Plan(
    init=init, pause=lambda rows, decided: due(rows, decided).any(), branch=branch, spare=False
  )


def late(forks: int = 1, *, begin: float = 0.5) -> engine.Plan:
  """Rows that have ended fork where their entropy was highest, in their later part.

  Of forks + 1 rows of a prompt one is drawn to its end; it then forks `forks` times, each at another place,
  and the children are drawn to their ends. A row too short for that forks less often.

  Args:
    forks: of a finished row, at least 1.
    begin: share of the response before which there is no fork, in [0, 1).
  """
  if forks < 1 or not 0 <= begin < 1:
    raise ValueError(f"forks must be at least 1 and begin in [0, 1), got {forks} and {begin}")

  def init(rows, version):
    del version
    return rows, groups.rank(rows.group, rows.valid) % (forks + 1) == 0, rows.valid & False

  def branch(rows, done):
    first = jnp.maximum(jnp.ceil(begin * rows.response_length).astype(jnp.int32), 1)
    here = places(rows.tokens)
    inside = (here >= (rows.response_start + first)[:, None]) & (here < rows.length[:, None])
    score = jnp.where(inside & (rows.valid & ~done)[:, None], rows.entropy, -1.0)
    top, at = jax.lax.top_k(score, min(forks, score.shape[1]))
    at = jnp.where(top >= 0, at, -1).astype(jnp.int32)
    return rows, jnp.ones_like(done), engine.Forks(at)

  never = lambda rows, done: jnp.zeros((), bool)
  return engine.Plan(init=init, pause=never, branch=branch)
