"""Advantages against the other rollouts of the same prompt: advantage(rows) -> float32 [N,T].

A row whose reward is not a finite number has not been scored: it is left out of every statistic and its
advantage is 0. A group with a single scored row has nobody to be compared with and yields 0 too, unless
`keep_single` asks for the raw reward, as some trainers do.
"""

import math

import jax.numpy as jnp

from rlvr_jax.core import groups, table


def scored(rows):
  """(reward float32 [N], group, which rows have one bool [N]): what group statistics are taken over."""
  reward = rows.reward.astype(jnp.float32)
  ok = rows.valid & jnp.isfinite(reward)
  return jnp.where(ok, reward, 0.0), rows.group, ok


def spread(per_row, rows):
  """[N] -> [N,T]: the row's number on each trained token, 0 elsewhere."""
  return jnp.where(rows.loss_mask, per_row[:, None], 0.0)


def group_mean(
  *,
  scale: bool = True,
  ddof: int = 0,
  epsilon: float = 1e-6,
  floor: float = 0.0,
  keep_single: bool = False,
):
  """Reward against the group's mean, in units of its standard deviation.

      A_n = (r_n - mean_g r) / (max(std_g r, floor) + epsilon)    without the division if not `scale`

  A group whose rewards are all equal yields exactly 0, whatever rounding does to its mean.

  Args:
    scale: False gives Dr.GRPO's advantage, which does not favour prompts that are almost solved or
      almost hopeless.
    ddof: 0 divides the variance by the size of the group, 1 by one less.
    epsilon: positive.
    floor: smallest standard deviation divided by, so that a tiny spread is not blown up to 1.
    keep_single: the row of a group of one keeps its reward, divided by 1 + epsilon if `scale`.

  Source: GRPO, arXiv 2402.03300; without scale: Dr.GRPO, arXiv 2503.20783.
  """
  if ddof not in (0, 1):
    raise ValueError(f"ddof must be 0 or 1, got {ddof}")
  if epsilon <= 0:
    raise ValueError(f"epsilon must be positive, got {epsilon}")
  if floor < 0:
    raise ValueError(f"floor must be at least 0, got {floor}")

  def advantage(rows):
    args = scored(rows)
    d = groups.centred(*args)
    if scale:
      d = d / (jnp.maximum(groups.std(*args, ddof=ddof)[rows.group], floor) + epsilon)
    if keep_single:
      d = _single(d, args, 1 / (1 + epsilon) if scale else 1.0)
    return spread(d, rows)

  return advantage


def rloo(*, keep_single: bool = False):
  """Reward against the mean of the OTHERS of the group: G / (G - 1) times Dr.GRPO's advantage.

  Source: RLOO, arXiv 2402.14740.
  """

  def advantage(rows):
    args = scored(rows)
    size = groups.count(*args[1:])[rows.group]
    d = groups.centred(*args) * size / jnp.maximum(size - 1, 1.0)
    return spread(_single(d, args, 1.0) if keep_single else d, rows)

  return advantage


def opo(*, keep_single: bool = False):
  """Reward against the group's mean weighted by length, the baseline of least variance where the gradient
  of a response is as long as the response.

      A_n = r_n - sum_g l r / sum_g l,     l: trained tokens; a group without any takes the plain mean

  Source: OPO, arXiv 2505.23585.
  """

  def advantage(rows):
    reward, group, ok = args = scored(rows)
    lowest = groups.lowest(*args)[group]
    d = jnp.where(ok, reward - lowest, 0.0)  # equal rewards: exactly 0
    length = rows.loss_mask.sum(1).astype(jnp.float32)
    total = groups.total(length, group, ok)
    weighted = groups.total(length * d, group, ok) / jnp.maximum(total, 1.0)
    base = jnp.where(total > 0, weighted, groups.mean(d, group, ok))[group]
    d = jnp.where(ok, d - base, 0.0)
    return spread(_single(d, args, 1.0) if keep_single else d, rows)

  return advantage


def remax(*, greedy: str = "greedy_reward"):
  """Reward against that of the greedy response to the same prompt. Groups play no part.

  Args:
    greedy: entry of rows.extras, float32 [N], with the greedy response's reward; where it is not finite
      the advantage is 0.

  Source: ReMax, arXiv 2310.10505.
  """

  def advantage(rows):
    reward, _, ok = scored(rows)
    base = extra(rows, greedy)
    return spread(jnp.where(ok & jnp.isfinite(base), reward - base, 0.0), rows)

  return advantage


def _absolute(d, group, ok):
  return groups.median(jnp.abs(d), group, ok, lower=True), 1e-3


def _sample_std(d, group, ok):
  return groups.std(d, group, ok, ddof=1), 1e-6


