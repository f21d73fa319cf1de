"""AsyncWebRL: agents of many steps; a step counts 1/k, whatever the number of steps of its episode.

A failing episode is longer than a solved one; with its own length as the divisor its tokens are hardly
pushed down, with a constant they are. Rewards are compared between episodes; a row is one step, and
rows.extras["episode"] names its episode (absent: every row is an episode of its own, as in single-turn
tasks). Off-policy data are corrected with three log-probs: PPO's clip against the policy before the
update, and a weight for the distance of that to the policy that sampled; tokens with a weight above 5 are
dropped but stay in the denominator. Differs from the paper: the pool of rollouts that never stops is not
part of a recipe; one update on a batch instead of six passes of minibatches (updates=6 takes the whole
batch six times).
"""

import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import choose
from rlvr_jax.objective import aggregate, anchors, bounds, modes, ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "AsyncWebRL: Efficient Multi-Step RL for Visual Web Agents",
  "arXiv 2606.05597",
)
STAGES = ("control", "optimise")
CHANGES = ("choose", "advantage", "objective", "aggregate", "annotate")
EVIDENCE = "docs"


def asyncwebrl(
  *,
  steps: float = 10.0,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual: float = 3.0,
  cap: float = 5.0,
  **options,
) -> Recipe:
  """Constant step normaliser and decoupled PPO.

  Args:
    steps: k; 0 takes the steps of each row's own episode, rows.extras["num_steps"].
    clip_low, clip_high, dual: bounds of the ratio to the policy before the update.
    cap: tokens whose weight of that policy over the one that sampled is above it are dropped.
    **options: of `grpo`, without scale and ddof.
  """
  objective = ratio.surrogate(
    anchor=anchors.proximal(),
    bounds=bounds.clip(low=clip_low, high=clip_high),
    mode=modes.ppo(dual=dual),
    correction=anchors.correction(cap=cap, limit=anchors.drop),
  )
  return grpo(**options)._replace(
    choose=choose.mixed(),
    advantage=episode_mean(),
    objective=objective,
    aggregate=aggregate.step_mean(steps=steps),
    annotate=objective.needs,
  )


def episode_mean(*, epsilon: float = 1e-6):
  """(r - mean) / (std + epsilon) over the episodes of a group, on each trained token of each step.

  An episode is the valid rows of a group with the same rows.extras["episode"], int32 [N] < N; its reward is
  that of its first row, and it counts once whatever its number of steps.
  """

  def advantage(rows):
    n = len(rows.valid)
    index = jnp.arange(n, dtype=jnp.int32)
    episode = rows.extras.get("episode", index)
    first = jnp.full(n, n, jnp.int32).at[episode].min(jnp.where(rows.valid, index, n))
    first = jnp.minimum(first[episode], n - 1)
    counts = rows.valid & (first == index)
    args = rows.reward.astype(jnp.float32), rows.group, counts
    d = groups.centred(*args) / (groups.std(*args)[rows.group] + epsilon)
    return jnp.where(rows.loss_mask, d[first][:, None], 0.0)

  return advantage
