"""What a policy could do before training: right responses to each prompt, from a file."""

import numpy as np


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