SCALES = {  # name -> (spread of each group, what is added to it)
  "mad": _absolute,
  "std": _sample_std,
  "none": lambda d, group, ok: (jnp.ones(len(group), jnp.float32), 0.0),
}


def mc_grpo(*, scale: str = "mad", rescale_nonzero: bool = False):
  """Reward against the group's median: one extreme reward moves nobody else's advantage.

      A_n = (r_n - med_g r) / (mad_g + 0.001),     mad_g: median of |r - med_g r|

  Medians of an even number are the lower of the middle two. The row AT the median has no advantage; the
  method draws one rollout more than it trains and drops that row (`pivot`). With 0/1 rewards and an odd
  group the mad is always 0 and the minority gets +-1000: choose "none" or "std" there.

  Args:
    scale: "mad"; "std", the sample standard deviation + 1e-6; or "none".
    rescale_nonzero: advantages of a group that are not 0 are multiplied by (its size / their number).

  Source: MC-GRPO, arXiv 2601.22582.
  """
  if scale not in SCALES:
    raise table.unknown("scale", scale, SCALES)

  def advantage(rows):
    reward, group, ok = args = scored(rows)
    d = jnp.where(ok, reward - groups.median(*args, lower=True)[group], 0.0)
    unit, epsilon = SCALES[scale](d, group, ok)
    a = d / (unit[group] + epsilon)
    if rescale_nonzero:
      moved = groups.count(group, ok & (jnp.abs(a) > 1e-6))[group]
      size = groups.count(group, ok)[group]
      a = a * jnp.where(moved > 0, size / jnp.maximum(moved, 1.0), 1.0)
    return spread(a, rows)

  return advantage


def pivot(rows):
  """bool [N]: the first row of each group whose reward is the group's lower median."""
  reward, group, ok = args = scored(rows)
  at = ok & (reward == groups.median(*args, lower=True)[group])
  return groups.rank(group, at) == 0


CENTRES = {"median": groups.median, "mean": groups.mean}


def gapo(
  *,
  share: float = 0.5,
  centre: str = "median",
  scale: bool = True,
  epsilon: float = 1e-6,
  keep_single: bool = True,
):
  """Reward against the middle of the group's densest part, which outliers do not move.

      Q_g = median of the shortest interval that holds ceil(share * G) of the G rewards
      A_n = (r_n - Q_g) / (s_g + epsilon),   s_g^2 = sum_g (r - Q_g)^2 / (G - 1)

  Of equally short intervals the lowest counts. Advantages of a group do not sum to 0: with 0/1 rewards
  Q is what the majority got, and only the minority has an advantage.

  Args:
    share: in (0, 1]; with 1 and centre "mean" this is GRPO with the sample standard deviation. At 1 / G
      and below, Q is the lowest reward.
    centre: "median" or "mean" of the interval.
    scale: False leaves the division out.
    epsilon: positive.
    keep_single: the row of a group of one keeps its reward, as in the authors' code; False gives it 0.

  Source: GAPO, arXiv 2510.21830.
  """
  if not 0 < share <= 1:
    raise ValueError(f"share must lie in (0, 1], got {share}")
  if centre not in CENTRES:
    raise table.unknown("centre", centre, CENTRES)
  if epsilon <= 0:
    raise ValueError(f"epsilon must be positive, got {epsilon}")

  def advantage(rows):
    reward, group, ok = args = scored(rows)
    # On the host and in double precision: float32 would round 0.7 * 10 up to an eighth row.
    sizes = [max(math.ceil(n * share - 1e-9), 1) for n in range(len(group) + 1)]
    size = jnp.asarray(sizes, jnp.int32)[groups.count(group, ok).astype(jnp.int32)]
    lowest = groups.lowest(*args)[group]
    d = jnp.where(ok, reward - lowest, 0.0)  # equal rewards: exactly 0
    inside = groups.densest(reward, size, group, ok)
    d = jnp.where(ok, d - CENTRES[centre](d, group, inside)[group], 0.0)
    a = d
    if scale:
      free = jnp.maximum(groups.count(group, ok) - 1, 1.0)
      a = d / (jnp.sqrt(groups.total(d * d, group, ok) / free)[group] + epsilon)
    return spread(_single(a, args, 1.0) if keep_single else a, rows)

  return advantage


def extra(rows, name: str):
  """rows.extras[name]; an error that says what there is if it is missing."""
  if name not in rows.extras:
    have = ", ".join(sorted(rows.extras)) or "none"
    raise ValueError(f"the advantage needs rows.extras[{name!r}]; the rows carry: {have}")
  return rows.extras[name]


def _single(d, args, factor):
  """d, but the raw reward times `factor` for the only scored row of a group."""
  reward, group, ok = args
  return jnp.where(ok & (groups.count(group, ok)[group] == 1), reward * factor, d)
