"""Values of prompts that serve as baselines: one number a prompt, kept over the run.

Each is read, as rows.prior, before the verdicts of the step are learned from.
"""

from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import traits
from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts


class TrackerState(flax.struct.PyTreeNode):
  successes: Array  # float32 [M], discounted, the pseudo-count included
  failures: Array  # float32 [M]


def forgetting(kl, *, least: float = 0.875, most: float = 0.96, target: float = 0.06):
  """How much of the old evidence a verdict leaves, by how far the policy moves in a step.

      most - min(kl / target, 1) (most - least)

  Args:
    kl: mean KL divergence of a step, a token, in nats.

  Source: MSSR, arXiv 2512.18215 (the form that falls with kl; another one is printed too).
  """
  return most - jnp.clip(kl / target, 0.0, 1.0) * (most - least)


def tracker(
  *, keep: float = 0.96, initial: float | Sequence[float] = 0.5, strength: float = 8.0
) -> BeliefModel:
  """A Beta value of each prompt that forgets, its initial guess as well.

      for each verdict o:   a <- keep a + o,   b <- keep b + (1 - o),   value = a / (a + b)

  Several verdicts of one prompt in a step have no order: each is taken to be their mean. A prompt that is
  not rolled out keeps its value. The memory is about 1 / (1 - keep) verdicts.

  Args:
    keep: in (0, 1]; see `forgetting`.
    initial: value before any verdict, one number or one a prompt; held within [0.05, 0.95].
    strength: verdicts that the initial value counts for; positive.

  Source: MSSR, arXiv 2512.18215; arXiv 2509.13232.
  """
  if not 0 < keep <= 1:
    raise ValueError(f"keep must lie in (0, 1], got {keep}")
  if strength <= 0:
    raise ValueError(f"strength must be positive, got {strength}")
  start = np.clip(np.asarray(initial, np.float32), 0.05, 0.95)

  def init(table):
    num_prompts = len(table.length)
    if start.ndim and start.shape != (num_prompts,):
      raise ValueError(f"initial has {start.size} values, the table {num_prompts} prompts")
    a = jnp.broadcast_to(jnp.asarray(strength * start, jnp.float32), (num_prompts,))
    return TrackerState(a, strength - a)

  def update(state, tally):
    n, s = counts(tally)
    left = keep**n
    # Sum of keep^0 ... keep^(n-1), shared out by the verdicts' mean.
    each = (1 - left) / (1 - keep) / jnp.maximum(n, 1.0) if keep < 1 else jnp.ones_like(n)
    return TrackerState(left * state.successes + each * s, left * state.failures + each * (n - s))

  def belief(state, prompt_id):
    a, b = state.successes[prompt_id], state.failures[prompt_id]
    n = a + b
    return Belief(mean=a / n, variance=a * b / (n * n * (n + 1)), evidence=n)

  return BeliefModel(init, update, belief)


class AverageState(flax.struct.PyTreeNode):
  mean: Array  # float32 [M]
  visits: Array  # int32 [M]


def average(*, keep: float = 0.9) -> BeliefModel:
  """A moving average of the share of right rollouts, visit by visit; 0 for a prompt never visited.

      mean <- keep mean + (1 - keep) share,     the first visit sets it to its share

  Args:
    keep: in [0, 1).
  """
  if not 0 <= keep < 1:
    raise ValueError(f"keep must lie in [0, 1), got {keep}")

  def init(table):
    num_prompts = len(table.length)
    return AverageState(jnp.zeros(num_prompts, jnp.float32), jnp.zeros(num_prompts, jnp.int32))

  def update(state, tally):
    trials, successes = counts(tally)
    share = successes / jnp.maximum(trials, 1.0)
    moved = jnp.where(state.visits > 0, keep * state.mean + (1 - keep) * share, share)
    visited = trials > 0
    return AverageState(jnp.where(visited, moved, state.mean), state.visits + visited)

  def belief(state, prompt_id):
    mean, visits = state.mean[prompt_id], state.visits[prompt_id].astype(jnp.float32)
    return Belief(mean=mean, variance=mean * (1 - mean) / (visits + 1), evidence=visits)

  return BeliefModel(init, update, belief)


class AnchorState(flax.struct.PyTreeNode):
  trials: Array  # float32 [M], of the reference
  successes: Array  # float32 [M]
  visits: Array  # int32 [M], since the reference was made


def anchor(*, successes=None, trials=None, refresh: int = 0) -> BeliefModel:
  """The solve rate that a reference policy had, which stays while the policy moves on.

  A prompt without a reference is NaN; the verdicts of its next visit become its reference.

  Args:
    successes, trials: verdicts of a reference policy, one number a prompt; None: no prompt has any yet.
    refresh: visits after which the verdicts of the next one become the new reference; 0: never.

  Source: PVPO, arXiv 2508.21104.
  """
  if (successes is None) != (trials is None):
    raise ValueError("give both successes and trials of the reference, or neither")
  if refresh < 0:
    raise ValueError(f"refresh must be at least 0 (0: never), got {refresh}")
  given = None if trials is None else np.array([trials, successes], np.float32)
  if given is not None and not ((given[1] >= 0) & (given[1] <= given[0])).all():
    raise ValueError("successes must lie between 0 and trials")

  def init(table):
    num_prompts = len(table.length)
    counts = jnp.zeros((2, num_prompts), jnp.float32) if given is None else jnp.asarray(given)
    if counts.shape != (2, num_prompts):
      raise ValueError(f"the reference has {counts.shape[1]} prompts, the table {num_prompts}")
    return AnchorState(counts[0], counts[1], jnp.zeros(num_prompts, jnp.int32))

  if given is not None:
    traits.declare(init, prompts=given.shape[1])

  def update(state, tally):
    trials, successes = counts(tally)
    visited = trials > 0
    old = (state.visits >= refresh) if refresh else jnp.zeros_like(visited)
    renew = visited & (old | (state.trials == 0))
    return AnchorState(
      jnp.where(renew, trials, state.trials),
      jnp.where(renew, successes, state.successes),
      jnp.where(renew, 0, state.visits + visited),
    )

  def belief(state, prompt_id):
    n, s = state.trials[prompt_id], state.successes[prompt_id]
    mean = jnp.where(n > 0, s / jnp.maximum(n, 1.0), jnp.nan)
    return Belief(mean=mean, variance=mean * (1 - mean) / (n + 1), evidence=n)

  return BeliefModel(init, update, belief)
