"""RLAD: the trust region is centred on a geometric mix of the old policy and a teacher.

The teacher scores the tokens that the policy sampled, nothing more; it gives no reward and turns no sign.
What it dislikes is not reinforced, what it likes is not punished. One sentence of the paper has the ends
of alpha the wrong way round; the formula decides: alpha=1 is `grpo`. alpha and the bounds are ours. Needs
a model named "teacher" with the policy's own tokenizer.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import anchors, bounds, kl, modes, ratio
from rlvr_jax.recipes.grpo import grpo

PAPER = ("Reinforcement-aware Knowledge Distillation for LLM Reasoning", "arXiv 2602.22495")
STAGES = ("optimise",)
CHANGES = ("objective", "annotate")
EVIDENCE = "notes"


def rlad(
  *,
  alpha: float = 0.5,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual: float = 0.0,
  kl_coefficient: float = 0.0,
  **options,
) -> Recipe:
  """A teacher in the ratio.

  Args:
    alpha: weight of the old policy in the anchor; 1 leaves the teacher out.
    clip_low, clip_high: bounds of the ratio.
    dual: of objective.modes.ppo.
    kl_coefficient: of a KL term towards the model "reference", 0.001 in some of the paper's runs.
    **options: of `grpo`.
  """
  objective = ratio.surrogate(
    anchor=anchors.teacher_mixture(alpha=alpha),
    bounds=bounds.clip(low=clip_low, high=clip_high),
    mode=modes.ppo(dual=dual),
  )
  objective = kl.in_loss(base=objective, coefficient=kl_coefficient)
  return grpo(**options)._replace(objective=objective, annotate=objective.needs)
