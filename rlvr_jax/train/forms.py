"""What is trained, rolled out and exported, where these are not the same weights."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from rlvr_jax.core.types import Params, Policy
from rlvr_jax.models.lora import lora
from rlvr_jax.models.quant import quantise
from rlvr_jax.train.config import Config


class Forms(NamedTuple):
  """A policy in the forms that a run needs of it."""

  learner: Policy  # reads trained and frozen together
  trained: Params  # before the first update
  frozen: Params  # {} when everything is trained
  actor: Policy  # what is rolled out
  merged: Callable[[Params], Params]  # (trained) -> params of the policy as it was loaded
  rollout: Callable[[Params], Params]  # (trained) -> params of the actor; once a step


def make_forms(config: Config, policy: Policy, params: Params) -> Forms:
  """The forms that `lora_rank` and `rollout_quant` ask for. Takes the parameters over."""
  learner, trained, frozen, merge = policy, params, {}, lambda params: params
  if config.lora_rank:
    made = lora(policy, rank=config.lora_rank, alpha=config.lora_alpha, targets=config.lora_targets)
    key = jax.random.fold_in(jax.random.key(config.seed), 1)
    learner, merge = made.policy, made.merge
    trained, frozen = {"adapters": made.init(key)}, {"base": params}
  actor, convert = policy, lambda params: params
  if config.rollout_quant != "none":
    actor, convert = quantise(policy, bits={"int8": 8, "int4": 4}[config.rollout_quant])
  merged = lambda trained: merge(trained | frozen)
  return Forms(learner, trained, frozen, actor, merged, lambda trained: convert(merged(trained)))
