"""Which way of growing rollouts learns most from the same generated tokens?

The learnable third of the selection study alone (copying four digits, from its three starts), 256 prompts,
24,000 generated tokens, three seeds; held-out accuracy is read every five steps. First the starts, then the
runs; both go on where they were stopped:

  python -m experiments.selection.start --workdir=runs/selection/start
  python -m launch.sweep --sweep=experiments/structures/config.py --workdir=runs/structures \\
    --compile_cache=runs/structures/compiled --at=tokens:16000
  python -m experiments.structures.tables --workdir=runs/structures

Hardware: 2 CPU cores, 2 GiB, 20 s a run on a busy machine. What came of it: README.md beside this file.
"""

import dataclasses
from typing import Any

from rlvr_jax.train.config import Config

SEEDS = 0, 1, 2
TOKENS = 24_000
HINTS = "experiments.structures.hints:digit_hints"


@dataclasses.dataclass(frozen=True)
class Run:
  recipe: str
  args: dict[str, Any] = dataclasses.field(default_factory=dict)
  slots: dict[str, str] = dataclasses.field(default_factory=dict)  # filled otherwise
  prompts: int = 16
  budget: int = 128


# An answer is four digits and an end, so that whatever is counted in tokens is small here.
RUNS = {
  "grpo": Run("grpo"),
  "grpo_half": Run("grpo", prompts=8, budget=64),  # as few tokens a step as the trees have
  "one_step_off": Run("grpo", slots={"schedule": "one_step_off()"}),
  "entropy_tree": Run("entropy_tree"),
  "branchgrpo": Run("branchgrpo", {"expected": 5}),
  "spark": Run("spark", {"stride": 1}),
  # More than half of the answers that the starts imitate are wrong: a second digit has a chance of 0.05.
  "latr": Run(
    "latr",
    {"least": 0.03, "gap": 0.95, "windows": [2], "edit": 0.4, "suffix": 1, "rouge": 1, "force": 3},
  ),
  "april": Run("april", {"groups": 16}, prompts=32, budget=256),
  "copris": Run("copris", {"groups": 16, "slots": 128}, prompts=32, budget=256),
  "areal": Run("areal", {"staleness": 2, "groups": 16}, prompts=20, budget=160),
  "spec_rl": Run("spec_rl"),
  "spec_rl_strict": Run("spec_rl", {"log_lenience": 0.0}),
  "spec_rl_coupled": Run("spec_rl", {"coupled": True}),
  "sage": Run("sage", {"levels": 1}, {"condition": f"{HINTS}(levels=1)"}, budget=256),
  "jet": Run("jet", {"tail": 5}),
  "arrol": Run("arrol", {"detect": 2, "features": 64}, budget=192),
}


def get_sweep() -> dict[str, Config]:
  return {
    f"{name}-{seed}": Config(
      policy=f"runs/selection/start/{seed}",
      task="arithmetic",
      task_args={"operations": ["copy"], "digits": 2, "train_size": 256, "eval_size": 192},
      recipe=run.recipe,
      recipe_args=run.args,
      slots=run.slots,
      steps=1_000,
      max_generated_tokens=TOKENS,
      prompts=run.prompts,
      budget=run.budget,
      max_prompt_length=16,
      max_new_tokens=6,
      learning_rate=5e-4,
      seed=seed,
      eval_every=5,
      eval_prompts=192,
      sample_every=0,
      checkpoint_every=0,
      record_completions=0,
      verifier_workers=1,
      verifier_seconds=600.0,  # the load of the machine is not to decide what is right
      export=False,
    )
    for seed in SEEDS
    for name, run in RUNS.items()
  }
