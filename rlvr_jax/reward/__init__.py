"""Rewards: what the loss sees of a verdict. REWARDS: functions that a config's `rewards` may name."""

REWARDS = {
  "correct": "rlvr_jax.reward.functions:correct",
  "format": "rlvr_jax.reward.functions:tags",
  "language": "rlvr_jax.reward.functions:language",
  "length": "rlvr_jax.reward.functions:length",
  "repetition": "rlvr_jax.reward.functions:repetition",
}
