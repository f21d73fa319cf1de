"""NAT: an unbiased policy gradient from a random part of the tokens, by inverse probabilities.

`nat_rpc` cuts each row at a random length, and the learner runs the model up to the cut only. `nat_urs`
keeps tokens independently, which saves the head of the model and little else. Denominators count all
tokens of the batch, so that the expected gradient is that of `grpo`. Only the budget of half the tokens is
printed in the paper; the law of the cut (uniform), the least prefix and `full` are ours. A ratio over
whole rows needs every token and is refused; a prefix ratio goes with `nat_rpc`, since what is kept of a
row is a prefix.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import weigh
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Not all tokens are needed (NAT): token efficient reinforcement learning",
  "arXiv 2603.06619",
)
STAGES = ("optimise",)
CHANGES = ("weigh", "aggregate")
EVIDENCE = "notes"


def nat_rpc(*, minimum: float = 0.1, full: float = 0.0, **options) -> Recipe:
  """Random prefixes.

  Args:
    minimum: share of a row that is always kept; (1 + minimum) / 2 is kept on average.
    full: chance that a row is not cut; 0.1 bounds every weight by 10.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    weigh=weigh.random_prefix(minimum=minimum, full=full),
    aggregate=aggregate.token_mean(over=aggregate.every),
  )


def nat_urs(*, keep: float = 0.5, **options) -> Recipe:
  """Random tokens.

  Args:
    keep: chance of each token.
    **options: of `grpo`.
  """
  return grpo(**options)._replace(
    weigh=weigh.random_tokens(keep=keep), aggregate=aggregate.token_mean(over=aggregate.every)
  )
