"""VCRL: groups of high variance only, and prompts that had one are rolled out again from a bank.

A group is kept if the variance of its verdicts, over the largest that a group of its size can have, is at
least `first` in the first `steps` steps and `then` afterwards. Prompts of kept groups enter the bank; their
priority is a moving average of that share. As many prompts of the bank as groups were dropped in a step, the
ones of highest priority, take part in the next step beside prompts of the epoch. After `uses` such visits, or
one at which the variance is too low, a prompt leaves the bank.

Differs from the paper: the prompts of the bank are rolled out in the next step, on policy all the same, so
that a step is one call of the sampler; the bank has no capacity, since it is one number a prompt. How the
priority moves and when a prompt leaves are our reading. The bank hears of verdicts as right and wrong: a sum
of fractional ones counts as that many right ones. Give every prompt at least two rollouts: one alone has no
variance.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.control.ramp import stairs
from rlvr_jax.core import groups
from rlvr_jax.core.types import Array, PromptPosterior, Recipe
from rlvr_jax.posterior.beta import BetaState, beta
from rlvr_jax.posterior.verdicts import counts
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import top_k

PAPER = (
  "VCRL: Variance-based Curriculum Reinforcement Learning for Large Language Models",
  "arXiv 2509.19803",
)
STAGES = ("filter", "replay")
CHANGES = ("posterior", "select", "choose", "control")
EVIDENCE = "notes"


class Bank(flax.struct.PyTreeNode):
  beliefs: BetaState
  priority: Array  # float32 [M], 0: not in the bank
  uses: Array  # int32 [M], visits that it owes to the bank
  due: Array  # bool [M], takes part in the coming step
  step: Array  # int32 []


def vcrl(
  *,
  first: float = 0.3,
  then: float = 0.8,
  steps: int = 20,
  momentum: float = 0.9,
  uses: int = 2,
  **options,
) -> Recipe:
  """A rising threshold on the variance of groups, and a bank of prompts.

  Args:
    first, then: thresholds, in [0, 1]; 0 keeps every group.
    steps: how long the first one holds, at least 1.
    momentum: of priorities, in [0, 1].
    uses: visits from the bank after which a prompt leaves it; 0: no bank.
    **options: of `grpo`.
  """
  if not (0 <= first <= 1 and 0 <= then <= 1 and 0 <= momentum <= 1):
    raise ValueError(
      f"first, then and momentum must lie in [0, 1], got {first}, {then} and {momentum}"
    )
  if uses < 0:
    raise ValueError(f"uses must be at least 0, got {uses}")
  base = grpo(**options)
  model = beta()

  def init(table):
    m = len(table.length)
    zeros = lambda dtype: jnp.zeros(m, dtype)
    return Bank(
      model.init(table),
      zeros(jnp.float32),
      zeros(jnp.int32),
      zeros(bool),
      jnp.zeros((), jnp.int32),
    )

  def update(state, tally):
    trials, successes = counts(tally)
    visited, used = trials > 0, state.uses + ((trials > 0) & state.due)
    share = variance_share(successes, trials)
    passed = visited & (share >= jnp.where(state.step < steps, first, then) - 1e-6)
    old = state.priority
    moved = jnp.where(old > 0, momentum * old + (1 - momentum) * share, share)
    out = (used >= uses) | (state.due & visited & ~passed)
    priority = jnp.where(out, 0.0, jnp.where(passed, moved, old))
    dropped = (visited & ~passed).sum()
    return Bank(
      beliefs=model.update(state.beliefs, tally),
      priority=priority,
      uses=jnp.where(out, 0, used),
      due=highest(priority, dropped),
      step=state.step + 1,
    )

  def score(state, key, prompt_id, knobs):
    """Prompts that are due, above all others."""
    del key, knobs
    return state.due[prompt_id].astype(jnp.float32)

  def select(key, candidates, num, knobs):
    again = candidates.replace(visited=candidates.visited & (candidates.score <= 0))
    return top_k()(key, again, num, knobs)

  def choose(key, rows, knobs):
    del key
    share = group_variance_share(rows)
    return rows.valid & (share >= knobs["least_variance"] - 1e-6)[rows.group]

  return base._replace(
    posterior=PromptPosterior(init, update, lambda state, i: model.belief(state.beliefs, i), score),
    select=select,
    choose=choose,
    control=joined(
      base.control, stairs(knob="least_variance", values=(first, then), steps=(steps,))
    ),
  )


def variance_share(successes, trials):
  """k (n - k) over its largest value; 0 for fewer than two trials."""
  half = jnp.floor(trials / 2)
  return successes * (trials - successes) / jnp.maximum(half * (trials - half), 1.0)


def group_variance_share(rows):
  """float32 [N]: of each group, the same for verdicts in [0, 1], at most 1."""
  args = rows.group, rows.valid
  n = groups.count(*args)
  half = jnp.floor(n / 2)
  squares = groups.total(jnp.square(groups.centred(rows.correct, *args)), *args)
  return jnp.minimum(n * squares / jnp.maximum(half * (n - half), 1.0), 1.0)


def highest(priority, num):
  """bool [M]: the `num` (traced) highest of those above 0; of equals the first. Priorities are at least 0."""
  bits = jax.lax.bitcast_convert_type(priority, jnp.uint32)  # in the order of the floats

  def refine(i, threshold):
    higher = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    return jnp.where((bits >= higher).sum() >= num, higher, threshold)

  threshold = jax.lax.fori_loop(0, 32, refine, jnp.uint32(0))
  above, equal = bits > threshold, bits == threshold
  return (above | (equal & (jnp.cumsum(equal) <= num - above.sum()))) & (priority > 0)
