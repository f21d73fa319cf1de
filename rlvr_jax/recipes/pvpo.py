"""PVPO: rewards against what a reference policy got on the prompt, not against the group.

A group of one is enough, and an all-equal group still teaches. Prompts that the reference always solved in
at least `sure` rollouts are not drawn. The reference's verdicts come from a file; without one, or for a
prompt that is not in it, the prompt's first visit serves as its reference (its advantage is then the
group's, centred) until `refresh` more visits have passed. Left out: trajectories of a larger model for
prompts that the reference never solved (they stay in, as they are), and the KL term. Our own: sure, and
that the reference is renewed prompt by prompt.
"""

from rlvr_jax.advantage import anchored
from rlvr_jax.core.profile import load
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective import aggregate
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.tracker import anchor
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "PVPO: Pre-Estimated Value-Based Policy Optimization for Agentic Reasoning",
  "arXiv 2508.21104",
)
STAGES = ("filter", "control", "optimise")
CHANGES = ("posterior", "select", "advantage", "aggregate")
EVIDENCE = "notes"


def pvpo(
  *, profile: str = "", refresh: int = 0, sure: int = 8, scale: bool = False, **options
) -> Recipe:
  """A fixed anchor for each prompt.

  Args:
    profile: an .npz file with arrays `successes` and `trials`, one number a prompt of the table, as
      `python -m launch.evaluate --profile` writes; empty: none.
    refresh: visits that an anchor lasts; 0: for good.
    sure: rollouts of the reference, all right, from which on a prompt is left out; at least 1.
    scale: of advantage.anchored.pvpo.
    **options: of `grpo`.
  """
  if sure < 1:
    raise ValueError(f"sure must be at least 1, got {sure}")
  counts = {}
  if profile:
    successes, trials = load(profile)
    counts = {"successes": successes, "trials": trials}
  base = grpo(**options)

  def select(key, candidates, num, knobs):
    belief = candidates.belief
    solved = (belief.mean == 1) & (belief.evidence >= sure)  # by the reference, always
    enough = (~solved & ~candidates.taken).sum() >= num  # or there would be nothing to do
    skipped = candidates.visited | (solved & enough)
    return base.select(key, candidates.replace(visited=skipped), num, knobs)

  return base._replace(
    posterior=acquisition.scored(anchor(**counts, refresh=refresh), acquisition.uniform()),
    select=select,
    advantage=anchored.pvpo(scale=scale),
    aggregate=aggregate.sequence_mean_token_mean(),
  )
