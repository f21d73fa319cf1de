"""JET: responses are cut at fractions of their length and have to answer at once; short right ones gain most.

A group is some whole responses and, for each, cuts at 25, 50 and 75 percent: the prefix, a cue to stop
thinking, and a short answer. Right rows get a bonus that grows as they get shorter beside the other right
ones, and the cue is trained, so that the policy learns to give it by itself. A prefix is computed by the
learner once, and carries the advantages of all rows that share it.
Differs from the paper: a cut is at a token, not at a character; the answer ends by itself or after `tail`
tokens, not behind the sentence that holds it; the format counts only where a reward function for it is named;
the prefix of a cut is read again (as a prompt is) and not taken from the cache.
"""

from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.reward.length import just_enough
from rlvr_jax.rollout.horizon import horizon

PAPER = (
  "Your Models Have Thought Enough: Training Large Reasoning Models to Stop Overthinking",
  "arXiv 2509.23392",
)
STAGES = ("generate",)
CHANGES = ("rollout", "reward")
EVIDENCE = "code"


def jet(
  *,
  ratios: tuple[float, ...] = (0.25, 0.5, 0.75),
  cue: tuple[int, ...] = (),
  tail: int = 50,
  train_cue: bool = True,
  alpha: float = 1.2,
  delta: float = 0.05,
  format: str = "",
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  ddof: int = 1,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Early exits beside whole responses.

  Args:
    ratios, cue, tail, train_cue: of rollout.horizon; a group of 12 is 3 whole rows and 9 cuts, as in the
      paper; its code has ratios 0.1, 0.3, 0.5, 0.7, 0.9. The cue has to be given in the policy's own tokens.
    alpha, delta, format: of reward.length.just_enough.
    slots, top_k, top_p, min_p: of rollout.linear.
    clip_low, clip_high, ddof, **options: of `grpo`.
  """
  law = {"slots": slots, "top_k": top_k, "top_p": top_p, "min_p": min_p}
  return grpo(clip_low=clip_low, clip_high=clip_high, ddof=ddof, **options)._replace(
    rollout=horizon(ratios=ratios, cue=cue, tail=tail, train_cue=train_cue, **law),
    reward=just_enough(alpha=alpha, delta=delta, format=format),
  )
