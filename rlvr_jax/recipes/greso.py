"""GRESO: prompts that were all right or all wrong at their latest visits are mostly passed over.

Prompts come in shuffled epochs. One whose last z visits were all right is kept with probability
keep_easy^z, after z all-wrong ones with keep_hard^z, but at least `floor`; a prompt passed over waits for the
next epoch. The two rates move so that flat groups are a set share of what is rolled out. Flat groups are
dropped and rounds repeat until the batch is full, as in `dapo`. Differs from the paper: all rounds are of one
size, where the paper makes a later one as large as seems needed; a full batch comes to the same, with more
surplus. Give every prompt at least two rollouts: one alone is always flat.
"""

import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.control.skip import skip_rates
from rlvr_jax.core.types import PromptPosterior, Recipe
from rlvr_jax.posterior.streaks import streaks
from rlvr_jax.recipes.dapo import dapo
from rlvr_jax.select.skip import skip

PAPER = (
  "Act Only When It Pays: Efficient Reinforcement Learning for LLM Reasoning via Selective Rollouts",
  "arXiv 2506.02177",
)
STAGES = ("filter", "control")
CHANGES = ("posterior", "select", "choose", "refill", "objective", "control")
EVIDENCE = "code"


def greso(
  *,
  start: float = 0.5,
  easy: float = 1 / 12,
  hard: float = 1 / 6,
  step: float = 0.01,
  floor: float = 0.01,
  right: float = 1.0,
  wrong: float = 0.0,
  **options,
) -> Recipe:
  """Selective rollouts.

  Args:
    start, easy, hard, step: of control.skip.skip_rates.
    floor: least probability of being kept, in [0, 1].
    right, wrong: a visit is all right from this share of successes on, all wrong up to that.
    **options: of `dapo`.
  """
  if not 0 <= floor <= 1:
    raise ValueError(f"floor must lie in [0, 1], got {floor}")
  model = streaks(right=right, wrong=wrong)
  base = dapo(**options)

  def kept(state, key, prompt_id, knobs):
    """The probability that each prompt is kept."""
    del key
    z = state.streak[prompt_id]
    rate = jnp.where(z > 0, knobs["keep_easy"], knobs["keep_hard"])
    return jnp.where(z == 0, 1.0, jnp.maximum(rate ** jnp.abs(z), floor))

  return base._replace(
    posterior=PromptPosterior(model.init, model.update, model.belief, kept),
    select=skip(),
    control=joined(
      base.control,
      skip_rates(start=start, easy=easy, hard=hard, step=step, right=right, wrong=wrong),
    ),
  )
