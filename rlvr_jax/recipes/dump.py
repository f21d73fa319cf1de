"""DUMP: a bandit over data sources, which draws more from those whose rollouts have large advantages.

Each place of a round draws a source, then a prompt of it uniformly among those not drawn in this epoch.
Differs from the paper: no prompt comes twice in a step, so that a source with fewer prompts than it was drawn
leaves places to the others; no KL term. Our own: `floor`, and that `within` may be another way of
selecting.
"""

from rlvr_jax.control.joined import joined
from rlvr_jax.control.sources import source_bandit
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.two_stage import by_source

PAPER = (
  "DUMP: Automated Distribution-Level Curriculum Learning for RL-based LLM Post-training",
  "arXiv 2504.09710",
)
STAGES = ("filter", "control")
CHANGES = ("select", "control")
EVIDENCE = "code"


def dump(
  *,
  window: int = 300,
  tau: float = 0.1,
  bonus: float = 1.0,
  floor: float = 0.0,
  within=None,
  **options,
) -> Recipe:
  """Curriculum over sources.

  Args:
    window, tau, bonus, floor: of control.sources.source_bandit.
    within: of select.two_stage.by_source.
    **options: of `grpo`.
  """
  base = grpo(**options)
  return base._replace(
    select=by_source(within=within),
    control=joined(base.control, source_bandit(window=window, tau=tau, bonus=bonus, floor=floor)),
  )
