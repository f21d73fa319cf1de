"""What beliefs read of a step's tally."""

import jax.numpy as jnp

from rlvr_jax.core.types import Array, Tally


def counts(tally: Tally) -> tuple[Array, Array]:
  """(trials, successes), float32 [M] each, with 0 <= successes <= trials.

  Verdicts are shares of a success, in [0, 1]. A sum of them outside of [0, trials], as verdicts on another
  scale make it, is cut to that; a prompt whose sum is not a number counts as not rolled out.
  """
  trials = jnp.where(jnp.isnan(tally.successes), 0.0, tally.trials)
  return trials, jnp.where(trials > 0, jnp.clip(tally.successes, 0.0, trials), 0.0)
