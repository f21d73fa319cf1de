"""MSSR: one rollout a prompt, judged against a running value of the prompt, with a bonus for entropy.

Give it as many prompts as rows. Nothing in the method is about images, which the paper trains on. Differs
from the paper: how fast the value forgets is one number, where the paper lets it follow the policy's KL
divergence between steps (posterior.tracker.forgetting has the formula, of which two forms are printed; 0.96
is its value for a policy that hardly moves); values start at 0.5 with the weight of 8 verdicts instead of
one rollout of each prompt before training; the bonus uses the entropy at sampling; no KL term.
"""

from rlvr_jax.advantage import anchored
from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.tracker import tracker
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Stable and Efficient Single-Rollout RL for Multimodal Reasoning",
  "arXiv 2512.18215",
)
STAGES = ("filter", "optimise")
CHANGES = ("posterior", "advantage")
EVIDENCE = "docs"


def mssr(
  *,
  keep: float = 0.96,
  initial: float = 0.5,
  entropy_bonus: float = 0.4,
  kappa: float = 2.0,
  **options,
) -> Recipe:
  """Tracked values and capped entropy bonus; entropy_bonus=0 is single-stream policy optimisation.

  Args:
    keep, initial: of posterior.tracker.tracker.
    entropy_bonus, kappa: of advantage.anchored.mssr.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    posterior=acquisition.scored(tracker(keep=keep, initial=initial), acquisition.uniform()),
    advantage=anchored.mssr(entropy_bonus=entropy_bonus, kappa=kappa),
  )
