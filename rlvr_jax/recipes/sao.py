"""SAO: one rollout a prompt, a critic, and tokens whose ratio has gone too far dropped on either side.

Give it as many prompts as rows. The ratio is taken to the policy that sampled; tokens outside of
(1 - low, 1 + high) have no gradient, whatever the sign of their advantage, and stay in the denominator. The
advantage is GAE over the trained tokens with a lambda that grows with the response; the critic learns from
Monte-Carlo returns, twice a batch, on a trunk of its own whose attention does not move. Left out: the queue
of an asynchronous run, the critic's training before the run, and the steps in which only the critic learns.
Where the method's description leaves it open (a stop-gradient on ratio times advantage, the denominator,
the squared error of values), these are ours.
"""

from rlvr_jax.advantage.gae import gae
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate, bounds, modes, ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Single-Rollout Asynchronous Optimization for Agentic Reinforcement Learning",
  "arXiv 2607.07508",
)
STAGES = ("filter", "control", "optimise")
CHANGES = ("advantage", "objective", "aggregate", "baseline")
EVIDENCE = "notes"


def sao(
  *,
  low: float = 0.3,
  high: float = 5.0,
  alpha: float = 1.5,
  gamma: float = 1.0,
  head: str = "scalar",
  own_trunk: bool = True,
  critic_rate: float = 5e-6,
  critic_updates: int = 2,
  **options,
) -> Recipe:
  """Single rollouts against a critic.

  Args:
    low, high: of objective.bounds.clip; the paper has 0.3 and 5 for mathematics with tools, 0.8 and 3 for
      coding agents.
    alpha, gamma: of advantage.gae.gae.
    head, own_trunk: of train.critic.critic_baseline; its own trunk keeps its attention as it is.
    critic_rate, critic_updates: learning rate, and updates a batch.
    **options: of `grpo`.
  """
  critic = {
    "head": head,
    "own_trunk": own_trunk,
    "frozen": ("q", "k", "v", "o") if own_trunk else (),
    "learning_rate": critic_rate,
    "updates": critic_updates,
    "gamma": gamma,
  }
  return grpo(**options)._replace(
    advantage=gae(alpha=alpha, gamma=gamma, whiten=False),
    objective=ratio.surrogate(bounds=bounds.clip(low=low, high=high), mode=modes.filtered()),
    aggregate=aggregate.token_mean(over=aggregate.every),
    baseline=("critic", critic),
  )
