"""Tasks: prompts with verifiers. `core.table.build("task", name, TASKS, args)` makes one."""

TASKS = {
  "arithmetic": "rlvr_jax.tasks.arithmetic:arithmetic",
  "reasoning_gym": "rlvr_jax.tasks.reasoning_gym:reasoning_gym",
}
