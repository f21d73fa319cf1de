"""D3S: training on the rows of the batch whose advantages vary most, and on their weightiest tokens.

Rows are chosen over all groups, tokens by |advantage| times entropy over all chosen rows; both shares grow
during the run. Advantages are not taken anew. The loss is divided by the tokens kept. The shares, their
schedule, the pool of the tokens and the denominator are not printed and are ours; the entropy is that of
the policy that sampled.
"""

from rlvr_jax.control.ramp import ramp
from rlvr_jax.core.types import Recipe
from rlvr_jax.keep import weigh
from rlvr_jax.objective import aggregate
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Learning More with Less: A Dynamic Dual-Level Down-Sampling Framework for Efficient Policy "
  "Optimization",
  "arXiv 2509.22115",
)
STAGES = ("filter",)
CHANGES = ("weigh", "aggregate", "control")
EVIDENCE = "notes"


def d3s(
  *,
  rows_start: float = 0.25,
  rows_end: float = 0.5,
  tokens_start: float = 0.2,
  tokens_end: float = 0.5,
  ramp_steps: int = 100,
  **options,
) -> Recipe:
  """Down-sampling of rows and tokens.

  Args:
    rows_start, rows_end: share of the rows that are trained, before and after the ramp, in (0, 1].
    tokens_start, tokens_end: share of their tokens.
    ramp_steps: steps that the shares take, linearly; at least 1.
    **options: of `grpo`.
  """
  ends = (rows_start, rows_end, tokens_start, tokens_end)
  if not all(0 < share <= 1 for share in ends):
    raise ValueError(f"shares of rows and tokens must lie in (0, 1], got {ends}")
  if ramp_steps < 1:
    raise ValueError(f"ramp_steps must be at least 1, got {ramp_steps}")
  base = grpo(**options)
  control = ramp(
    base=base.control, knob="rows_share", start=rows_start, end=rows_end, steps=ramp_steps
  )
  control = ramp(
    base=control, knob="tokens_share", start=tokens_start, end=tokens_end, steps=ramp_steps
  )
  rows = weigh.max_variance(share=lambda knobs: knobs["rows_share"])
  return base._replace(
    weigh=weigh.top_tokens(share=lambda knobs: knobs["tokens_share"], within=rows),
    aggregate=aggregate.token_mean(over=aggregate.kept),
    control=control,
  )
