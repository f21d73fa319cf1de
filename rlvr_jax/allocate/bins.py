"""One wave in which prompts of a bin get the same number of rows, chosen for all bins at once."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import Allocator


def bandit(*, eta: float = 0.65, gamma: float = 0.01):
  """Arms by the log of their chance under exponential weights, log((1 - gamma) softmax(eta s) + gamma / A).

  Args:
    eta: sharpness; 0 makes all arms equal.
    gamma: share of uniform exploration, in [0, 1].
  """
  _check(eta, gamma)

  def value(knobs, counts, arms, mean):
    del counts
    score = _knob(knobs, "arm_score")
    if score.shape[1] != len(arms):
      raise ValueError(f"control scores {score.shape[1]} arms, the allocator has {len(arms)}")
    chance = (1 - gamma) * jax.nn.softmax(eta * score, axis=1) + gamma / len(arms)
    # Where arms are equal, as they are at first, the ones near the mean are taken.
    return jnp.log(chance) - 1e-6 * ((arms - mean) ** 2)[None]

  return value


def square_root():
  """Rows as the square root of the variance v of a bin, nearest in squares over prompts.

      n_b = mean sqrt(v_b) / sum_j q_j sqrt(v_j),   q_j: the bin's share of the prompts

  Where all variances are 0, the mean.
  """

  def value(knobs, counts, arms, mean):
    root = jnp.sqrt(jnp.maximum(_knob(knobs, "bin_variance"), 0.0))
    return _nearest(root, counts, arms, mean)

  return value


def exponential(*, eta: float = 0.65, gamma: float = 0.01):
  """Rows as the weights of an adversary over the running losses of the bins, nearest in squares over prompts.

      n_b = mean w_b / sum_j q_j w_j,   w: see `weights`, q_j: the bin's share of the prompts

  Without gamma that is the answer that maximises sum q n loss / mean - KL(q n / mean, q) / eta.

  Args:
    eta, gamma: of `weights`.
  """
  _check(eta, gamma)

  def value(knobs, counts, arms, mean):
    w = weights(_knob(knobs, "bin_loss"), counts > 0, eta=eta, gamma=gamma)
    return _nearest(w, counts, arms, mean)

  return value


def weights(loss, present, *, eta: float, gamma: float, bound: float = 10.0):
  """float32 [bins]: (1 - gamma) omega / sum omega + gamma / bins, omega = exp(eta loss), over the bins that
  are `present`; 0 for the others.

  Args:
    loss: float32 [bins]; cut to +-bound.
    present: bool [bins].
  """
  omega = jnp.where(present, jnp.exp(eta * jnp.clip(loss, -bound, bound)), 0.0)
  share = omega / jnp.maximum(omega.sum(), 1e-30)
  return jnp.where(present, (1 - gamma) * share + gamma / jnp.maximum(present.sum(), 1), 0.0)


def _nearest(weight, counts, arms, mean):
  """Arms by their distance from rows in proportion to the weight; from the mean where all weights are 0."""
  average = (counts * weight).sum() / jnp.maximum(counts.sum(), 1)
  ideal = jnp.where(average > 0, mean * weight / jnp.where(average > 0, average, 1.0), mean)
  return -counts[:, None] * (arms[None] - ideal[:, None]) ** 2


def binned(*, low: int = 2, high: int = 12, law=None) -> Allocator:
  """Each bin takes an arm, a number of rows between low and high for each of its prompts: of all choices
  that spend the width the one of largest summed value. If none does, the one that leaves least.

  Knobs: "prompt_bin" int32 [M], "bin_loss", "bin_variance" and "arm_score", all from
  control.adversary.rollout_arms.

  Args:
    low, high: arms; low 2 or more, so that rows can be compared.
    law: `exponential(...)`, the default, `square_root()` or `bandit(...)`.

  Source: Rollout-GDRO, arXiv 2601.19280.
  """
  if not 1 <= low <= high:
    raise ValueError(f"need 1 <= low <= high, got {low} and {high}")
  law = law or exponential()

  def plan(num_prompts, budget):
    if not low * num_prompts <= budget <= high * num_prompts:
      raise ValueError(
        f"a budget of {budget} rows is not between {low} and {high} for each of {num_prompts} prompts"
      )
    return (budget,)

  def next_(state, round, width, knobs):
    prompts = round.prompts
    bins = _knob(knobs, "prompt_bin")[prompts.id]
    arms = jnp.arange(low, high + 1, dtype=jnp.int32)
    num = len(_knob(knobs, "bin_variance"))
    counts = groups.count(bins, prompts.valid, num).astype(jnp.int32)
    total = jnp.minimum(width, high * counts.sum())
    mean = total / jnp.maximum(counts.sum(), 1)
    chosen = choose_arms(law(knobs, counts, arms, mean), counts, arms, total, width)
    return jnp.where(prompts.valid, arms[chosen][bins], 0).astype(jnp.int32), state

  return Allocator(plan=plan, init=lambda prompts, knobs: (), next=next_)


def choose_arms(value, counts, arms, total, most: int):
  """int32 [bins]: the arm of each bin, by dynamic programming over the rows that the bins before took.

  Maximises the sum of value [bins, A] over bins that have prompts, among the choices whose
  sum_b counts_b arms[choice_b] is the largest possible one that is at most `total` (<= most, static).
  """
  spent = jnp.arange(most + 1, dtype=jnp.int32)
  start = jnp.where(spent == 0, 0.0, -jnp.inf)

  def forward(best, bin):
    row, count = bin
    before = spent[None] - count * arms[:, None]  # [A, most + 1]
    here = jnp.where(before >= 0, best[jnp.maximum(before, 0)], -jnp.inf)
    here = here + jnp.where(count > 0, row, 0.0)[:, None]
    return here.max(0), here.argmax(0).astype(jnp.int32)

  best, picks = jax.lax.scan(forward, start, (value, counts))
  end = jnp.where(jnp.isfinite(best) & (spent <= total), spent, -1).max()

  def backward(at, bin):
    pick, count = bin
    arm = pick[at]
    return at - count * arms[arm], arm

  _, chosen = jax.lax.scan(backward, jnp.maximum(end, 0), (picks, counts), reverse=True)
  return chosen


def _check(eta: float, gamma: float):
  if eta < 0 or not 0 <= gamma <= 1:
    raise ValueError(f"need eta >= 0 and gamma in [0, 1], got {eta} and {gamma}")


def _knob(knobs, name: str):
  if name not in knobs:
    have = sorted(knobs)
    raise ValueError(f"no knob {name!r}, which control.adversary.rollout_arms gives; have {have}")
  return knobs[name]
