"""One reward and one advantage for each block of a response."""

import jax.numpy as jnp

from rlvr_jax.advantage.group import extra
from rlvr_jax.core import groups, table

BASELINES = ("outcome", "group", "batch", "none")


def blockwise(*, baseline: str = "outcome", shrink: float = 0.0, scale: bool = False):
  """Reward of each block against a baseline that the block could not influence.

      A_nk = r_nk - b_nk,   A_nt = A_nk for the tokens t of block k

  "outcome" takes for b the mean over the rows of the group whose text BEFORE the block had the same
  outcome, so that a block is neither praised nor blamed for what earlier ones did. "group" takes the whole
  group's mean, "batch" that of the batch, "none" 0. Before the first block all rows of a group are alike.

  rows.extras holds: "block" int32 [N,T], the block of each token, where a number that is no block means
  none (no advantage); "block_rewards" float32 [N,K], not finite where a block is missing: it counts in no
  mean; "block_outcomes" int32 [N,K], of the text before each block, only read for "outcome".

  Args:
    baseline: one of the above.
    shrink: at least 0; for "outcome", b = (n mean_outcome + shrink mean_group) / (n + shrink), n rows of
      that outcome. 0 gives a row that is alone with its outcome no advantage.
    scale: divide by the sample standard deviation of what the baseline is taken over, plus 1e-6; not for
      "none".

  Source: Blockwise Advantage Estimation, arXiv 2602.10231; shrink and scale are not in the paper.
  """
  if baseline not in BASELINES:
    raise table.unknown("baseline", baseline, BASELINES)
  if scale and baseline == "none":
    raise ValueError("without a baseline nothing is centred: scale needs another baseline")
  if shrink < 0:
    raise ValueError(f"shrink must be at least 0, got {shrink}")

  def advantage(rows):
    block, reward = extra(rows, "block"), extra(rows, "block_rewards").astype(jnp.float32)
    num = reward.shape[1]
    out = jnp.zeros(rows.tokens.shape, jnp.float32)
    for k in range(num):
      ok = rows.valid & jnp.isfinite(reward[:, k])
      r = jnp.where(ok, reward[:, k], 0.0)
      group = jnp.zeros_like(rows.group) if baseline == "batch" else rows.group
      if baseline == "none":
        a = r
      elif baseline == "outcome" and k > 0:
        a = _against_outcome(r, group, extra(rows, "block_outcomes")[:, k], ok, shrink)
      else:
        a = groups.centred(r, group, ok)
      if scale:
        a = a / (groups.std(r, group, ok, ddof=1)[group] + 1e-6)
      out = jnp.where(rows.loss_mask & (block == k), a[:, None], out)
    return out

  return advantage


def _against_outcome(r, group, outcome, ok, shrink):
  same = groups.split(group, outcome, ok)
  lowest = groups.lowest(r, same, ok)[same]
  d = jnp.where(ok, r - lowest, 0.0)  # equal rewards: exactly 0
  own = groups.mean(d, same, ok)[same]
  if not shrink:
    return jnp.where(ok, d - own, 0.0)
  size = groups.count(same, ok)[same]
  base = groups.lowest(r, group, ok)[group]
  whole = groups.mean(jnp.where(ok, r - base, 0.0), group, ok)[group] + base - lowest
  return jnp.where(ok, d - (size * own + shrink * whole) / (size + shrink), 0.0)
