"""ReMax: the baseline is the reward of the greedy response to the same prompt.

The first row of each group is sampled greedily and not trained; the others are judged against it. So a
prompt needs two rows, one of them for the baseline. Differs from the paper: the greedy response is sampled
in the same wave and counts in beliefs and in reward metrics, and the loss is that of `grpo`.
"""

import jax.numpy as jnp

from rlvr_jax.advantage import group
from rlvr_jax.core import groups
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "ReMax: A Simple, Effective, and Efficient Reinforcement Learning Method for Aligning LLMs",
  "arXiv 2310.10505",
)
STAGES = ("generate", "optimise")
CHANGES = ("rollout", "advantage", "weigh")
EVIDENCE = "code"


def remax(**options) -> Recipe:
  """Greedy baseline.

  Args:
    **options: of `grpo`.
  """
  base = grpo(**options)

  def rollout(policy, params, rows, version, eos_ids, **sizes):
    first = groups.rank(rows.group, rows.valid) == 0
    cooled = rows.replace(temperature=jnp.where(first, 0.0, rows.temperature))
    return base.rollout(policy, params, cooled, version, eos_ids, **sizes)

  against_greedy = group.remax(greedy="greedy_reward")

  def advantage(rows):
    is_greedy = rows.valid & greedy(rows)
    found = groups.count(rows.group, is_greedy) > 0
    reward = jnp.where(found, groups.total(rows.reward, rows.group, is_greedy), jnp.nan)
    extras = rows.extras | {"greedy_reward": reward[rows.group]}
    return against_greedy(rows.replace(extras=extras))

  def weigh(key, rows, advantage, knobs):
    weight = base.weigh(key, rows, advantage, knobs)
    return jnp.where(greedy(rows)[:, None], 0.0, weight)

  return base._replace(rollout=rollout, advantage=advantage, weigh=weigh)


def greedy(rows):
  """bool [N]: sampled at temperature 0."""
  return rows.temperature == 0
