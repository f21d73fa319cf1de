"""The sampling temperature as a thermostat of the policy's entropy."""

import math

import flax.struct
import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.core.types import Array, Controller


class EntropyState(flax.struct.PyTreeNode):
  temperature: Array  # float32 []
  step: Array  # int32 [], updates seen, from 1 after the first
  total: Array  # float32 [], entropies of the first updates
  number: Array  # float32 [], how many of them
  target: Array  # float32 [], in nats a token


def hold_entropy(
  *,
  base: Controller | None = None,
  vocab: int = 151936,
  temperature: float = 1.0,
  collect: int = 1,
  anneal_steps: int = 0,
  anneal_share: float = 0.4,
  anneal_to: float = 0.9,
  low: float = 0.3,
  high: float = 2.0,
) -> Controller:
  """The knob "temperature", steered so that the mean entropy of the trained tokens stays what it was.

      T <- T (1 + T ln(H_target / H) / (ln V + ln ln V))

  The target is the mean entropy of the first `collect` updates, during which T stays. An entropy that is
  0 or not a number changes nothing.

  Args:
    base: a controller whose knobs are there too.
    vocab: V, size of the vocabulary; above e. It only sets how fast T moves.
    temperature: the first T, positive.
    collect: updates that make the target; at least 1.
    anneal_steps: updates of the whole run; 0: the target is not annealed.
    anneal_share: last part of the run in which the target falls along half a cosine, in [0, 1].
    anneal_to: what it falls to, as a factor.
    low, high: bounds of T.

  Source: E3-RL4LLMs, arXiv 2505.18573; the bounds are ours.
  """
  if vocab < 3:
    raise ValueError(f"vocab must be at least 3, got {vocab}")
  if not 0 < low <= temperature <= high:
    raise ValueError(f"need 0 < low <= temperature <= high, got {low}, {temperature} and {high}")
  if collect < 1 or anneal_steps < 0 or not 0 <= anneal_share <= 1 or anneal_to <= 0:
    raise ValueError(
      "need collect >= 1, anneal_steps >= 0, anneal_share in [0, 1] and anneal_to > 0, got "
      f"{collect}, {anneal_steps}, {anneal_share} and {anneal_to}"
    )
  scale = math.log(vocab) + math.log(math.log(vocab))
  first = anneal_steps - math.floor(anneal_share * anneal_steps)

  def init(table):
    del table
    f = lambda x: jnp.asarray(x, jnp.float32)
    return EntropyState(f(temperature), jnp.zeros((), jnp.int32), f(0), f(0), f(0))

  def update(state, feedback):
    h = feedback.entropy
    seen = jnp.isfinite(h) & (h > 0)
    step = state.step + 1
    gathers = seen & (state.number < collect)
    total = state.total + jnp.where(gathers, h, 0.0)
    number = state.number + gathers
    base = total / jnp.maximum(number, 1.0)
    acts = seen & ~gathers
    ratio = jnp.where(acts, state.target / jnp.where(acts, h, 1.0), 1.0)
    t = state.temperature
    moved = jnp.clip(t * (1 + t * jnp.log(ratio) / scale), low, high)
    target = base
    if anneal_steps and first < anneal_steps:
      part = jnp.clip((step - first) / (anneal_steps - first), 0.0, 1.0)
      target = base * ((1 - anneal_to) * 0.5 * (1 + jnp.cos(jnp.pi * part)) + anneal_to)
    return EntropyState(jnp.where(acts, moved, t), step, total, number, target)

  return joined(base, Controller(init, lambda state: {"temperature": state.temperature}, update))
