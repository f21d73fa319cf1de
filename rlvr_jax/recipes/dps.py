"""DPS: prompts that are predicted to be partly solved, by a hidden Markov model of each prompt.

A prompt is unsolved, partly solved or solved. How it moves between these is learned from its visits, and the
prompts most likely to be partly solved next are rolled out; ties are broken by lot. Prompts not visited
drift back to not being known, which is all the exploration there is. The candidates of a step are all
prompts; the paper's 8 or 32 times as many as are drawn are `candidates` of the config. Give every prompt at
least two rollouts: one alone is never partly solved. Our own: more states than three, for which the score is
four times the expected p (1 - p), the same with three; and a binomial emission (posterior.emission).
"""

import jax.numpy as jnp

from rlvr_jax.core.types import PromptPosterior, Recipe
from rlvr_jax.posterior.emission import rates
from rlvr_jax.posterior.hidden_markov import hidden_markov
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.select.top_k import top_k

PAPER = (
  "Dynamics-Predictive Sampling for Active RL Finetuning of Large Reasoning Models",
  "arXiv 2603.10887",
)
STAGES = ("filter", "control")
CHANGES = ("posterior", "select", "objective")
EVIDENCE = "code"


def dps(
  *,
  states: int = 3,
  keep: float = 0.7,
  start: str = "uniform",
  entropy_weight: float = 0.0,
  explore: float = 0.0,
  clip_low: float = 0.2,
  clip_high: float = 0.28,
  **options,
) -> Recipe:
  """Predicts which prompts will be mixed.

  Args:
    states, keep, start: of posterior.hidden_markov.
    entropy_weight: of the entropy of the prediction, in nats, added to the score.
    explore: of select.top_k.
    clip_low, clip_high: bounds of the ratio.
    **options: of `grpo`.
  """
  model = hidden_markov(states=states, keep=keep, start=start)
  rate = rates(states)
  partial = 4 * rate * (1 - rate)  # 0, 1, 0 with three states

  def score(state, key, prompt_id, knobs):
    del key, knobs
    score = jnp.zeros(len(prompt_id), jnp.float32)
    for row, value in zip(
      state.prior, partial
    ):  # gathers of several rows at once are slow on a CPU
      p = row[prompt_id]
      score += value * p
      if entropy_weight:
        score -= entropy_weight * p * jnp.log(jnp.maximum(p, 1e-30))
    return score

  return grpo(clip_low=clip_low, clip_high=clip_high, **options)._replace(
    posterior=PromptPosterior(model.init, model.update, model.belief, score),
    select=top_k(epochs=False, explore=explore),
  )
