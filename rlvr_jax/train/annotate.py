"""Log-probs of other policies, stored with the rows before the update: see Recipe.annotate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import Packed, Policy, Recipe, Rows
from rlvr_jax.train.learn import token_stats

OLD = "old"  # the learner's own parameters, before the first update on the batch


class Model(NamedTuple):
  """A policy that is not trained."""

  policy: Policy
  params: Any


def make_annotate(policy: Policy, recipe: Recipe, models: Mapping[str, Model], *, lanes: int = 1):
  """Builds annotate(params, rows, packed) -> rows with extras["<name>_logprobs"] for all the recipe asks.

  They are float32 [N,T], at each row's own temperature, 0 where `packed` has nothing to read. After
  them the objective's survey of the batch is taken. Without anything to do it hands the rows back.

  Args:
    policy: the policy that is trained; `params` are its own.
    models: name -> Model, for every name but "old".
    lanes: bins computed side by side.

  Raises:
    ValueError: if the recipe asks for a model that is not there, or whose vocabulary is another one.
  """
  for name in recipe.annotate:
    if name == OLD:
      continue
    if name not in models:
      raise unknown("model that the recipe annotates with", name, models)
    size = models[name].policy.vocab_size
    if size != policy.vocab_size:
      raise ValueError(
        f"the model {name!r} has a vocabulary of {size} tokens, the policy one of {policy.vocab_size}"
      )
  policies = {name: policy if name == OLD else models[name].policy for name in recipe.annotate}
  survey = recipe.objective.survey or (lambda rows: rows)

  @jax.jit
  def run(params: dict[str, Any], rows: Rows, packed: Packed) -> Rows:
    extras = {
      f"{name}_logprobs": token_stats(one, params[name], packed, lanes=lanes).logprobs
      for name, one in policies.items()
    }
    return survey(rows.replace(extras=rows.extras | extras))

  def annotate(params, rows: Rows, packed: Packed) -> Rows:
    own = {name: models[name].params if name != OLD else params for name in policies}
    return run(own, rows, packed)

  return annotate
