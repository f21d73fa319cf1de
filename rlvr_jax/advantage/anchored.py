"""Advantages against a value that does not come from the row's own group, or not from it alone.

Rows of a group of one have an advantage here, and so have groups whose rewards are all equal. A row whose
reward is not a finite number gets 0.
"""

from typing import NamedTuple

import jax.numpy as jnp

from rlvr_jax.advantage.group import extra, scored, spread
from rlvr_jax.core import groups, masked
from rlvr_jax.core.types import Array


def pvpo(*, anchor: str = "", scale: bool = False, epsilon: float = 1e-6):
  """Reward against the mean reward that a reference policy had on the prompt.

  A prompt without an anchor (NaN) is judged against its group's mean.

  Args:
    anchor: entry of rows.extras, float32 [N]; empty: rows.prior, which the posterior fills.
    scale: divide by the standard deviation over the rows of the batch, where it is more than rounding.
    epsilon: positive; added to it.

  Source: PVPO, arXiv 2508.21104.
  """
  if epsilon <= 0:
    raise ValueError(f"epsilon must be positive, got {epsilon}")

  def advantage(rows):
    reward, _, ok = args = scored(rows)
    value = extra(rows, anchor) if anchor else rows.prior
    a = jnp.where(jnp.isnan(value), groups.centred(*args), reward - value)
    if scale:
      deviation = jnp.sqrt(masked.variance(a, ok))
      flat = deviation <= 1e-5 * jnp.abs(a).max()
      a = a / jnp.where(flat, 1.0, deviation + epsilon)
    return spread(jnp.where(ok, a, 0.0), rows)

  return advantage


def mssr(*, entropy_bonus: float = 0.4, kappa: float = 2.0, epsilon: float = 1e-6):
  """Reward against the prompt's tracked value, normalised over the batch, with a bonus for entropy.

      a_n  = (r_n - prior_n), less the mean over rows, over sqrt(max(variance, epsilon))
      A_nt = a_n + min(entropy_bonus * H_nt, |a_n| / kappa)

  With kappa above 1 no sign flips: good responses gain a little more where the policy was undecided, bad
  ones lose less there. H is the entropy at sampling in nats. A batch of one row is not normalised.

  Args:
    entropy_bonus: at least 0; 0 is single-stream policy optimisation.
    kappa: above 1.
    epsilon: positive, the least variance divided by.

  Source: MSSR, arXiv 2512.18215; without the bonus: arXiv 2509.13232.
  """
  if entropy_bonus < 0:
    raise ValueError(f"entropy_bonus must be at least 0, got {entropy_bonus}")
  if kappa <= 1:
    raise ValueError(f"kappa must be above 1, or signs would flip, got {kappa}")
  if epsilon <= 0:
    raise ValueError(f"epsilon must be positive, got {epsilon}")

  def advantage(rows):
    reward, group, ok = scored(rows)
    ok &= jnp.isfinite(rows.prior)
    a = jnp.where(ok, reward - rows.prior, 0.0)
    d = groups.centred(a, jnp.zeros_like(group), ok, 1)
    d = d / jnp.sqrt(jnp.maximum(masked.variance(d, ok), epsilon))
    a = jnp.where(ok.sum() > 1, d, a)[:, None]
    bonus = jnp.minimum(entropy_bonus * rows.entropy, jnp.abs(a) / kappa)
    return jnp.where(rows.loss_mask & ok[:, None], a + bonus, 0.0)

  return advantage


def poise(*, prediction: str = "prediction"):
  """Reward against what a probe on the hidden states of the OTHER rows of the group predicts.

      b_n = mean of prediction over the other rows of the group

  A prediction may use the whole response, and even so the gradient stays unbiased, since b_n knows nothing
  of row n. A row alone in its group, and every row while predictions are not finite (no probe fitted yet),
  takes the mean reward of the rows of other groups, or 0.5 if there are none.

  Args:
    prediction: entry of rows.extras, float32 [N], made BEFORE the probe sees this batch.

  Source: POISE, arXiv 2605.07579.
  """

  def advantage(rows):
    reward, group, ok = scored(rows)
    guess = extra(rows, prediction)
    known = ok & jnp.isfinite(guess)
    guess = jnp.where(known, guess, 0.0)
    others = groups.count(group, known)[group] - known
    sizes, sums = groups.count(group, ok)[group], groups.total(reward, group, ok)[group]
    elsewhere = ok.sum() - sizes
    cold = jnp.where(elsewhere > 0, (reward.sum() - sums) / jnp.maximum(elsewhere, 1.0), 0.5)
    base = jnp.where(others > 0, groups.leave_one_out(guess, group, known), cold)
    return spread(jnp.where(ok, reward - base, 0.0), rows)

  return advantage


class Fused(NamedTuple):
  """A baseline for each group; gap and count decide whether more rollouts would pay."""

  baseline: Array  # float32 [num], on the scale of the rewards
  weight: Array  # float32 [num], of the group's own mean; the rest is the prior's
  gap: Array  # float32 [num], squared bias of the prior beyond noise, for rewards in [-1, 1]
  count: Array  # float32 [num]


def fuse(reward, prior, group, ok, num=None, *, low: float = 0.0, high: float = 1.0) -> Fused:
  """Shrinks each group's mean towards a prior, as far as their distance can be noise.

  With rewards r and prior V mapped to [-1, 1], k rewards of mean m:

      gap = max(0, (m - V)^2 - 1/k),   w = gap / (gap + 1/k),   baseline = w m + (1 - w) V

  Without a prior (NaN) the baseline is the mean; without rewards it is the prior.

  Args:
    reward, prior: float32 [N]; the prior is the same for all rows of a group, and clipped to the range.
    low, high: range of the rewards.

  Source: V0.5, arXiv 2603.10848.
  """
  unit = lambda x: (2 * x - (low + high)) / (high - low)
  k = groups.count(group, ok, num)
  mean = unit(groups.mean(reward, group, ok, num))
  prior = jnp.clip(unit(groups.mean(prior, group, ok, num)), -1.0, 1.0)
  noise = 1 / jnp.maximum(k, 1.0)
  gap = jnp.maximum((mean - prior) ** 2 - noise, 0.0)
  missing = jnp.isnan(prior)
  gap = jnp.where(missing, 0.0, gap)
  weight = gap / (gap + noise)
  baseline = jnp.where(missing, mean, weight * mean + (1 - weight) * jnp.where(missing, 0.0, prior))
  return Fused((baseline * (high - low) + (low + high)) / 2, weight, gap, k)


def v0_5(*, low: float = 0.0, high: float = 1.0, prior: str = ""):
  """Reward against `fuse` of the group's mean and the prior.

  Args:
    low, high: range of the rewards.
    prior: entry of rows.extras, float32 [N], on the scale of the rewards; empty: rows.prior.

  Source: V0.5, arXiv 2603.10848.
  """
  if not low < high:
    raise ValueError(f"low must be below high, got {low} and {high}")

  def advantage(rows):
    reward, group, ok = scored(rows)
    value = extra(rows, prior) if prior else rows.prior
    base = fuse(reward, value, group, ok, low=low, high=high).baseline[group]
    # Without a prior the group's own mean, from which equal rewards are exactly 0 away.
    d = jnp.where(jnp.isnan(value), groups.centred(reward, group, ok), reward - base)
    return spread(jnp.where(ok, d, 0.0), rows)

  return advantage
