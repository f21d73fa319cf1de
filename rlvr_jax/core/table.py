"""Tables of names: a literal dict of name -> "module:attribute", resolved when asked for."""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def unknown(kind: str, name: str, known: Iterable[str]) -> ValueError:
  """The error for a name that is not in a table; lists the close ones, or all of them."""
  known = sorted(known)
  close = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
  hint = f"did you mean {', '.join(close)}?" if close else f"known: {', '.join(known)}"
  return ValueError(f"unknown {kind} {name!r}; {hint}")


def resolve(kind: str, name: str, table: Mapping[str, str]) -> Any:
  """The attribute that table[name] = "module:attribute" points at.

  Args:
    kind: what the table holds, for the error ("recipe", "task", ...).
    name: a key of the table, or "module:attribute" itself for something outside of it.
    table: name -> "module:attribute".

  Raises:
    ValueError: if the name is unknown (with the close ones), or does not lead to anything.
  """
  target = table.get(name, name)
  module, colon, attribute = target.partition(":")
  if not colon:
    raise unknown(kind, name, table)
  try:
    return getattr(importlib.import_module(module), attribute)
  except (ImportError, AttributeError) as error:
    raise ValueError(f"{kind} {name!r}: cannot load {target!r}: {error}") from error


def build(kind: str, name: str, table: Mapping[str, str], args: Mapping[str, Any]) -> Any:
  """What the factory behind a name returns.

  Raises:
    ValueError: for an unknown name, an argument the factory does not take (with the close ones), one that
      is missing or of the wrong type. A factory may hand its **options on to another one of the table.
  """
  factory: Callable = resolve(kind, name, table)
  accepted = set(inspect.signature(factory).parameters)
  try:
    return factory(**args)
  except TypeError as error:
    refused = re.search(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if refused is None:
      raise ValueError(f"{kind} {name!r}: {error}") from error
    if refused[1] in table:
      accepted |= set(inspect.signature(resolve(kind, refused[1], table)).parameters)
    raise unknown(f"argument of {kind} {name!r}:", refused[2], accepted - {"options"}) from error
