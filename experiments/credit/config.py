"""What does each way of giving credit make of the same generated tokens?

Every recipe that changes advantages, losses, token weights, rewards or the optimizer trains the tiny policy
of experiments/smoke on copying four digits, from the same three warm starts, until it has generated 40,000
response tokens; held-out accuracy before and after, three seeds. First the warm starts, then the runs:

  for seed in 0 1 2; do python -m launch.train --config=experiments/smoke/config.py --seed=$seed \\
    --set=steps=1 --set=learning_rate=1e-9 --set=eval_every=0 --workdir=runs/credit/start/$seed; done
  python -m launch.sweep --sweep=experiments/credit/config.py --workdir=runs/credit/runs \\
    --compile_cache=runs/credit/compiled

Hardware: 2 CPU cores, 2 GiB, about 12 s a run on an idle machine. What came of it: README.md beside this
file.
"""

import dataclasses

from experiments.smoke.config import get_config
from rlvr_jax.train.config import Config

SEEDS = 0, 1, 2
TOKENS = 40_000
# Recipe -> arguments other than its defaults. Judges of text have nothing to judge in four digits.
RECIPES = {
  "grpo": {},
  "dapo": {},
  "dr_grpo": {},
  "rloo": {},
  "reinforce_pp": {},
  "remax": {},
  "opo": {},
  "mc_grpo": {},
  "gapo": {},
  "blockwise": {},
  "poise": {},
  "mssr": {},
  "pvpo": {},
  "v0_5": {},
  "sao": {"own_trunk": False},
  "soft_compression": {},
  "fapo": {"flaw": ""},
  "uniqueness": {"strategy": ""},
  "cispo": {},
  "gmpo": {},
  "gspo": {},
  "pnpo": {},
  "sat": {},
  "asyncwebrl": {},
  "mu_grpo": {},
  "rlad": {},
  "nat_rpc": {},
  "nat_urs": {},
  "d3s": {},
  "sas": {},
  "grpo_roc": {},
  "mgup": {},
}


def get_sweep() -> dict[str, Config]:
  runs = {}
  for recipe, args in RECIPES.items():
    for seed in SEEDS:
      start = f"runs/credit/start/{seed}/export"
      runs[f"{recipe}-{seed}"] = dataclasses.replace(
        get_config(),
        policy=start,
        warm_start_steps=0,
        recipe=recipe,
        recipe_args=args,
        # The teacher of a distilling recipe: here the start itself, so that it teaches nothing.
        models={"teacher": start} if recipe == "rlad" else {},
        steps=400,
        max_generated_tokens=TOKENS,
        seed=seed,
        eval_every=1_000,
        sample_every=0,
        checkpoint_every=0,
        export=False,
      )
  return runs
