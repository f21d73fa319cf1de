"""VADE: the prompts of largest p (1 - p)^2, at solve rates drawn from beliefs that fade at two scales.

Beliefs are Beta laws over all prompts. A draw from each makes prompts that are little known, or whose
evidence has faded, come up now and then; the gain is largest at a solve rate of 1/3. Evidence fades where a
prompt surprises, and everywhere when the step as a whole does; that there are two scales is the paper's, the
equations and constants are ours (posterior.beta). Nothing in the method is about images, which the paper
trains on. Draws are those of core.beta_laws.draw_beta, off by less than 3e-4 in total variation.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import beta
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import top_k

PAPER = (
  "VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation for Multimodal RL",
  "arXiv 2511.18902",
)
STAGES = ("filter", "control")
CHANGES = ("posterior", "select")
EVIDENCE = "notes"


def vade(
  *,
  right: float = 1.0,
  wrong: float = 2.0,
  fade_own: float = 0.5,
  fade_all: float = 0.1,
  explore: float = 0.0,
  **options,
) -> Recipe:
  """Thompson sampling of informative prompts.

  Args:
    right, wrong: powers of posterior.acquisition.variance.
    fade_own, fade_all: of posterior.beta.
    explore: of select.top_k.
    **options: of `grpo`.
  """
  gain = acquisition.variance(right=right, wrong=wrong)
  return grpo(**options)._replace(
    posterior=acquisition.scored(
      beta(fade_own=fade_own, fade_all=fade_all), acquisition.thompson(of=gain)
    ),
    select=top_k(epochs=False, explore=explore),
  )
