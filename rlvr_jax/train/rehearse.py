"""A step on shapes alone: what a piece reads and nobody gives is found before anything is loaded."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Feedback, PromptTable, Recipe, Rows, TokenStats
from rlvr_jax.train.collect import make_collect
from rlvr_jax.train.rewards import Scorer

# What a baseline (train.critic) writes into rows.extras: name -> shape of a row, T for its places.
_BASELINES = {"critic": {"values": ("T",)}, "probe": {"prediction": (), "features": (4,)}}
# The slots that are traced. Rollouts and conditions are host code around the model: they are left out.
_SLOTS = (
  "posterior",
  "select",
  "allocate",
  "reward",
  "choose",
  "replay",
  "advantage",
  "weigh",
  "objective",
  "aggregate",
  "control",
)


def rehearse(
  recipe: Recipe,
  table: PromptTable,
  *,
  prompts: int,
  budget: int,
  max_new_tokens: int,
  sources: Sequence[str],
  scorer: Scorer | None = None,
) -> None:
  """Traces a step of collecting and learning without a model; nothing is computed or compiled.

  Args:
    table, prompts, budget, max_new_tokens, sources, scorer: of `collect.make_collect`. The table's tokens are
      not looked at.

  Raises:
    ValueError: if a piece reads a knob that control does not give or an entry of rows.extras that nobody
      writes, and whatever the pieces say of what they are given.
  """
  recipe = recipe._replace(**{slot: _named(slot, getattr(recipe, slot)) for slot in _SLOTS})
  nobody: Any = None  # no model is run, nothing is verified
  collect = make_collect(
    nobody, recipe, table, nobody, nobody, prompts=prompts, budget=budget, max_new_tokens=max_new_tokens,
    eos_ids=[0], sources=sources, scorer=scorer,
  )  # fmt: skip
  control = jax.eval_shape(lambda: recipe.control.init(table))
  rows, tally = collect.rehearse(
    control,
    jax.eval_shape(lambda: recipe.posterior.init(table)),
    jax.eval_shape(lambda: recipe.replay.init(table, collect.num_places)),
  )
  shape = rows.tokens.shape
  extras = {f"{name}_logprobs": shape for name in recipe.annotate}
  if recipe.baseline:
    for name, rest in _BASELINES[recipe.baseline[0]].items():
      extras[name] = (shape[0], *(shape[1] if n == "T" else n for n in rest))
  extras = {k: jax.ShapeDtypeStruct(v, jnp.float32) for k, v in extras.items()}
  jax.eval_shape(
    functools.partial(_learn, recipe), rows.replace(extras=rows.extras | extras), tally, control
  )


def _learn(recipe: Recipe, rows: Rows, tally, control):
  """What train.learn asks of a recipe."""
  knobs = recipe.control.value(control)
  if recipe.objective.survey is not None:
    rows = recipe.objective.survey(rows)
  advantage = recipe.advantage(rows)
  weight = recipe.weigh(jax.random.key(0), rows, advantage, knobs)
  zeros, none = jnp.zeros(rows.tokens.shape, jnp.float32), jnp.zeros((), jnp.int32)
  stats = TokenStats(zeros, zeros if recipe.objective.needs_entropy else None)
  loss, _ = recipe.objective.loss(stats, rows, advantage, knobs)
  feedback = Feedback(rows, advantage, jnp.zeros((), jnp.float32), tally, none, none)
  return recipe.aggregate(loss, weight, rows), recipe.control.update(control, feedback)


def _named(slot: str, piece):
  """The piece of a slot, which says who it is when it misses something."""
  if isinstance(piece, tuple):  # a bundle of functions, and what is no function
    return type(piece)(*(_named(slot, part) for part in piece))
  if not callable(piece):
    return piece

  @functools.wraps(piece)
  def call(*args, **kwargs):
    try:
      return piece(*args, **kwargs)
    except KeyError as error:
      raise ValueError(_missing(slot, error.args[0], args)) from error

  return call


def _missing(slot: str, name, args) -> str:
  text = f"{slot} reads {name!r}, which no other piece of the recipe gives."
  for arg in args:
    if isinstance(arg, Rows):
      text += f" The rows carry the extras {sorted(arg.extras)}."
    elif isinstance(arg, Mapping):
      text += f" Control gives the knobs {sorted(arg)}."
  return text
