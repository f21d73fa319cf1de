"""A recipe by name, with any of its slots filled in another way.

A slot is filled with an expression: the name of a function of the slot's folder, or "module:function" for one
of your own, with arguments if it takes any.

  advantage="rloo"
  advantage="group_mean(scale=False)"
  objective="surrogate(scope=prefix(), bounds=sat(quantile=0.9, kernel=gaussian))"
  aggregate="token_mean(over=kept)"
"""

import ast
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from rlvr_jax.core import table, traits, types
from rlvr_jax.core.types import Recipe
from rlvr_jax.objective.kl import in_loss
from rlvr_jax.recipes import RECIPES
from rlvr_jax.reward import outcome
from rlvr_jax.reward.weighted import weighted

# slot -> where its functions live, modules or whole folders.
SLOTS = {
  "posterior": ("rlvr_jax.posterior",),
  "select": ("rlvr_jax.select",),
  "allocate": ("rlvr_jax.allocate",),
  "condition": ("rlvr_jax.condition",),
  "rollout": ("rlvr_jax.rollout",),
  "reward": ("rlvr_jax.reward",),
  "choose": ("rlvr_jax.keep.choose", "rlvr_jax.keep.finished"),
  "refill": ("rlvr_jax.core.types",),
  "replay": ("rlvr_jax.replay",),
  "advantage": ("rlvr_jax.advantage",),
  "weigh": ("rlvr_jax.keep.weigh", "rlvr_jax.keep.steps", "rlvr_jax.keep.tree"),
  "objective": ("rlvr_jax.objective", "rlvr_jax.keep.veto"),
  "aggregate": ("rlvr_jax.objective.aggregate",),
  "control": ("rlvr_jax.control",),
  "schedule": ("rlvr_jax.schedule",),
}

# What a slot holds, where that is no plain function.
KINDS = {
  "posterior": types.PromptPosterior,
  "allocate": types.Allocator,
  "condition": types.Condition,
  "refill": types.Refill,
  "replay": types.Replay,
  "objective": types.Objective,
  "control": types.Controller,
  "schedule": types.Schedule,
}


def compose(
  name: str,
  args: Mapping[str, Any] | None = None,
  slots: Mapping[str, str] | None = None,
  *,
  kl_coef: float = 0.0,
) -> Recipe:
  """The recipe `name` with its arguments, then with the slots replaced.

  What the new pieces read of other policies is added to `annotate`.

  Args:
    name: in RECIPES.
    args: of its factory.
    slots: slot -> expression.
    kl_coef: of a KL term added to the objective, whichever it is: see objective.kl.in_loss.

  Raises:
    ValueError: for an unknown name, slot, function or argument (with the close ones), and for pieces that do
      not go together (with the reason).
  """
  recipe = table.build("recipe", name, RECIPES, args or {})
  for slot, text in (slots or {}).items():
    if slot not in SLOTS:
      raise table.unknown("slot", slot, SLOTS)
    recipe = recipe._replace(**{slot: _of_kind(slot, text, fill(slot, text))})
  if kl_coef:
    recipe = recipe._replace(objective=in_loss(base=recipe.objective, coefficient=kl_coef))
  needed = traits.needs(recipe.advantage, recipe.weigh, recipe.objective)
  recipe = recipe._replace(annotate=tuple(dict.fromkeys((*recipe.annotate, *needed))))
  return traits.check(recipe)


def rewarded(recipe: Recipe, weights: Mapping[str, float]) -> Recipe:
  """The recipe with the weighted sum of reward functions for its reward; as it is if none has a weight.

  Args:
    weights: name of a function -> its weight.

  Raises:
    ValueError: if the recipe has a reward of its own.
  """
  if not any(weights.values()):  # they are only looked at
    return recipe
  if getattr(recipe.reward, "__module__", None) != outcome.__name__:
    raise ValueError("the recipe has a reward of its own; give `rewards` weight 0")
  return recipe._replace(reward=weighted(**weights))


def _of_kind(slot: str, text: str, piece: Any) -> Any:
  """The piece, if it is what the slot holds.

  Raises:
    ValueError: if it is something else, such as a part of what the slot holds.
  """
  kind = KINDS.get(slot)
  if isinstance(piece, kind) if kind else callable(piece) and not isinstance(piece, tuple):
    return piece
  hint = ""
  if slot == "posterior":
    hint = "; a belief model needs an acquisition: scored(model=beta(), acquisition=variance())"
  wanted = f"the slot's {kind.__name__}" if kind else "a function"
  raise ValueError(f"{slot} = {text!r} makes a {type(piece).__name__}, not {wanted}{hint}")


def fill(slot: str, text: str) -> Any:
  """What the expression `text` makes for the slot."""
  known = functions(slot)
  head, bracket, rest = text.strip().partition("(")
  if ":" in head:  # not Python: give it a name that is
    known, text = known | {"_given": head.strip()}, f"_given{bracket}{rest}"
  try:
    tree = ast.parse(text.strip(), mode="eval").body
  except SyntaxError as error:
    raise ValueError(f"{slot} = {text!r} is not an expression like name(argument=1)") from error
  if isinstance(tree, ast.Name):
    tree = ast.Call(tree, [], [])
  if not isinstance(tree, ast.Call):
    raise ValueError(f"{slot} = {text!r} must be the name of a function, or a call of one")
  return _evaluate(tree, slot, known)


def functions(slot: str) -> dict[str, str]:
  """name -> "module:function" of everything public that the slot's modules define."""
  found = {}
  for name in SLOTS[slot]:
    module = importlib.import_module(name)
    inside = pkgutil.iter_modules(getattr(module, "__path__", ()), name + ".")
    for one in (module, *(importlib.import_module(m.name) for m in inside)):
      for key, value in vars(one).items():
        if getattr(value, "__module__", None) == one.__name__ and callable(value) and key[0] != "_":
          found[key] = f"{one.__name__}:{key}"
  return found


def _evaluate(node: ast.expr, slot: str, known: Mapping[str, str]) -> Any:
  if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
    if node.args:
      raise ValueError(f"{slot}: give the arguments of {node.func.id} by name")
    args = {str(k.arg): _evaluate(k.value, slot, known) for k in node.keywords}
    return table.build(slot, node.func.id, known, args)
  if isinstance(node, ast.Name):
    return table.resolve(slot, node.id, known)
  try:
    return ast.literal_eval(node)
  except ValueError as error:
    raise ValueError(f"{slot}: cannot read {ast.unparse(node)!r}") from error
