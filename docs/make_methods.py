"""Writes docs/methods.md from the headers of the recipes (rlvr_jax/recipes/headers.py): run
`python docs/make_methods.py`.
"""

import inspect
from pathlib import Path

from rlvr_jax.recipes import RECIPES
from rlvr_jax.recipes.headers import header

PAGE = Path(__file__).parent / "methods.md"

HEAD = """\
# Methods

Made by `python docs/make_methods.py` from the recipes in `rlvr_jax/recipes`; do not edit by hand.

*Stages* are tags of the life cycle generate, filter, control, replay, with optimise for advantage, loss
and optimizer. *Changes* are the fields of `Recipe` that are filled in another way than in `grpo`.
*Evidence* is what the implementation rests on: the method's code, its paper, its documentation, notes of
others, or inferred. *Defaults* are the factory's arguments, set with `--set=recipe_args.<name>=<value>`;
a recipe that ends in "..." takes those of `grpo` as well.

Any slot of any recipe can be filled in another way: `--set=recipe.advantage=rloo`,
`--set="recipe.objective=surrogate(scope=prefix(), bounds=sat(quantile=0.9))"`. Pieces that do not go
together are refused with the reason. `python -m rlvr_jax.recipes` prints this list.
"""


def page() -> str:
  """The text of docs/methods.md.

  Raises:
    ValueError: if a recipe's header is incomplete, or names a stage or field that does not exist.
  """
  columns = "Recipe", "Paper", "Stages", "Changes", "Evidence", "Defaults"
  lines = [HEAD, f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
  notes = []
  for name in RECIPES:
    one = header(name, RECIPES)
    cells = (
      f"[`{name}`](#{name})",
      f"{one.title} ({_link(one.identifier)})",
      ", ".join(one.stages),
      ", ".join(f"`{field}`" for field in one.changes) or "none",
      one.evidence,
      _defaults(one.factory),
    )
    lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    notes += ["", f"## {name}", "", one.text]
  return "\n".join([*lines, *notes]) + "\n"


def _link(identifier: str) -> str:
  kind, _, number = identifier.partition(" ")
  return f"[{identifier}](https://arxiv.org/abs/{number})" if kind == "arXiv" else identifier


def _defaults(factory) -> str:
  parts = []
  for parameter in inspect.signature(factory).parameters.values():
    if parameter.kind is parameter.VAR_KEYWORD:
      parts.append("...")
    elif parameter.default is parameter.empty:
      parts.append(f"`{parameter.name}`")
    else:
      default = parameter.default
      shown = default.__name__ if callable(default) else repr(default)
      parts.append(f"`{parameter.name}={shown}`")
  return ", ".join(parts)


if __name__ == "__main__":
  PAGE.write_text(page())
  print(f"wrote {PAGE} with {len(RECIPES)} recipes")
