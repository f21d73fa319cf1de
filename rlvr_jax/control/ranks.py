"""Ranks of difficulty over the whole table, renewed at the end of every epoch."""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.core.types import Array, Controller


class RankState(flax.struct.PyTreeNode):
  trials: Array  # float32 [M], of the whole run
  successes: Array  # float32 [M]
  rank: Array  # float32 [M], in [0, 1)
  spread: Array  # float32 []
  epoch: Array  # int32 []


def accuracy_rank(*, base: Controller | None = None, widen: float = 2.0) -> Controller:
  """Knobs "rank" float32 [M] and "rank_spread" []: see allocate.ranked.

  Prompts are sorted by the share of right rows among all they ever had, ties by index: the first has rank
  0, the last one (M - 1) / M. A prompt never rolled out counts as hardest, with those never solved. During
  the first epoch all ranks are 0.

  Args:
    base: a controller whose knobs are there too.
    widen: rows that the spread grows by with each epoch; at least 0.

  Source: E3-RL4LLMs, arXiv 2505.18573.
  """
  if widen < 0:
    raise ValueError(f"widen must be at least 0, got {widen}")

  def init(table):
    # Each its own: states are donated.
    zeros = lambda: jnp.zeros(len(table.length), jnp.float32)
    start = jnp.zeros((), jnp.float32), jnp.zeros((), jnp.int32)
    return RankState(zeros(), zeros(), zeros(), *start)

  def update(state, feedback):
    trials = state.trials + feedback.tally.trials
    successes = state.successes + feedback.tally.successes
    ended = feedback.epoch > state.epoch
    rank = jax.lax.cond(ended, lambda: ranks(successes, trials), lambda: state.rank)
    spread = state.spread + jnp.where(ended, widen, 0.0)
    return RankState(trials, successes, rank, spread, jnp.maximum(state.epoch, feedback.epoch))

  value = lambda state: {"rank": state.rank, "rank_spread": state.spread}
  return joined(base, Controller(init, value, update))


def ranks(successes, trials):
  """float32 [M]: place of each prompt from the easiest to the hardest, over M."""
  mean = successes / jnp.maximum(trials, 1.0)
  place = jnp.argsort(jnp.argsort(-mean, stable=True))
  return (place / len(mean)).astype(jnp.float32)
