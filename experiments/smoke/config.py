"""Does the whole loop learn? A tiny transformer learns to copy four digits, on a CPU in a minute.

Rollout, verification, update, evaluation, checkpoint and export, as in a real run. The warm start leaves
the policy right about four times in ten; GRPO takes it to nearly always.

  python -m launch.train --config=experiments/smoke/config.py --workdir=runs/smoke

Hardware: 2 CPU cores, 2 GiB. What to expect: see README.md beside this file.
"""

from rlvr_jax.train.config import Config


def get_config() -> Config:
  return Config(
    policy="tiny",
    task="arithmetic",
    task_args={"operations": ["copy"], "digits": 2, "train_size": 1024, "eval_size": 128},
    recipe="grpo",
    steps=100,
    prompts=16,
    budget=128,
    max_prompt_length=16,
    max_new_tokens=5,
    learning_rate=1e-3,
    warm_start_steps=300,
    eval_every=50,
    eval_prompts=128,
    sample_every=50,
    checkpoint_every=50,
    verifier_workers=1,
  )
