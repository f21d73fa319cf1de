"""Log-probs of other policies, stored with the rows before the update: see Recipe.annotate."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from rlvr_jax.core import hosts
from rlvr_jax.core.types import Packed, Policy, Recipe, Rows
from rlvr_jax.train import pack
from rlvr_jax.train.learn import READ_TOKENS, token_stats

OLD = "old"  # the learner's own parameters, before the first update on the batch


class Model(NamedTuple):
  """A policy that is not trained."""

  policy: Policy
  params: Any


def make_annotate(
  policy: Policy,
  recipe: Recipe,
  models: Mapping[str, Model],
  *,
  num_rows: int,
  num_places: int,
  bin_tokens: int = 0,
  read_tokens: int = READ_TOKENS,
  lanes: int = 1,
  constrain=lambda lanes: lanes,
  frozen=None,
  offload: bool = False,
):
  """Builds annotate(params, rows) -> rows with extras["<name>_logprobs"] for all the recipe asks.

  They are float32 [N,T], of every token that may be trained, at each row's own temperature; 0 elsewhere.
  After them the objective's survey of the batch is taken. With nothing to do it hands the rows back.

  Args:
    policy: the policy that is trained; `params` are its own.
    models: name -> Model, for every name but "old".
    num_rows, num_places, bin_tokens, read_tokens, lanes, constrain, frozen: as in `learn.make_learn`.
    offload: keep the models' parameters in host memory, and on the devices only while they run.

  Raises:
    ValueError: if the recipe asks for a model that is not there, or whose vocabulary is another one.
  """
  for name in recipe.annotate:
    if name == OLD:
      continue
    if name not in models:
      raise ValueError(
        f"the recipe reads log-probs of the model {name!r}: say which it is, --set=models.{name}=PATH"
      )
    size = models[name].policy.vocab_size
    if size != policy.vocab_size:
      raise ValueError(
        f"the model {name!r} has a vocabulary of {size} tokens, the policy one of {policy.vocab_size}"
      )
  policies = {name: policy if name == OLD else models[name].policy for name in recipe.annotate}
  survey = recipe.objective.survey or (lambda rows: rows)
  sizes = pack.layout(num_rows, num_places, bin_tokens=bin_tokens)

  @jax.jit
  def run(params: dict[str, Any], rows: Rows, packed: Packed) -> Rows:
    extras = {
      f"{name}_logprobs": token_stats(
        one, params[name], packed, lanes=lanes, read_tokens=read_tokens, constrain=constrain
      ).logprobs
      for name, one in policies.items()
    }
    return survey(rows.replace(extras=rows.extras | extras))

  others = {name: models[name].params for name in policies if name != OLD}
  places = jax.tree.map(lambda x: x.sharding, others) if offload else None
  if offload:
    others = hosts.host(others)

  def annotate(params, rows: Rows) -> Rows:
    if not policies:
      return rows
    own = {**params, **frozen} if frozen else params
    there = hosts.put(others, places) if offload else others
    all_params = {name: own if name == OLD else there[name] for name in policies}
    packed, _ = pack.pack_rows(rows, rows.loss_mask, sizes, lanes=lanes)
    return run(all_params, rows, packed)

  return annotate
