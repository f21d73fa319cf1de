"""SAS: no credit for the unsure steps of a correct row, nor for the sure steps of a failed one.

A step of the thinking part ends with a separator, a token whose text holds a blank line; its confidence is
the mean log-prob of its tokens at sampling. What follows the thinking part is always trained. Differs from
the released code: there the count of zeroed steps is, by precedence of operators, all of them for any
ratio, which contradicts the paper's own ablation of the ratio; the paper is followed. Token ids depend on
the tokenizer: without `separators` the whole thinking part is one step. The paper trains in a short window
(4096 tokens) on a model made for a long one.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import steps
from rlvr_jax.objective import aggregate, kl
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Stabilizing Efficient Reasoning with Step-Level Advantage Selection",
  "arXiv 2604.24003",
)
STAGES = ("filter", "optimise")
CHANGES = ("weigh", "aggregate", "objective", "annotate")
EVIDENCE = "code"


def sas(
  *,
  ratio: float = 0.3,
  separators: tuple[int, ...] = (),
  think_end: int = -1,
  kl_coefficient: float = 0.001,
  **options,
) -> Recipe:
  """Step-level selection.

  Args:
    ratio: share of the steps that lose their credit.
    separators: ids of the tokens whose text holds a blank line.
    think_end: id of the token that ends the thinking part.
    kl_coefficient: of the KL term towards the initial policy (k3); 0 is none.
    **options: of `grpo`.
  """
  base = grpo(**options)
  objective = kl.in_loss(base=base.objective, coefficient=kl_coefficient, estimate=kl.k3)
  return base._replace(
    weigh=steps.sure_steps(ratio=ratio, separators=tuple(separators), think_end=think_end),
    aggregate=aggregate.token_mean(over=aggregate.every),
    objective=objective,
    annotate=objective.needs,
  )
