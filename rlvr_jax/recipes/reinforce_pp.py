"""REINFORCE++: advantages normalised over the whole batch instead of over each group.

Without a baseline it needs no groups: give it as many prompts as rows. With one, rewards are first centred
on their group, as the paper advises for groups. Left out: the penalty on the distance to a reference inside
the reward (name it with `token_reward` if something writes it).
"""

from rlvr_jax.advantage import whitened
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization",
  "arXiv 2501.03262",
)
STAGES = ("optimise",)
CHANGES = ("advantage",)
EVIDENCE = "code"


def reinforce_pp(
  *, baseline: bool = False, gamma: float = 1.0, token_reward: str = "", **options
) -> Recipe:
  """Whitened rewards to go.

  Args:
    baseline: centre rewards on their group first; gamma and token_reward then play no part, and giving
      them raises.
    gamma, token_reward: see advantage.whitened.reinforce_pp.
    **options: of `grpo`.
  """
  if baseline and (gamma != 1 or token_reward):
    raise ValueError("with baseline=True leave gamma at 1 and token_reward empty: it has no steps")
  if baseline:
    advantage = whitened.reinforce_pp_baseline()
  else:
    advantage = whitened.reinforce_pp(gamma=gamma, token_reward=token_reward)
  return grpo(**options)._replace(advantage=advantage)
