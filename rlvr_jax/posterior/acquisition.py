"""Acquisitions: what makes a prompt worth a rollout, given the belief. Any belief with any of them."""

import jax.numpy as jnp

from rlvr_jax.core.types import BeliefModel, PromptPosterior


def scored(model: BeliefModel, acquisition) -> PromptPosterior:
  """A belief model whose prompts are scored by acquisition(key, belief, knobs) -> float32 [C]."""

  def score(state, key, prompt_id, knobs):
    return acquisition(key, model.belief(state, prompt_id), knobs)

  return PromptPosterior(model.init, model.update, model.belief, score)


def uniform():
  """Every prompt scores 1."""
  return lambda key, belief, knobs: jnp.ones_like(belief.mean)
