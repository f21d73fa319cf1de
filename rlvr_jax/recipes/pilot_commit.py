"""Pilot-Commit: a few rollouts for every prompt, the rest only for those of middling accuracy.

Only prompts that were committed to are trained, pilots included; a prompt whose rollouts were all right at
its last visit is not drawn again as long as there are enough others. Differs: pilots and commits lie in the
same round, so that nothing is kept from step to step and no pilot is stale (the paper commits to prompts of
earlier rounds, up to five updates old, and repeats rounds until an update is full); what nobody is committed
to is not spent. By default the prompts of middling accuracy share the rest evenly, where the paper gives each
a fixed number.
"""

from rlvr_jax.allocate import staged
from rlvr_jax.core.types import Recipe, Refill
from rlvr_jax.keep import choose
from rlvr_jax.posterior import acquisition
from rlvr_jax.posterior.latest import latest
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Spend Your Rollouts Where It Counts: Rollout Allocation for Group-Based RL Post-Training",
  "arXiv 2605.26606",
)
STAGES = ("generate", "filter", "control")
CHANGES = ("posterior", "select", "allocate", "choose", "refill", "advantage", "objective")
EVIDENCE = "code"


def pilot_commit(
  *,
  pilot: int = 4,
  commit: int = 0,
  pilots_kept: int = 0,
  low: float = 0.125,
  high: float = 0.75,
  evict: float = 1.0,
  widest: bool = False,
  rounds: int = 1,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Pilots, then commits.

  Args:
    pilot, commit, low, high, widest: of allocate.staged.pilot_commit.
    pilots_kept: pilots that stay in a group, see keep.choose.committed; 0: all.
    evict: a prompt whose latest visit was right in at least this share is not drawn again; above 1: none.
    rounds: most rounds of new prompts in a step.
    clip_low, clip_high, ddof, **options: of `grpo`.
  """
  if evict <= 0:
    raise ValueError(f"evict must be positive, got {evict}")
  if rounds < 1:
    raise ValueError(f"rounds must be at least 1, got {rounds}")
  base = grpo(clip_low=clip_low, clip_high=clip_high, ddof=ddof, **options)

  def select(key, candidates, num, knobs):
    belief = candidates.belief
    solved = (belief.evidence > 0) & (belief.mean >= evict)  # as good as
    enough = (~solved & ~candidates.taken).sum() >= num  # or there would be nothing to do
    skipped = candidates.visited | (solved & enough)
    return base.select(key, candidates.replace(visited=skipped), num, knobs)

  return base._replace(
    posterior=acquisition.scored(latest(), acquisition.uniform()),
    select=select,
    allocate=staged.pilot_commit(pilot=pilot, commit=commit, low=low, high=high, widest=widest),
    choose=choose.committed(pilots=pilots_kept),
    refill=Refill(rounds=rounds),
  )
