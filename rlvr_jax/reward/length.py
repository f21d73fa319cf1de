"""Rewards that look at how long a response is, in tokens: reward(rows, knobs) -> float32 [N]."""

import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.reward.outcome import outcome


def overlong(*, buffer: int = 4096, penalty: float = 1.0, base=None):
  """A base reward less a penalty that grows over the last `buffer` tokens before the row's limit.

      l <= L - buffer: 0,   then penalty * (l - (L - buffer)) / buffer,   at L: penalty

  L is the row's own limit of response tokens.

  Args:
    buffer: tokens, positive. One larger than L counts as L.
    penalty: at least 0, in units of the reward.
    base: another reward; None: the verdict.

  Source: DAPO, arXiv 2503.14476, soft overlong punishment: a limit of 20480 tokens, 4096 of them buffer.
  """
  if buffer < 1:
    raise ValueError(f"buffer must be at least 1 token, got {buffer}")
  if penalty < 0:
    raise ValueError(f"penalty must be at least 0, got {penalty}")
  base = outcome() if base is None else base

  def reward(rows, knobs):
    most = rows.limit - rows.response_start
    room = jnp.clip(most, 1, buffer)
    over = jnp.clip((rows.response_length - (most - room)) / room, 0.0, 1.0)
    return base(rows, knobs) - penalty * over.astype(jnp.float32)

  return reward


def compression(
  *,
  mastery: float = 1.0,
  slack: float = 0.2,
  penalty: float = 0.5,
  known: float = 0.0,
  knob: str = "",
):
  """The verdict, less a penalty on responses that are long beside the group's shortest right one.

      L = (1 + slack) min over right rows of l_n,    r_n = c_n - penalty * clip((l_n - L) / L, 0, 1)

  Only in groups of which a share of at least `mastery` is right, only for right rows, and only if the
  prompt was believed to be mastered before; otherwise r_n = c_n. A row cut off at its limit counts as wrong
  here. A response of no tokens counts as one.

  Args:
    mastery: in (0, 1].
    slack: at least 0, how much longer than the shortest is free.
    penalty: in [0, 1), so that right stays above wrong.
    known: least rows.prior of a prompt that is penalised; 0: any.
    knob: a knob that multiplies the penalty, to switch it on and off during a run; empty: none.

  Source: arXiv 2601.06052, abstract: that only mastered prompts are compressed, softly, and within the
  policy's own safe range. The formula and its constants are ours.
  """
  if not 0 < mastery <= 1:
    raise ValueError(f"mastery must lie in (0, 1], got {mastery}")
  if slack < 0:
    raise ValueError(f"slack must be at least 0, got {slack}")
  if not 0 <= penalty < 1:
    raise ValueError(f"penalty must lie in [0, 1), got {penalty}")
  if not 0 <= known <= 1:
    raise ValueError(f"known must lie in [0, 1], got {known}")

  def reward(rows, knobs):
    args = rows.group, rows.valid
    right = rows.valid & (rows.correct > 0.5) & ~rows.truncated
    share = groups.mean(right.astype(jnp.float32), *args)
    open_ = (share >= mastery - 1e-6)[rows.group] & right
    if known:
      open_ &= rows.prior >= known
    length = jnp.maximum(rows.response_length, 1).astype(jnp.float32)
    safe = (1 + slack) * groups.lowest(length, rows.group, right)[rows.group]
    over = jnp.clip((length - safe) / jnp.maximum(safe, 1.0), 0.0, 1.0)
    factor = penalty * knobs[knob] if knob else penalty
    return rows.correct - jnp.where(open_, factor * over, 0.0)

  return reward


def just_enough(
  *,
  alpha: float = 1.2,
  delta: float = 0.05,
  right: float = 0.9,
  form: float = 0.1,
  format: str = "",
):
  """The verdict, and a bonus for right rows: the shorter beside the group's other right ones, the larger.

      R_n = form f_n + right c_n + [c_n = 1] (alpha (1 - delta) (Lmax - L_n) / (Lmax - Lmin + 1e-8) + delta)

  Lmin and Lmax are the lengths of the shortest and the longest right row; of equal ones each gets delta.

  Args:
    alpha: at least 0; delta: in [0, 1].
    right, form: at least 0; right + delta should be above form, so that right rows stay above wrong ones.
    format: the reward function whose value f_n is; empty: 0.

  Source: JET, arXiv 2509.23392, which multiplies by alpha in its text and code.
  """
  if alpha < 0 or not 0 <= delta <= 1 or right < 0 or form < 0:
    raise ValueError(
      f"need alpha, right and form >= 0 and delta in [0, 1], got {alpha}, {right}, {form} and {delta}"
    )

  def reward(rows, knobs):
    del knobs
    good = rows.valid & (rows.correct > 0.5)
    length = rows.response_length.astype(jnp.float32)
    longest = groups.highest(length, rows.group, good)[rows.group]
    shortest = groups.lowest(length, rows.group, good)[rows.group]
    short = (longest - length) / (longest - shortest + 1e-8)
    bonus = jnp.where(good, alpha * (1 - delta) * short + delta, 0.0)
    formed = form * jnp.nan_to_num(rows.extras[f"reward/{format}"]) if format else 0.0
    return formed + right * rows.correct + bonus

  return reward
