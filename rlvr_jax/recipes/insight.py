"""INSIGHT: prompts ranked by what their verdicts would say about them, times how learnable they are.

The information of the next rollouts about a prompt's solve rate falls as evidence grows, so that prompts
hardly known come first; the weight prefers solve rates near, and a little above, `mu`. The paper lists
mu = 3.0 in one place and compares 0.1, 0.3 and 0.7 in another: 0.3 is meant. The candidates of a step are all
prompts; the paper's 16 times as many as are drawn are `candidates` of the config. As in the paper nothing is
forgotten by default; `keep` forgets at each visit.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import beta
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import top_k

PAPER = (
  "Efficient RLVR Training via Weighted Mutual Information Data Selection",
  "arXiv 2603.01907",
)
STAGES = ("filter", "control")
CHANGES = ("posterior", "select")
EVIDENCE = "paper"


def insight(
  *,
  rollouts: int = 8,
  eta: float = 3.0,
  mu: float = 0.3,
  keep: float = 1.0,
  explore: float = 0.0,
  **options,
) -> Recipe:
  """Weighted mutual information.

  Args:
    rollouts, eta, mu: of posterior.acquisition.insight; `rollouts` are those a prompt gets.
    keep: of posterior.beta.
    explore: of select.top_k.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    posterior=acquisition.scored(
      beta(keep=keep), acquisition.insight(rollouts=rollouts, eta=eta, mu=mu)
    ),
    select=top_k(epochs=False, explore=explore),
  )
