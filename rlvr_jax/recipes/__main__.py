"""Lists the recipes: python -m rlvr_jax.recipes [NAME ...] (with names: their whole headers)."""

import sys
import textwrap

from rlvr_jax.core.table import unknown
from rlvr_jax.recipes import RECIPES
from rlvr_jax.recipes.headers import Header, header


def line(one: Header) -> str:
  """Name, paper, stages, slots changed against GRPO, evidence, in columns."""
  paper = textwrap.shorten(one.title, 48, placeholder="...")
  return (
    f"{one.name:17}{paper:50}{one.identifier:18}{' '.join(one.stages):25}"
    f"{' '.join(one.changes) or '-':50}{one.evidence or '-'}"
  ).rstrip()


def page(one: Header) -> str:
  return f"{one.name}: {one.title} ({one.identifier})\n\n{textwrap.indent(one.text, '  ')}\n"


def main(names: list[str]) -> str:
  for name in names:
    if name not in RECIPES:
      raise unknown("recipe", name, RECIPES)
  if names:
    return "\n".join(page(header(name, RECIPES)) for name in names)
  head = f"{'recipe':17}{'paper':50}{'':18}{'stages':25}{'slots changed':50}evidence"
  return "\n".join([head, *(line(header(name, RECIPES)) for name in RECIPES)])


if __name__ == "__main__":
  try:
    print(main(sys.argv[1:]))
  except ValueError as error:
    sys.exit(f"error: {error}")
