"""CoBA-RL: each rollout goes to the prompt whose value rises most by it; what is valued follows the policy.

The value of n rollouts of a prompt is (1 - exp(-n p (1 - p) / tau)) times the density at p of a Beta whose
shape follows the failure rate of the last steps: a weak policy gets rollouts on easy prompts, a strong one
on hard ones. p is the prompt's success rate at its latest visit, 1/2 before the first. Prompts that gain
nothing (p of 0 or 1) share evenly what is left when all others have their most. Smallest and largest alpha,
the slope, tau, the window and the rate of a first visit are not printed and are ours.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.allocate.marginal import marginal, saturating
from rlvr_jax.control.failure import expected_failure
from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.latest import latest
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "CoBA-RL: Capability-Oriented Budget Allocation for Reinforcement Learning in LLMs",
  "arXiv 2602.03048",
)
STAGES = ("control",)
CHANGES = ("posterior", "allocate", "objective", "control")
EVIDENCE = "paper"


def coba_rl(
  *,
  low: int = 2,
  high: int = 128,
  kappa: float = 11.0,
  alpha_min: float = 1.5,
  alpha_max: float = 9.5,
  slope: float = 8.0,
  gamma: float = 10.0,
  tau: float = 4.0,
  window: int = 10,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  **options,
) -> Recipe:
  """Rollouts by marginal value.

  Args:
    low, high: least and most rollouts of a prompt.
    kappa: alpha + beta of the density.
    alpha_min, alpha_max, slope: alpha = alpha_min + slope * failure, at most alpha_max, which is below kappa.
    gamma: steepness of the map from failure rates below 1/2.
    tau: of allocate.marginal.saturating.
    window: steps that the failure rate is taken over.
    clip_low, clip_high, **options: of `grpo`.
  """
  if not 0 < alpha_min <= alpha_max < kappa:
    raise ValueError(
      f"need 0 < alpha_min <= alpha_max < kappa, got {alpha_min}, {alpha_max} and {kappa}"
    )
  saturation = saturating(tau=tau)

  def gain(prompts, knobs, rows):
    p, there = prompts.belief.mean, prompts.valid
    now = jnp.where(there, 1 - jnp.where(jnp.isnan(p), 0.5, p), 0.0).sum() / jnp.maximum(
      there.sum(), 1
    )
    failure = (knobs["failure_sum"] + now) / (knobs["failure_steps"] + 1)
    alpha = shape(failure, alpha_min=alpha_min, alpha_max=alpha_max, slope=slope, gamma=gamma)
    return saturation(prompts, knobs, rows) + log_density(p, alpha, kappa - alpha)[:, None]

  base = grpo(clip_low=clip_low, clip_high=clip_high, **options)
  return base._replace(
    posterior=acquisition.scored(latest(), acquisition.uniform()),
    allocate=marginal(gain=gain, low=low, high=high),
    control=expected_failure(base=base.control, window=window),
  )


def shape(failure, *, alpha_min: float, alpha_max: float, slope: float, gamma: float):
  """alpha of the density; rises with the failure rate."""
  bent = jnp.where(failure > 0.5, failure, jax.nn.sigmoid(gamma * (failure - 0.5)))
  return jnp.clip(alpha_min + slope * bent, alpha_min, alpha_max)


def log_density(p, alpha, beta):
  """float32 [B]: log of the Beta density; -inf at 0 and 1, whatever the shape."""
  inside = (p > 0) & (p < 1)
  q = jnp.where(inside, p, 0.5)
  norm = jax.scipy.special.betaln(alpha, beta)
  return jnp.where(inside, (alpha - 1) * jnp.log(q) + (beta - 1) * jnp.log1p(-q) - norm, -jnp.inf)
