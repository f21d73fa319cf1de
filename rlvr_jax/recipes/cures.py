"""CurES: prompts drawn by how much their verdicts vary, and rollouts shared out in the same way.

A prompt is drawn, without replacement, from softmax(sqrt(p (1 - p)) / tau) at its believed solve rate p, and
gets rollouts in proportion to sqrt(p (1 - p)). A lone rollout has nobody to be compared with: lone ones are
paired. Differs: the paper goes through the data in disjoint subsets, measures each with four rollouts a
prompt before training on it, and then forgets them; here there is one table, a prompt not seen yet counts
as p = 1/2, and `keep` makes old verdicts fade. Left out: norms of gradients in the quota, and the
temperature of each prompt in the authors' code, which makes the draw nearly uniform. tau is ours.
"""

import jax.numpy as jnp

from rlvr_jax.allocate.proportional import proportional
from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.beta import beta
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import gumbel_top_k

PAPER = (
  "CurES: From Gradient Analysis to Efficient Curriculum Learning for Reasoning LLMs",
  "arXiv 2510.01037",
)
STAGES = ("filter", "control")
CHANGES = ("posterior", "select", "allocate")
EVIDENCE = "code"


def cures(*, tau: float = 0.1, keep: float = 0.5, epochs: bool = False, **options) -> Recipe:
  """Softmax prompts and proportional quotas.

  Args:
    tau: of the softmax, positive.
    keep: of posterior.beta.beta.
    epochs: whether a prompt is drawn once before any comes twice.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    posterior=acquisition.scored(beta(keep=keep), deviation),
    select=gumbel_top_k(temperature=tau, epochs=epochs),
    allocate=proportional(low=0, pair=True),
  )


def deviation(key, belief, knobs):
  """Standard deviation of one verdict, sqrt(p (1 - p))."""
  del key, knobs
  return jnp.sqrt(belief.mean * (1 - belief.mean))
