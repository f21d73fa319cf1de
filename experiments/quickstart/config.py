"""Can a laptop's CPU make a real language model better at verifiable tasks within minutes?

GRPO on SmolLM2-135M-Instruct: sums, products, greatest common divisors and least common multiples of
small numbers, answered with the number only.

  bash launch/quickstart.sh

Hardware: 2 CPU cores, 8 GiB. What to expect: see README.md beside this file.
"""

from rlvr_jax.train.config import Config


def get_config() -> Config:
  return Config(
    policy="smollm2-135m",
    task="reasoning_gym",
    task_args={
      "mixture": [
        {
          "name": "chain_sum",
          "args": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        },
        {
          "name": "products",
          "args": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        },
        {"name": "gcd", "args": {"min_value": 1, "max_value": 20}},
        {"name": "lcm", "args": {"min_value": 1, "max_value": 10}},
      ],
      "train_size": 2048,
      "eval_size": 208,
      "system": "Answer with the number only.",
    },
    recipe="grpo",
    recipe_args={"clip_low": 0.2, "clip_high": 0.28},
    steps=40,
    prompts=8,
    budget=64,
    max_prompt_length=96,
    max_new_tokens=16,
    learning_rate=2e-5,
    eval_every=20,
    eval_prompts=208,
    sample_every=10,
    checkpoint_every=20,
  )
