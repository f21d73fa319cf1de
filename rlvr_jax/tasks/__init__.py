"""Tasks: prompts with verifiers. `core.table.build("task", name, TASKS, args)` makes one."""

TASKS = {
  "aime": "rlvr_jax.tasks.aime:aime",
  "arithmetic": "rlvr_jax.tasks.arithmetic:arithmetic",
  "countdown": "rlvr_jax.tasks.countdown:countdown",
  "countdown_generated": "rlvr_jax.tasks.countdown:countdown_generated",
  "gsm8k": "rlvr_jax.tasks.gsm8k:gsm8k",
  "humaneval": "rlvr_jax.tasks.humaneval:humaneval",
  "jsonl": "rlvr_jax.tasks.files:files",
  "math": "rlvr_jax.tasks.math:math",
  "mbpp": "rlvr_jax.tasks.mbpp:mbpp",
  "parquet": "rlvr_jax.tasks.files:files",
  "reasoning_gym": "rlvr_jax.tasks.reasoning_gym:reasoning_gym",
  "reasoning_gym_tfds": "rlvr_jax.tasks.reasoning_gym:reasoning_gym_tfds",
  "tfds": "rlvr_jax.tasks.files:files",
}
