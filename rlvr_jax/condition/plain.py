"""Rows see their prompt and nothing else."""

from rlvr_jax.core.types import Condition


def plain() -> Condition:
  """Nothing is added to a prompt."""
  return Condition()
