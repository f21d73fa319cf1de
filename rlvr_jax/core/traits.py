"""What the pieces of a recipe need of each other, and the check that they get it.

A slot function carries its traits as attributes, an Objective as fields; what a piece does not say it
does not mind.

  needs        policies whose log-probs it reads, see Recipe.annotate     advantage, weigh, objective
  reads        what of its row a token's loss reads: token, prefix, row   objective and its parts
  skips        what need not be computed: "suffix" or "tokens"            weigh
  denominator  the tokens that the loss is divided by                     weigh, aggregate
  reads_knobs  True: it is given `knobs`                                  rollout
  extras       what it writes into rows.extras: name -> shape of a row    rollout
  prompts      of how many prompts it is, if it is of a given table       init of a posterior, select
"""

from collections.abc import Iterable
from typing import Any

from rlvr_jax.core.types import Array, Recipe, Rows, plain_table

READS = ("token", "prefix", "row")  # each reads what the one before does, and more


def declare(piece, **traits):
  """The same function, with its traits written on it."""
  for name, value in traits.items():
    setattr(piece, name, value)
  return piece


def trait(piece, name: str, default: Any = None) -> Any:
  return getattr(piece, name, default)


def widest(pieces: Iterable) -> str:
  """The most that any of the pieces reads."""
  return max((trait(piece, "reads", "token") for piece in pieces), key=READS.index)


def needs(*pieces) -> tuple[str, ...]:
  """All policies that the pieces need, each once, in order."""
  return tuple(dict.fromkeys(name for piece in pieces for name in trait(piece, "needs", ())))


def logprobs_of(rows: Rows, name: str) -> Array:
  """float32 [N,T]: log-probs of the policy `name`, as annotated."""
  if f"{name}_logprobs" not in rows.extras:
    raise ValueError(
      f"the rows hold no log-probs of {name!r}: see Recipe.annotate and train.annotate"
    )
  return rows.extras[f"{name}_logprobs"]


def check(recipe: Recipe) -> Recipe:
  """The recipe itself, if its pieces go together.

  Raises:
    ValueError: if two of them do not, with the reason.
  """
  weigh, objective = recipe.weigh, recipe.objective
  skips = trait(weigh, "skips")
  if skips and objective.reads == "row":
    raise ValueError(
      "weigh leaves tokens out of the computation, but the ratio of this objective is over the whole row: "
      "it needs every token. Take an objective that reads tokens alone, or a weigh that skips none"
    )
  if skips == "tokens" and objective.reads == "prefix":
    raise ValueError(
      "weigh leaves out tokens in the middle of a row, but a token's loss in this objective reads all "
      "tokens before it. Take a weigh that cuts suffixes only"
    )
  wanted, got = trait(weigh, "denominator"), trait(recipe.aggregate, "denominator")
  if wanted and got and wanted != got:
    raise ValueError(
      f"weigh asks for a loss divided by {wanted!r} tokens, aggregate divides by {got!r}: the loss would be "
      f"off by their ratio. Give aggregate over={wanted}"
    )
  absent = set(needs(recipe.advantage, weigh, objective)) - set(recipe.annotate)
  if absent:
    names = ", ".join(sorted(absent))
    raise ValueError(f"a piece of the recipe reads log-probs of {names}: add them to annotate")
  if recipe.refill.rounds < 1:
    raise ValueError(f"refill needs at least 1 round, got {recipe.refill.rounds}")
  knobs = recipe.control.value(recipe.control.init(plain_table(1)))
  if "temperature" not in knobs:
    raise ValueError(f"control has no knob 'temperature', only {sorted(knobs)}")
  if not (knobs["temperature"] > 0).all():
    raise ValueError(
      f"the temperature must be positive to train, control begins at {knobs['temperature']}"
    )
  return recipe
