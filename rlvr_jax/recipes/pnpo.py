"""PNPO: the importance weight of a token is the geometric mean of the ratios of its whole prefix.

Between the token ratio of GRPO and the sequence ratio of GSPO: the first token has the one, the last token
the other. Not known from the paper and ours: that the weight enters PPO's clipped surrogate, its bounds
(0.2 and 0.28; GSPO's would clip nearly every early token), the gradient through the whole prefix, and the
mean over rows of means over tokens. Its best results take four updates on a batch (updates=4).
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate, bounds, ratio, scopes
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Reusing Rollouts under Policy Lag: Prefix-Normalized Policy Optimization for LLM Reinforcement "
  "Learning",
  "arXiv 2608.01418",
)
STAGES = ("optimise",)
CHANGES = ("objective", "aggregate")
EVIDENCE = "notes"


def pnpo(*, clip_low: float = 0.2, clip_high: float = 0.28, own: bool = False, **options) -> Recipe:
  """Prefix ratios.

  Args:
    clip_low, clip_high: bounds of the weight.
    own: of objective.scopes.prefix: the gradient reaches the token's own log-prob only.
    **options: of `grpo`.
  """
  clip = bounds.clip(low=clip_low, high=clip_high)
  return grpo(**options)._replace(
    objective=ratio.surrogate(scope=scopes.prefix(own=own), bounds=clip),
    aggregate=aggregate.sequence_mean_token_mean(),
  )
