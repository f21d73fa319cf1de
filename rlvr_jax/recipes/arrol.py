"""ARRoL: half of the rollouts are cut off on the way, so that right and wrong ones among the rest balance.

At a detection length a small head, trained online on the verdicts, says of each row how it will end; a
posterior over bins of its score makes that a probability; the rows that go on are drawn so that half of them
are expected to be right. Those that are cut off cost no further tokens, no verification and no update.
The paper prints the parts and their sizes; the survival rule, the calibration, the weights of the head's
labels and the warm-up are ours. Also ours: the head sees the last hidden state through a fixed random matrix,
so that its size does not depend on the model; rows that end before the detection length count with the
head's probability, since they are verified later; the text so far is read twice more, as a prompt is, once
by the head and once when rows go on. Beliefs hear of the survivors only, which are balanced on purpose.
"""

from rlvr_jax.control.quality import quality
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.prune import prune

PAPER = (
  "Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR",
  "arXiv 2603.24840",
)
STAGES = ("generate", "filter", "control")
CHANGES = ("rollout", "control")
EVIDENCE = "paper"


def arrol(
  *,
  keep: float = 0.5,
  share: float = 0.5,
  detect: int = 512,
  features: int = 256,
  bins: int = 10,
  decay: float = 0.99,
  warmup: int = 10,
  head_rate: float = 1e-3,
  ddof: int = 1,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Pruning in flight.

  Args:
    keep, share, detect: of rollout.prune.
    features: of both rollout.prune and control.quality.
    bins, decay, warmup: of control.quality; head_rate: its learning rate.
    slots, top_k, top_p, min_p: of rollout.linear.
    ddof, **options: of `grpo`.
  """
  base = grpo(ddof=ddof, **options)
  law = {"slots": slots, "top_k": top_k, "top_p": top_p, "min_p": min_p}
  head = {"bins": bins, "decay": decay, "warmup": warmup, "learning_rate": head_rate}
  return base._replace(
    rollout=prune(keep=keep, share=share, detect=detect, features=features, **law),
    control=quality(base=base.control, features=features, **head),
  )
