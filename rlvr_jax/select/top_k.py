"""The prompts of highest score, for certain or with some chance."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import lots
from rlvr_jax.select import best as best_lib


def top_k(*, epochs: bool = True, explore: float = 0.0):
  """The `num` candidates of highest score; ties by lot, scores that are not numbers last.

  Args:
    epochs, explore: of select.best.choose.
  """
  best_lib.check(explore)

  def select(key, candidates, num, knobs):
    del knobs
    return best_lib.choose(key, candidates.score, candidates, num, epochs=epochs, explore=explore)

  return select


def gumbel_top_k(
  *, temperature: float = 1.0, knob: str = "", epochs: bool = True, explore: float = 0.0
):
  """Draws without replacement from softmax(score / temperature), exactly.

  The k largest of score / temperature + Gumbel noise are k such draws, in order.

  Args:
    temperature: positive; small: `top_k`, large: uniform.
    knob: take the temperature from this knob instead.
    epochs, explore: of select.best.choose.

  Source: Kool, van Hoof and Welling, arXiv 1903.06059.
  """
  best_lib.check(explore)
  if temperature <= 0:
    raise ValueError(f"temperature must be positive, got {temperature}")

  def select(key, candidates, num, knobs):
    if knob and knob not in knobs:
      raise ValueError(f"gumbel_top_k reads the knob {knob!r}; control has {sorted(knobs)}")
    noise, rest = jax.random.split(key)
    tau = knobs[knob] if knob else temperature
    score = candidates.score / tau + lots.gumbel(noise, len(candidates.score))
    return best_lib.choose(rest, score, candidates, num, epochs=epochs, explore=explore)

  return select


def band(*, low: float = 0.2, high: float = 0.8, epochs: bool = True, explore: float = 0.0):
  """Uniform among the candidates whose mean belief lies within [low, high], whatever their score; if they
  are too few, the ones nearest to the band fill up.

  Args:
    epochs, explore: of select.best.choose.
  """
  best_lib.check(explore)
  if not 0 <= low <= high <= 1:
    raise ValueError(f"0 <= low <= high <= 1 must hold, got {low} and {high}")

  def select(key, candidates, num, knobs):
    del knobs
    mean = candidates.belief.mean
    outside = jnp.maximum(jnp.maximum(low - mean, mean - high), 0.0)
    return best_lib.choose(key, -outside, candidates, num, epochs=epochs, explore=explore)

  return select
