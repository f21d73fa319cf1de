"""sGPO: one profile before training says which prompts are used, how many rollouts each gets, and when.

A prompt that the initial policy solves with rate p gets the smallest group of `buckets` that is at least
1 / p; above `trivial` it is never used. Phases go through the buckets from the smallest: easy prompts, in
small groups, first. Each phase has the prompts of its own bucket, and a random part of the never solved ones,
in groups of the same size. The number of ROLLOUTS of a step stays: in groups of g there are
buckets[0] prompts / g prompts, so `prompts` of a config is the most there can be, and its budget is
buckets[0] times that. Batches are drawn at random from the phase's pool, without epochs. A prompt without a
profile (no trials) counts as learnable, in the largest bucket; so do all of them without a file. Empty phases
are left out. The tokens of the profile are not in the ledger of the run: add them to a comparison. Differs:
phases last a given number of steps; the paper trains each until nothing is gained.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.control.ramp import stairs
from rlvr_jax.core import lots, traits
from rlvr_jax.core import profile as profiles
from rlvr_jax.core.types import Allocator, Recipe, Selection
from rlvr_jax.recipes.grpo import grpo

PAPER = ("sGPO: Trading Inference FLOPs for Training Efficiency in RLVR", "arXiv 2606.08854")
STAGES = ("filter", "control")
CHANGES = ("select", "allocate", "control")
EVIDENCE = "notes"

TRIVIAL, LEARNABLE, UNSOLVED = range(3)


def sgpo(
  *,
  profile: str = "",
  trivial: float = 0.75,
  buckets: Sequence[int] = (2, 4, 8),
  unsolved: float = 0.1,
  phase_steps: int = 100,
  seed: int = 0,
  **options,
) -> Recipe:
  """Groups by the inverse of the solve rate, easy prompts first.

  Args:
    profile: an .npz file with arrays `successes` and `trials`, one number a prompt of the table, as
      `python -m launch.evaluate --profile` writes; empty: none.
    trivial: solve rate above which a prompt is never used.
    buckets: sizes of groups, rising.
    unsolved: share of the unsolved prompts in each phase, in [0, 1].
    phase_steps: updates of each phase but the last; at least 1.
    seed: of the draw of unsolved prompts.
    **options: of `grpo`.
  """
  if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] < 1:
    raise ValueError(f"buckets must rise and be at least 1, got {tuple(buckets)}")
  if not 0 <= unsolved <= 1:
    raise ValueError(f"unsolved must lie in [0, 1], got {unsolved}")
  if phase_steps < 1:
    raise ValueError(f"phase_steps must be at least 1, got {phase_steps}")
  pools, sizes = None, [buckets[-1]]
  if profile:
    kind, size = classes(*profiles.load(profile), trivial=trivial, buckets=buckets)
    sizes = [g for g in buckets if ((kind == LEARNABLE) & (size == g)).any()]
    if not sizes:
      raise ValueError(f"{profile} leaves no prompt to train on: all are trivial or unsolved")
    pools = np.stack([pool(kind, size, g, unsolved, seed) for g in sizes])
  base = grpo(**options)

  def select(key, candidates, num, knobs):
    allowed = ~candidates.taken
    if pools is not None:
      if pools.shape[1] != len(candidates.id):
        raise ValueError(f"{profile} has {pools.shape[1]} prompts, the table {len(candidates.id)}")
      allowed &= jnp.asarray(pools)[_phase(knobs)][candidates.id]
    order = jnp.where(allowed, lots.uniform(key, len(allowed)), -1.0)
    _, index = jax.lax.top_k(order, num)
    return Selection(index.astype(jnp.int32), allowed[index], jnp.zeros_like(allowed))

  if pools is not None:
    traits.declare(select, prompts=pools.shape[1])

  def plan(num_prompts, budget):
    need = buckets[0] * num_prompts
    if budget < need:
      raise ValueError(
        f"a budget of {budget} rows is less than {buckets[0]} for each of {num_prompts} prompts"
      )
    if need < sizes[-1]:
      raise ValueError(f"{need} rows do not hold one group of {sizes[-1]}: take more prompts")
    return (need,)

  def next_(state, round, width, knobs):
    size = jnp.asarray(sizes, jnp.int32)[_phase(knobs)]
    valid = round.prompts.valid
    served = valid & (jnp.cumsum(valid) <= width // size)
    return jnp.where(served, size, 0).astype(jnp.int32), state

  steps = [phase_steps] * (len(sizes) - 1)
  return base._replace(
    select=select,
    allocate=Allocator(plan=plan, init=lambda prompts, knobs: (), next=next_),
    control=stairs(base=base.control, values=range(len(sizes)), steps=steps),
  )


def classes(successes, trials, *, trivial: float, buckets: Sequence[int]):
  """(kind, size of group) int [M] of each prompt; the size is 0 where the kind is not LEARNABLE."""
  known = trials > 0
  p = np.where(known, successes / np.maximum(trials, 1), 0.0)
  kind = np.where(p > trivial, TRIVIAL, np.where(p == 0, UNSOLVED, LEARNABLE))
  kind = np.where(known, kind, LEARNABLE)
  ideal = np.where(p > 0, 1 / np.where(p > 0, p, 1.0), np.inf)
  place = np.searchsorted(np.asarray(buckets, float), ideal - 1e-9)
  size = np.asarray(buckets)[np.minimum(place, len(buckets) - 1)]
  return kind, np.where(kind == LEARNABLE, size, 0)


def pool(kind, size, phase: int, share: float, seed: int):
  """bool [M]: the learnable prompts of the phase's group size, and its part of the unsolved ones."""
  lost = np.flatnonzero(kind == UNSOLVED)
  drawn = np.random.default_rng([seed, phase]).permutation(lost)[: round(share * len(lost))]
  out = (kind == LEARNABLE) & (size == phase)
  out[drawn] = True
  return out


def _phase(knobs):
  return knobs["phase"].astype(jnp.int32)
