"""Scoring by reasoning_gym's own scorers. Apart, because it imports the package."""

import json
from typing import Any

from reasoning_gym.factory import create_dataset

from rlvr_jax.core.records import Example, Verdict
from rlvr_jax.tasks.verify import final_answer

_SCORERS: dict[str, Any] = {}  # generator and arguments -> dataset, built once a process


def verify(example: Example, text: str) -> Verdict:
  """The generator's own score of the final answer, in [0, 1]; 0 where there is no answer."""
  answer, rule = final_answer(example, text)
  if answer is None:
    return Verdict(0.0, None, rule)
  generator, args = example.metadata["generator"], example.metadata["args"]
  name = json.dumps([generator, args], sort_keys=True, default=repr)
  if name not in _SCORERS:
    _SCORERS[name] = create_dataset(generator, seed=0, **args)
  score = _SCORERS[name].score_answer(answer, example.metadata["entry"])
  return Verdict(min(max(float(score), 0.0), 1.0), answer, f"{rule}, native")
