"""Which way of choosing prompts and dealing rollouts learns most from the same generated tokens?

One tiny policy, one task (task.py: a third of the prompts nearly solved, a third hopeless, a third
learnable), 40,000 generated tokens, three seeds. Held-out accuracy is read every ten steps, so that runs can
be compared at any number of tokens. First the starts, then the runs; both go on where they were stopped:

  python -m experiments.selection.start --workdir=runs/selection/start
  python -m launch.sweep --sweep=experiments/selection/config.py --workdir=runs/selection/runs \\
    --compile_cache=runs/selection/compiled --at=tokens \\
    --metrics=eval/heldout/pass@1,eval/heldout/learnable/pass@1,group/frac_zero_std,tokens/generated
  python -m experiments.selection.tables --workdir=runs/selection/runs

Hardware: 2 CPU cores, 2 GiB, 10 to 20 s a run on an idle machine. What came of it: README.md beside this
file.
"""

from typing import Any

from rlvr_jax.train.config import Config

SEEDS = 0, 1, 2
TOKENS = 40_000
PROMPTS = (
  192  # each is drawn about six times; what a belief knows of it pays from the second time on
)
# name -> (recipe, arguments, slots filled otherwise)
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
  "grpo": ("grpo", {}, {}),
  "dapo": ("dapo", {}, {}),
  "dps": ("dps", {}, {}),
  "vade": ("vade", {}, {}),
  "insight": ("insight", {}, {}),
  "greso": ("greso", {}, {}),
  "cures": ("cures", {}, {}),
  "vcrl": ("vcrl", {}, {}),
  "dump": ("dump", {}, {}),
  "gdro_prompt": ("gdro_prompt", {}, {}),
  "gdro_rollout": ("gdro_rollout", {"mean": 8}, {}),
  "pilot_commit": ("pilot_commit", {}, {}),
  "coba_rl": ("coba_rl", {}, {}),
  "xrpo": ("xrpo", {}, {}),
  "e3": ("e3", {}, {}),
  "dars": ("dars", {"start": 4}, {}),
  "ar3po": ("ar3po", {}, {}),
  "aero": ("aero", {"explore": 4, "extra": 4}, {}),
  "v0_5": ("v0_5", {}, {}),
  "token_value": ("token_value", {}, {}),
  "dps + pilot_commit + nat": (
    "dps",
    {},
    {
      "allocate": "pilot_commit()",
      "choose": "committed()",
      "weigh": "random_prefix()",
      "aggregate": "token_mean(over=every)",
    },
  ),
  "dps + mixed": ("dps", {}, {"choose": "mixed()"}),
  "token_value + mixed": ("token_value", {}, {"choose": "mixed()"}),
}


def get_sweep() -> dict[str, Config]:
  runs = {}
  for name, (recipe, args, slots) in RUNS.items():
    for seed in SEEDS:
      runs[f"{name.replace(' + ', '+')}-{seed}"] = Config(
        policy=f"runs/selection/start/{seed}",
        task="experiments.selection.task:mixed_difficulty",
        task_args={"train_size": PROMPTS},
        recipe=recipe,
        recipe_args=args,
        slots=slots,
        steps=400,
        max_generated_tokens=TOKENS,
        prompts=16,
        budget=128,
        max_prompt_length=16,
        max_new_tokens=6,
        learning_rate=5e-4,
        seed=seed,
        eval_every=10,
        eval_prompts=192,
        sample_every=0,
        checkpoint_every=0,
        record_completions=0,
        verifier_workers=1,
        export=False,
      )
  return runs
