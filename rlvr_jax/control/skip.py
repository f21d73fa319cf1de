"""How readily prompts that have stopped teaching are passed over."""

import jax.numpy as jnp

from rlvr_jax.core.types import Controller


def skip_rates(
  *,
  start: float = 0.5,
  easy: float = 1 / 12,
  hard: float = 1 / 6,
  step: float = 0.01,
  lowest: float = 0.05,
  highest: float = 0.95,
  right: float = 1.0,
  wrong: float = 0.0,
) -> Controller:
  """The knobs "keep_easy" and "keep_hard": with what chance a prompt is kept for each visit in a row that was
  all right, or all wrong. After each step

      keep -= step    if the share of such prompts among those rolled out is at least the target
      keep += step    otherwise,     within [lowest, highest]

  Nothing moves in the first epoch, in which nothing was passed over, nor after a step without rollouts.

  Args:
    start: both rates at first.
    easy, hard: target shares.
    right, wrong: shares of successes of a visit, as in posterior.streaks.

  Source: GRESO, arXiv 2506.02177.
  """
  if not 0 < lowest <= start <= highest <= 1:
    raise ValueError(
      f"0 < lowest <= start <= highest <= 1 must hold, got {lowest}, {start} and {highest}"
    )
  if step < 0:
    raise ValueError(f"step must be at least 0, got {step}")
  target = jnp.array([easy, hard], jnp.float32)

  def init(table):
    del table
    return jnp.full(2, start, jnp.float32)

  def value(state):
    return {"keep_easy": state[0], "keep_hard": state[1]}

  def update(state, feedback):
    trials, successes = feedback.tally.trials, feedback.tally.successes
    visited = trials > 0
    share = successes / jnp.maximum(trials, 1e-6)
    flat = jnp.stack([(visited & (share >= right)).sum(), (visited & (share <= wrong)).sum()])
    seen = flat >= target * visited.sum()
    moved = jnp.clip(state + jnp.where(seen, -step, step), lowest, highest)
    adapts = (feedback.epoch > 0) & visited.any()
    return jnp.where(adapts, moved, state)

  return Controller(init, value, update)
