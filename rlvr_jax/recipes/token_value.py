"""Token value: prompts and rollouts by the signal that is expected of each TOKEN.

Ours. The budget of a run is tokens, not rollouts: a prompt whose rollouts are three times as long must
promise three times the signal. Solve rates are logits that drift with the policy, which prompts of one source
do together; rollout lengths are predicted too (posterior.logit_normal). Prompts are drawn by the chance that
their group is mixed, for each token that the group is expected to take; rollouts are then dealt one by one to
whoever gains most for each expected token, until the tokens are spent that an even split of three quarters of
the rows would take.
Derived in docs/token_value.md.
"""

from rlvr_jax.allocate import marginal
from rlvr_jax.core.types import Recipe
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.logit_normal import logit_normal
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import top_k

PAPER = ("Token value: selection and allocation by expected signal for each expected token", "ours")
STAGES = ("filter", "control")
CHANGES = ("posterior", "select", "allocate")
EVIDENCE = "code"


def token_value(
  *,
  rollouts: int = 8,
  low: int = 2,
  high: int = 0,
  fill: float = 0.75,
  explore: float = 0.1,
  draw: bool = False,
  walk: float = 0.05,
  common: float = 0.05,
  **options,
) -> Recipe:
  """Selection and allocation by expected signal for each expected token.

  Args:
    rollouts: that a prompt is taken to get when prompts are ranked; at least 2.
    low, high: least and most rollouts of a prompt; high 0 is 4 * rollouts.
    fill: of allocate.marginal.priced, whose tokens are those of an even split of so many of the rows.
    explore: share of the prompts that is drawn uniformly.
    draw: rank by solve rates drawn from the beliefs (Thompson) instead of their expectation.
    walk, common: of posterior.logit_normal.
    **options: of `grpo`.
  """
  if rollouts < 2:
    raise ValueError(f"rollouts must be at least 2: a lone one has no contrast, got {rollouts}")
  value = acquisition.mixed(rollouts=rollouts)
  value = acquisition.per_token(of=acquisition.thompson(of=value) if draw else value)
  return grpo(**options)._replace(
    posterior=acquisition.scored(logit_normal(walk=walk, common=common), value),
    select=top_k(epochs=False, explore=explore),
    allocate=marginal.priced(
      gain=marginal.contrast(), low=low, high=high or 4 * rollouts, fill=fill
    ),
  )
