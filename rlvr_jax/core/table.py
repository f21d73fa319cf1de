"""Tables of names: a literal dict of name -> "module:attribute", resolved when asked for."""

import difflib
import importlib
import inspect
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


def build(kind: str, name: str, table: Mapping[str, str], args: Mapping[str, Any], **given: Any):
  """Calls the factory behind a name; an unknown argument is an error that lists the close ones."""
  factory: Callable = resolve(kind, name, table)
  accepted = inspect.signature(factory).parameters
  if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
    for arg in args:
      if arg not in accepted:
        raise unknown(f"argument of {kind} {name!r}", arg, set(accepted) - set(given))
  try:
    return factory(**args, **given)
  except TypeError as error:  # from a factory that hands its options on to another
    if "unexpected keyword argument" not in str(error):
      raise
    raise ValueError(f"{kind} {name!r}: {error}") from error
