"""XRPO: rollouts where they narrow the confidence interval most, and more advantage to unlikely successes.

After the advantages, a right response gains

    min(novelty (1 - eta), kappa A),   eta = exp(its mean log-prob - the group's mean of these)

where that is positive; wrong ones keep theirs. Left out so far: solved examples put in front of prompts
whose rollouts all failed. The sizes of the phases, the level of the interval and the weight of exploration
are ours; where descriptions of the exploration term differ, the square root is taken.
"""

import jax.numpy as jnp

from rlvr_jax.allocate.confidence import confidence
from rlvr_jax.core import groups, masked
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation",
  "arXiv 2510.06672",
)
STAGES = ("control", "optimise")
CHANGES = ("allocate", "advantage")
EVIDENCE = "notes"


def xrpo(
  *,
  start: int = 4,
  phases: int = 2,
  level: float = 0.95,
  explore: float = 0.1,
  novelty: float = 2.5,
  kappa: float = 0.5,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Allocation by confidence, advantages by novelty.

  Args:
    start, phases, level, explore: of allocate.confidence.confidence.
    novelty: at least 0; 0: advantages stay.
    kappa: most that an advantage may grow by, as a share of itself; at least 0.
    ddof, **options: of `grpo`.
  """
  if novelty < 0 or kappa < 0:
    raise ValueError(f"novelty and kappa must be at least 0, got {novelty} and {kappa}")
  base = grpo(ddof=ddof, **options)

  def advantage(rows):
    a = base.advantage(rows)
    return a + bonus(rows, a, novelty, kappa)

  return base._replace(
    allocate=confidence(start=start, phases=phases, level=level, explore=explore),
    advantage=advantage,
  )


def bonus(rows, advantage, novelty: float, kappa: float):
  """float32 [N,T]: what right responses gain; 0 for the others and off the mask."""
  mask = rows.loss_mask
  mean = masked.mean(rows.behavior_logprobs, mask, 1)
  scored = mask.any(1)
  typical = groups.mean(jnp.where(scored, mean, 0.0), rows.group, scored)[rows.group]
  eta = jnp.exp(jnp.where(scored, mean - typical, 0.0))[:, None]
  more = jnp.minimum(jnp.maximum(novelty * (1 - eta), 0.0), kappa * jnp.maximum(advantage, 0.0))
  return jnp.where(mask & (rows.correct > 0.5)[:, None], more, 0.0)
