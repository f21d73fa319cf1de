"""CoPRIS: a fixed number of rollouts in flight, and the ratio of each token to the policy that sampled it.

As many rows as there are slots grow at any time: one that ends makes room for the next, those with the
longest response first, until enough groups are done. The unfinished wait, and go on in the next step under
the policy of then. Each token keeps the log-prob it was sampled with, so that the ratio of a row that several
policies wrote is exact token by token (each with its own: PPO's first-order surrogate, as in the paper).
Differs from the paper: log-probs are those of the sampler and not of a pass of the trainer after each stage
(`mismatch/*` says how far these are apart); a round has `prompts` groups to take from and not an endless
supply, so give it enough that the last slot stays busy; no dynamic filter.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import bounds, modes, ratio
from rlvr_jax.recipes.april import over_provisioned
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.partial import partial

PAPER = (
  "CoPRIS: Efficient and Stable Reinforcement Learning via Concurrency-Controlled Partial Rollout with "
  "Importance Sampling",
  "arXiv 2511.05589",
)
STAGES = ("generate", "replay", "optimise")
CHANGES = ("allocate", "rollout", "choose", "replay", "objective")


def copris(
  *,
  groups: int = 64,
  slots: int = 1024,
  most: int = 1024,
  max_age: int = 0,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  dual: float = 10.0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Partial rollouts at the level of rows, corrected token by token.

  Args:
    groups: groups of a batch; the paper has 64 of 8 rows.
    slots: rows in flight.
    most, max_age: of replay.partials.
    clip_low, clip_high, dual: bounds of the ratio to the policy that sampled, see objective.modes.ppo.
    top_k, top_p, min_p: of rollout.partial.
    **options: of `grpo`.
  """
  base = over_provisioned(grpo(**options), groups=groups, most=most, max_age=max_age)
  return base._replace(
    rollout=partial(groups=groups, slots=slots, top_k=top_k, top_p=top_p, min_p=min_p),
    objective=ratio.surrogate(
      bounds=bounds.clip(low=clip_low, high=clip_high), mode=modes.ppo(dual=dual)
    ),
  )
