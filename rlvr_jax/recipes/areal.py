"""AReaL: rollouts and updates at the same time, with tokens of bounded age and a loss of three log-probs.

A batch is collected while the learner is at the one before. A rollout that is interrupted goes on with the
new parameters, its prefix computed anew under them, so that one response may be of several versions; every
token keeps the version and the log-prob it was sampled with. The loss clips the ratio to the policy before
the update and weighs it with the distance of that policy to the one that sampled. Differs from the paper:
a stopping rule for groups takes the place of a fleet that never stops (schedule.simulate.pipeline is a model
of that one), and the bound holds for every token: groups that would be too old in the next batch are rolled
out to their end in this one. A batch has all groups that are done, at least `groups`; there is no
interpolated proximal policy.
"""

import math

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import anchors, bounds, modes, ratio
from rlvr_jax.recipes.april import over_provisioned
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.partial import partial
from rlvr_jax.schedule.bounded_staleness import bounded_staleness

PAPER = (
  "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
  "arXiv 2505.24298",
)
STAGES = ("generate", "replay", "optimise")
CHANGES = (
  "allocate", "rollout", "choose", "replay", "objective", "annotate", "schedule",
)  # fmt: skip


def areal(
  *,
  staleness: int = 4,
  groups: int = 64,
  most: int = 1024,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual: float = 0.0,
  cap: float = math.inf,
  limit=anchors.drop,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Asynchronous rollouts and decoupled PPO.

  Args:
    staleness: versions that a trained token may be old; 0 is synchronous, 1 one step off without rows that
      are carried over, 2 and more carry them over.
    groups: rollouts leave off once so many groups are done.
    most: of replay.partials.
    clip_low, clip_high, dual: bounds of the ratio to the policy before the update.
    cap, limit: of objective.anchors.correction; the paper's code has drop and truncate, by default no cap.
    slots, top_k, top_p, min_p: of rollout.partial.
    **options: of `grpo`.
  """
  schedule = bounded_staleness(bound=staleness)
  carries = staleness - schedule.ahead
  objective = ratio.surrogate(
    anchor=anchors.proximal(),
    bounds=bounds.clip(low=clip_low, high=clip_high),
    mode=modes.ppo(dual=dual),
    correction=anchors.correction(cap=cap, limit=limit),
  )
  base = over_provisioned(grpo(**options), groups=0, most=most, max_age=staleness)
  return base._replace(
    rollout=partial(
      groups=groups if carries else 0, slots=slots, patience=carries, top_k=top_k, top_p=top_p,
      min_p=min_p,
    ),
    objective=objective,
    annotate=objective.needs,
    schedule=schedule,
  )  # fmt: skip
