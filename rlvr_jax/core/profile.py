"""What a policy could do before training: right responses to each prompt, from a file."""

import os

import numpy as np


def save(path: str, successes, trials) -> None:
  """Writes what `load` reads; whole or not at all.

  Args:
    successes, trials: [M], in the order of the prompt table.
  """
  folder, name = os.path.split(path)
  temporary = os.path.join(folder, f".{name}.tmp")
  with open(temporary, "wb") as file:
    np.savez(file, successes=np.asarray(successes), trials=np.asarray(trials))
  os.replace(temporary, path)


def load(path: str) -> tuple[np.ndarray, np.ndarray]:
  """(successes, trials), float64 [M] each, of an .npz file with arrays of these names.

  Raises:
    ValueError: if one is missing, they are not of one length, or not 0 <= successes <= trials.
  """
  with np.load(path) as file:
    absent = {"successes", "trials"} - set(file.files)
    if absent:
      raise ValueError(f"{path} lacks the arrays {sorted(absent)}")
    successes, trials = (np.asarray(file[name], np.float64) for name in ("successes", "trials"))
  if successes.ndim != 1 or successes.shape != trials.shape:
    raise ValueError(
      f"{path}: successes {successes.shape} and trials {trials.shape} must be one number a prompt"
    )
  if not ((successes >= 0) & (successes <= trials)).all():
    raise ValueError(f"{path}: successes must lie between 0 and trials")
  return successes, trials
