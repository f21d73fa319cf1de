"""Blockwise advantage estimation: each block of a response has its own reward and its own baseline.

The solution comes first, then, after a separator, how sure the policy is of it. Block 1 is rewarded by the
verdict c, block 2 by how well the stated confidence q tells it; the baseline of block 2 is the mean over
rollouts of the same verdict, so that it is not credited for the solution. A block's loss is its mean over
its own tokens, so that few tokens of confidence weigh as much as a long solution. No division by a
standard deviation. Without a separator there is one block: Dr.GRPO with the mean over each row's tokens.

The confidence comes from a reward function of weight 0 (reward.judges.confidence): add
"rlvr_jax.reward.judges:confidence" to the config's rewards. A response without it has no second block.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from rlvr_jax.advantage.blockwise import blockwise as by_block
from rlvr_jax.advantage.group import extra
from rlvr_jax.core import table
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Blockwise Advantage Estimation for Multi-Objective RL with Verifiable Rewards",
  "arXiv 2602.10231",
)
STAGES = ("filter", "optimise")
CHANGES = ("advantage", "weigh", "aggregate")
EVIDENCE = "paper"


def brier(q, c):
  """-(q - c)^2."""
  return -((q - c) ** 2)


def log_score(q, c):
  """c ln q + (1 - c) ln(1 - q), q held within [0.001, 0.999]."""
  q = jnp.clip(q, 1e-3, 1 - 1e-3)
  return c * jnp.log(q) + (1 - c) * jnp.log1p(-q)


SCORES = {"brier": brier, "log": log_score}


def blockwise(
  *,
  separator: Sequence[int] = (),
  confidence: str = "reward/confidence",
  score: str = "brier",
  baseline: str = "outcome",
  shrink: float = 0.0,
  **options,
) -> Recipe:
  """A solution and a statement of confidence, each with its own credit.

  Args:
    separator: token ids that open the second block, such as those of "<confidence>"; empty: one block.
    confidence: entry of rows.extras, float32 [N] in [0, 1], not finite where none was stated.
    score: "brier" or "log", the reward of a confidence.
    baseline, shrink: of advantage.blockwise.blockwise.
    **options: of `grpo`.
  """
  if score not in SCORES:
    raise table.unknown("score", score, SCORES)
  base = grpo(**options)
  credit = by_block(baseline=baseline, shrink=shrink)

  def advantage(rows):
    reward, outcome = rows.reward[:, None], jnp.zeros((len(rows.reward), 1), jnp.int32)
    if separator:
      q = extra(rows, confidence)
      second = jnp.where(jnp.isfinite(q), SCORES[score](q, rows.correct), jnp.nan)
      reward = jnp.stack([rows.reward, second], 1)
      outcome = jnp.stack([jnp.zeros(len(q), jnp.int32), (rows.correct > 0.5).astype(jnp.int32)], 1)
    blocks = {"block": block(rows, separator), "block_rewards": reward, "block_outcomes": outcome}
    return credit(rows.replace(extras=rows.extras | blocks))

  def weigh(key, rows, advantage, knobs):
    weight = base.weigh(key, rows, advantage, knobs)
    mine = block(rows, separator)
    for k in (0, 1):
      here = rows.loss_mask & (mine == k)
      size = jnp.maximum(here.sum(1), 1).astype(jnp.float32)[:, None]
      weight = jnp.where(here, weight / size, weight)
    return weight

  return base._replace(
    advantage=advantage,
    weigh=weigh,
    aggregate=aggregate.sequence_mean_token_sum(norm=1, over=aggregate.every),
  )


def block(rows, separator: Sequence[int]):
  """int32 [N,T]: 1 from the first separator of the response on, 0 before it."""
  if not separator:
    return jnp.zeros(rows.tokens.shape, jnp.int32)
  t = rows.tokens.shape[1]
  place = jnp.arange(t, dtype=jnp.int32)[None]
  last = rows.length[:, None] - len(separator)
  starts = (place >= rows.response_start[:, None]) & (place <= last)
  for i, token in enumerate(separator):
    starts &= jnp.roll(rows.tokens, -i, axis=1) == token
  return (jnp.cumsum(starts, axis=1) > 0).astype(jnp.int32)
