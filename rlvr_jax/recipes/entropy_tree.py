"""Trees of finished rollouts: fork late, where the policy hesitated most, and credit siblings against each
other.

Ours. Of every forks + 1 rows of a prompt one is drawn to its end; then it forks at the places of its later
part where the entropy was highest, and each child is drawn to its own end. A child costs what comes after
the fork, for the sampler and for the learner, and its prefix is a state that the policy did reach. A
token's credit is that of its stretch between forks against the stretches beside it, so that what both share
cancels.
"""

from rlvr_jax.advantage.tree import tree as credit
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep.tree import once
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.tree import late, tree

PAPER = ("Late forks at high entropy, with sibling credit", "ours")
STAGES = ("generate", "optimise")
CHANGES = ("rollout", "advantage", "weigh", "aggregate")
EVIDENCE = "inferred"


def entropy_tree(
  *,
  forks: int = 1,
  begin: float = 0.5,
  mode: str = "sibling",
  values: str = "leaf",
  mix: float = 0.5,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Late forks at the highest entropies.

  Args:
    forks, begin: of rollout.tree.late.
    mode, values, mix: of advantage.tree.tree.
    slots, top_k, top_p, min_p: of rollout.tree.tree.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    rollout=tree(late(forks, begin=begin), slots=slots, top_k=top_k, top_p=top_p, min_p=min_p),
    advantage=credit(mode=mode, values=values, mix=mix),
    weigh=once(),
    aggregate=aggregate.token_mean(over=aggregate.kept),
  )
