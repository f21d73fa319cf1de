"""Writes docs/methods.md from the headers of the recipes: run `python docs/make_methods.py`.

A recipe's module opens with a docstring (what the method is, what differs from the paper) and

    PAPER = (title, identifier)
    STAGES = tags of the life cycle, among STAGE_NAMES
    CHANGES = fields of Recipe that it fills in another way than `grpo`

and its factory's signature holds the defaults.
"""

import importlib
import inspect
from pathlib import Path

from rlvr_jax.core.table import resolve
from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes import RECIPES

STAGE_NAMES = ("generate", "filter", "control", "replay")
PAGE = Path(__file__).parent / "methods.md"

HEAD = """\
# Methods

Made by `python docs/make_methods.py` from the recipes in `rlvr_jax/recipes`; do not edit by hand.

*Stages* are tags of the life cycle generate, filter, control, replay. *Changes* are the fields of
`Recipe` that are filled in another way than in `grpo`. *Defaults* are the factory's arguments, set
with `--set=recipe_args.<name>=<value>`; a recipe that ends in "..." takes those of `grpo` as well.
"""


def page() -> str:
  """The text of docs/methods.md.

  Raises:
    ValueError: if a recipe's header is incomplete, or names a stage or field that does not exist.
  """
  lines = [HEAD, "| Recipe | Paper | Stages | Changes | Defaults |", "|---|---|---|---|---|"]
  notes = []
  for name in RECIPES:
    module, factory = _load(name)
    title, identifier = module.PAPER
    cells = (
      f"[`{name}`](#{name})",
      f"{title} ({_link(identifier)})",
      ", ".join(module.STAGES),
      ", ".join(f"`{field}`" for field in module.CHANGES) or "none",
      _defaults(factory),
    )
    lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    notes += ["", f"## {name}", "", inspect.cleandoc(module.__doc__)]
  return "\n".join([*lines, *notes]) + "\n"


def _load(name: str):
  """(module, factory) of a recipe whose header is complete."""
  module = importlib.import_module(RECIPES[name].partition(":")[0])
  for constant in ("PAPER", "STAGES", "CHANGES"):
    if not isinstance(getattr(module, constant, None), tuple):
      raise ValueError(f"{module.__name__} needs the module constant {constant}, a tuple")
  if not module.__doc__:
    raise ValueError(f"{module.__name__} needs a docstring")
  if len(module.PAPER) != 2:
    raise ValueError(f"PAPER of {module.__name__} is (title, identifier), not {module.PAPER!r}")
  for constant, known in (("STAGES", STAGE_NAMES), ("CHANGES", Recipe._fields)):
    wrong = [value for value in getattr(module, constant) if value not in known]
    if wrong:
      raise ValueError(f"{constant} of {module.__name__}: {wrong} is not among {known}")
  return module, resolve("recipe", name, RECIPES)


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
      parts.append(f"`{parameter.name}={parameter.default!r}`")
  return ", ".join(parts)


if __name__ == "__main__":
  PAGE.write_text(page())
  print(f"wrote {PAGE} with {len(RECIPES)} recipes")
