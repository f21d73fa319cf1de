"""The verdict is the reward."""


def outcome():
  """reward(rows, knobs) -> float32 [N]: what the verifier said, unshaped."""
  return lambda rows, knobs: rows.correct
