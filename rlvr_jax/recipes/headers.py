"""What a recipe's module says of itself. It opens with a docstring (what the method is, what differs from
the paper) and

  PAPER = (title, identifier)
  STAGES = tags of the life cycle, among STAGE_NAMES
  CHANGES = fields of Recipe that it fills in another way than `grpo`
  EVIDENCE = what the implementation rests on, among EVIDENCE_NAMES; may be left out

and its factory's signature holds the defaults.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

from rlvr_jax.core.table import resolve
from rlvr_jax.core.types import Recipe

# Optimise is what the survey of the life cycle (arXiv 2605.02913) leaves out: advantage, loss, optimizer.
STAGE_NAMES = ("generate", "filter", "control", "replay", "optimise")
# The method's code, its paper, its documentation, secondary descriptions, or our own reading of its name.
EVIDENCE_NAMES = ("code", "paper", "docs", "notes", "inferred")


class Header(NamedTuple):
  name: str
  title: str
  identifier: str
  stages: tuple[str, ...]
  changes: tuple[str, ...]
  evidence: str  # "" where the module does not say
  text: str  # the docstring
  factory: Callable[..., Recipe]


def header(name: str, recipes: Mapping[str, str]) -> Header:
  """The header of a recipe in the table.

  Raises:
    ValueError: if it is incomplete, or names something that does not exist.
  """
  module = importlib.import_module(recipes[name].partition(":")[0])
  for constant in ("PAPER", "STAGES", "CHANGES"):
    if not isinstance(getattr(module, constant, None), tuple):
      raise ValueError(f"{module.__name__} needs the module constant {constant}, a tuple")
  if not module.__doc__:
    raise ValueError(f"{module.__name__} needs a docstring")
  if len(module.PAPER) != 2:
    raise ValueError(f"PAPER of {module.__name__} is (title, identifier), not {module.PAPER!r}")
  evidence = getattr(module, "EVIDENCE", "")
  for constant, values, known in (
    ("STAGES", module.STAGES, STAGE_NAMES),
    ("CHANGES", module.CHANGES, Recipe._fields),
    ("EVIDENCE", (evidence,) if evidence else (), EVIDENCE_NAMES),
  ):
    wrong = [value for value in values if value not in known]
    if wrong:
      raise ValueError(f"{constant} of {module.__name__}: {wrong} is not among {known}")
  title, identifier = module.PAPER
  return Header(
    name,
    title,
    identifier,
    module.STAGES,
    module.CHANGES,
    evidence,
    inspect.cleandoc(module.__doc__),
    resolve("recipe", name, recipes),
  )
