"""E3: more rollouts for prompts of a higher rank of difficulty, and a temperature that holds the entropy.

Ranks go by the success rate over the whole run and are renewed every epoch, when the range of rollouts a
prompt widens too; the first epoch is uniform. The temperature of sampling, which is that of the loss as well,
rises when the entropy of the trained tokens falls below what it was at the start. Left out: the penalty for
length, off in the authors' code. Ours: no prompt gets more than the largest number (`cap`), and the bounds of
the temperature.
"""

from rlvr_jax.allocate.ranked import ranked
from rlvr_jax.control.entropy import hold_entropy
from rlvr_jax.control.ranks import accuracy_rank
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "Enhancing Efficiency and Exploration in Reinforcement Learning for LLMs",
  "arXiv 2505.18573",
)
STAGES = ("control",)
CHANGES = ("allocate", "advantage", "control")
EVIDENCE = "code"


def e3(
  *,
  low: int = 4,
  high: int = 12,
  widen: float = 2.0,
  cap: bool = True,
  vocab: int = 151936,
  collect: int = 1,
  anneal_steps: int = 0,
  temperature: float = 1.0,
  ddof: int = 1,
  **options,
) -> Recipe:
  """Budget by rank, temperature by entropy.

  Args:
    low, high, cap: of allocate.ranked.ranked.
    widen: of control.ranks.accuracy_rank.
    vocab, collect, anneal_steps: of control.entropy.hold_entropy.
    temperature: the first one.
    ddof, **options: of `grpo`.
  """
  base = grpo(temperature=temperature, ddof=ddof, **options)
  thermostat = hold_entropy(
    base=base.control,
    vocab=vocab,
    temperature=temperature,
    collect=collect,
    anneal_steps=anneal_steps,
  )
  return base._replace(
    allocate=ranked(low=low, high=high, cap=cap),
    control=accuracy_rank(base=thermostat, widen=widen),
  )
