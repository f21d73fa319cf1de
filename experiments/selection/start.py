"""Makes the policies that the study starts from: one for each seed, by imitation.

python -m experiments.selection.start --workdir=runs/selection/start
"""

import pathlib

from absl import app, flags

from experiments.selection.task import mixed_difficulty, start_pairs
from rlvr_jax.models.load import export_policy, load_policy
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.warm_start import warm_start


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  for seed in range(flags.FLAGS.seeds):
    loaded = load_policy("tiny", seed=seed, tokenizer=mixed_difficulty().tokenizer)
    params, loss = warm_start(
      loaded.policy, loaded.params, grpo(), start_pairs(seed=seed), steps=flags.FLAGS.steps,
      rows=128, learning_rate=1e-3, seed=seed,
    )  # fmt: skip
    folder = pathlib.Path(flags.FLAGS.workdir) / str(seed)
    export_policy(folder, loaded._replace(params=params))
    print(f"{folder}: {loss:.3f} nats a token")


if __name__ == "__main__":
  flags.DEFINE_string("workdir", "runs/selection/start", "Folder of the policies.")
  flags.DEFINE_integer("seeds", 3, "How many.")
  flags.DEFINE_integer("steps", 800, "Batches of demonstrations.")
  app.run(main)
