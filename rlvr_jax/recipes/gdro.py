"""GDRO: an adversary over bins of difficulty weighs prompts, or shares out rollouts.

Bins go by the running pass@k of each prompt, with some hysteresis, and prompts are looked up one by one.
gdro_prompt multiplies what a prompt's tokens count by q of its bin, rescaled to a mean of 1:

    q = (1 - gamma) omega / sum(omega) + gamma / bins,   omega = exp(eta S),   S: running loss of the bin

gdro_rollout gives all prompts of a bin the same number of rollouts, the total being fixed: in proportion to
q (`exponential`), to the square root of the variance of the losses in the bin (`square_root`, from the
paper's theory), or by weights over the numbers and a price (`bandit`, the paper's). The paper never couples
the two.

Differs: the loss of a prompt is its failure rate. The paper's is the clipped surrogate, and with advantages
that are centred in their group and one update a batch that is 0 in every bin. That leaves the paper's bandit
without a signal; and of failure rates, never negative, the first number of each bin would gain alone and stay
for good. So the bandit here hears a loss less its running mean, and `exponential`, ours, is the default. The
weight is on the loss instead of the advantage, which is the same up to the adversary's own loss. Where no
choice of numbers spends the budget exactly, the one that leaves least is taken, and at first the one nearest
to equal.
"""

import jax.numpy as jnp

from rlvr_jax.allocate import bins
from rlvr_jax.control import adversary
from rlvr_jax.core import groups, table
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Group Distributionally Robust Optimization-Driven Reinforcement Learning for LLM Reasoning",
  "arXiv 2601.19280",
)
STAGES = ("control", "optimise")
CHANGES = ("allocate", "weigh", "control")
EVIDENCE = "code"


def gdro_prompt(
  *,
  eta: float = 0.65,
  gamma: float = 0.01,
  rate: float = 0.12,
  by_share: bool = True,
  window: int = 100,
  margin: float = 0.03,
  most: float = 15.0,
  **options,
) -> Recipe:
  """Weights by bin.

  Args:
    eta: sharpness; 0: every weight is 1.
    gamma: share of uniform weights, in [0, 1].
    rate, by_share, window, margin: of control.adversary.prompt_weights.
    most: largest weight of a row; positive.
    **options: of `grpo`.
  """
  if eta < 0 or not 0 <= gamma <= 1 or most <= 0:
    raise ValueError(f"need eta >= 0, gamma in [0, 1] and most > 0, got {eta}, {gamma} and {most}")
  base = grpo(**options)

  def weigh(key, rows, advantage, knobs):
    weight = base.weigh(key, rows, advantage, knobs)
    q = bin_weights(
      knobs["bin_loss"], knobs["prompt_bin"][rows.prompt_id], rows.valid, eta=eta, gamma=gamma
    )
    return weight * jnp.minimum(q, most)[:, None]

  control = adversary.prompt_weights(
    base=base.control, rate=rate, by_share=by_share, window=window, margin=margin
  )
  return base._replace(weigh=weigh, control=control)


def bin_weights(loss, bin, valid, *, eta: float, gamma: float):
  """float32 [N]: q of each row's bin, rescaled to a mean of 1 over the valid rows; 0 for the others.

  Args:
    loss: float32 [bins].
    bin: int32 [N].
    valid: bool [N]; only bins of valid rows take part.
  """
  present = groups.count(bin, valid, len(loss)) > 0
  q = jnp.where(valid, bins.weights(loss, present, eta=eta, gamma=gamma)[bin], 0.0)
  return q * valid.sum() / jnp.where(q.sum() > 0, q.sum(), 1.0)


LAWS = {
  "exponential": bins.exponential,
  "bandit": bins.bandit,
  "square_root": lambda eta, gamma: bins.square_root(),  # has no chances to sharpen
}


def gdro_rollout(
  *,
  mean: float = 4.0,
  low: int = 2,
  high: int = 0,
  law: str = "exponential",
  eta: float = 0.65,
  gamma: float = 0.01,
  window: int = 50,
  margin: float = 0.03,
  **options,
) -> Recipe:
  """Rollouts by bin.

  Args:
    mean: rollouts a prompt that the budget allows: budget / prompts.
    low, high: least and most rollouts of a prompt; high 0: three times the mean.
    law: exponential, square_root or bandit.
    eta, gamma: of allocate.bins.exponential and allocate.bins.bandit.
    window, margin: of control.adversary.rollout_arms.
    **options: of `grpo`.
  """
  if law not in LAWS:
    raise table.unknown("law", law, LAWS)
  high = high or int(3 * mean)
  base = grpo(**options)
  allocate = bins.binned(low=low, high=high, law=LAWS[law](eta=eta, gamma=gamma))

  def plan(num_prompts, budget):
    if abs(budget / num_prompts - mean) > 0.5:
      raise ValueError(
        f"mean={mean} rollouts a prompt, but a budget of {budget} for {num_prompts} prompts"
      )
    return allocate.plan(num_prompts, budget)

  control = adversary.rollout_arms(
    base=base.control, mean=mean, low=low, high=high, window=window, margin=margin
  )
  return base._replace(allocate=allocate._replace(plan=plan), control=control)
