"""Selectors and allocators against a policy whose solve rates are known: what a token buys, without a model.

Prompts have logits N(-1, 5^2) that all rise by 0.01 a step, in the way of the simulation of DPS (arXiv
2603.10887), and rollouts of a fixed length each, longer for hard prompts. Every step is the real one
(train.collect) with a rollout that draws nothing but its length and a verifier that tosses a coin. The oracle
is token value with every rate and length told.

  python -m experiments.selection.frozen --recipes=grpo,dapo,dps,token_value --steps=60

Printed for each recipe, over the steps from a third on: the share of mixed groups among all that were
rolled out, mixed groups for 1,000 generated tokens, the same as a share of the oracle's, and the milliseconds
that a step without model takes. Under a minute a recipe on a CPU.
"""

import json
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from rlvr_jax.core import ledger, table
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import (
  Belief,
  BeliefModel,
  Collector,
  Feedback,
  Policy,
  PromptTable,
  Recipe,
)
from rlvr_jax.posterior import acquisition
from rlvr_jax.recipes import RECIPES
from rlvr_jax.recipes.compose import compose
from rlvr_jax.recipes.token_value import token_value
from rlvr_jax.train import debug
from rlvr_jax.train.collect import make_collect

LONGEST = 64


def world(num_prompts: int, seed: int):
  """(logits float64 [M], response tokens int [M]): half as long again for each two logits that are lost."""
  rng = np.random.default_rng(seed)
  logits = rng.normal(-1.0, 5.0, num_prompts)
  log_length = np.log(16) - 0.1 * logits + rng.normal(0.0, 0.4, num_prompts)
  return logits, np.clip(np.round(np.exp(log_length)), 2, LONGEST).astype(np.int32)


def _rollout(lengths: jax.Array):
  """Rows as long as their prompts say, of the token 0."""
  grow = debug.mock_rollout(median=2.0 * LONGEST, spread=0.0)  # to the limit

  def rollout(policy, params, rows, version, eos_ids, **sizes):
    limit = jnp.minimum(rows.limit, rows.response_start + lengths[rows.prompt_id])
    return grow(policy, params, rows.replace(limit=limit), version, eos_ids, **sizes)

  return rollout


def _policy() -> Policy:
  """What the collector asks of a policy that no rollout runs."""
  none: Any = None
  return Policy(init=none, hidden=none, logits=none, init_cache=none, axes=none, vocab_size=8)


def knowing(recipe: Recipe, rates, lengths) -> Recipe:
  """The recipe with a belief that is told the solve rates of each step, [steps,M], and the lengths."""

  def belief(step, prompt_id):
    p = rates[jnp.minimum(step, len(rates) - 1)][prompt_id]
    return Belief(p, jnp.zeros_like(p), jnp.full_like(p, 1e6), lengths[prompt_id])

  model = BeliefModel(
    init=lambda table: jnp.zeros((), jnp.int32),
    update=lambda step, tally: step + 1,
    belief=belief,
  )
  value = acquisition.per_token(of=acquisition.mixed(rollouts=8))
  return recipe._replace(posterior=acquisition.scored(model, value))


def play(recipe: Recipe, *, num_prompts: int, prompts: int, budget: int, steps: int, seed: int):
  """What each step made: a list of dicts, and the seconds of a step's choices in the median."""
  logits, lengths = world(num_prompts, seed)
  rates = 1 / (1 + np.exp(-(logits[None] + 0.01 * np.arange(steps)[:, None])))
  as_array = lambda x: jnp.asarray(x, jnp.float32)
  if recipe.posterior is None:
    recipe = knowing(token_value(explore=0.0), as_array(rates), as_array(lengths))
  recipe = recipe._replace(rollout=_rollout(jnp.asarray(lengths)))
  rng, now = np.random.default_rng(seed + 1), [0]

  def verify(prompt_ids, texts):
    hit = rng.random(len(prompt_ids)) < rates[now[0], np.asarray(prompt_ids, int)]
    return [Verdict(float(x)) for x in hit]

  prompt_table = PromptTable(
    tokens=jnp.ones((num_prompts, 1), jnp.int32),
    length=jnp.ones(num_prompts, jnp.int32),
    source=jnp.zeros(num_prompts, jnp.int32),
  )
  collect = make_collect(
    _policy(), recipe, prompt_table, verify, lambda ids: "", sources=("toy",), prompts=prompts,
    budget=budget, max_new_tokens=LONGEST, eos_ids=[7],
  )  # fmt: skip
  control = recipe.control.init(prompt_table)
  collector = Collector(
    posterior=recipe.posterior.init(prompt_table),
    replay=recipe.replay.init(prompt_table, collect.num_places),
    visited=jnp.zeros(num_prompts, bool),
    epoch=jnp.zeros((), jnp.int32),
    key=jax.random.key_data(jax.random.key(seed)),
  )

  @jax.jit
  def learn(control, rows, tally, epoch, step):
    """Controllers hear of the batch as they do after an update."""
    entropy = jnp.zeros((), jnp.float32)
    feedback = Feedback(rows, recipe.advantage(rows), entropy, tally, epoch, step)
    return recipe.control.update(control, feedback)

  books, made, seconds = ledger.new(num_prompts), [], []
  for step in range(steps):
    now[0] = step
    before = ledger.totals(books)["generated"]
    began = time.perf_counter()
    collector, batch, books, _ = collect({}, jnp.int32(step), control, collector, books)
    seconds.append(time.perf_counter() - began)
    control = learn(control, batch.rows, batch.tally, collector.epoch, jnp.int32(step))
    tally = jax.device_get(batch.tally)
    drawn = tally.trials > 0
    mixed = drawn & (tally.successes > 0) & (tally.successes < tally.trials)
    made.append(
      {
        "groups": int(drawn.sum()),
        "mixed": int(mixed.sum()),
        "tokens": ledger.totals(books)["generated"] - before,
        **{k: v for k, v in batch.metrics.items() if k.startswith("posterior/")},
      }
    )
  return made, float(np.median(seconds))


def summary(made: list[dict[str, float]]) -> dict[str, float]:
  """Over the last two thirds of the steps."""
  late = made[len(made) // 3 :]
  total = lambda name: sum(one[name] for one in late)
  out = {
    "mixed_share": total("mixed") / max(total("groups"), 1),
    "mixed_per_1000_tokens": 1000 * total("mixed") / max(total("tokens"), 1),
  }
  for name in ("posterior/brier", "posterior/ece"):
    if name in late[0]:
      out[name] = float(np.mean([one[name] for one in late]))
  return out


def main(argv):
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  given = flags.FLAGS
  sizes = {"num_prompts": given.num_prompts, "prompts": given.prompts, "budget": given.budget}
  rows = {}
  for name in given.recipes:
    if name == "oracle":
      recipe = token_value()._replace(posterior=None)  # pyright: ignore[reportArgumentType]
    elif name in RECIPES:
      recipe = compose(name)
    else:
      raise app.UsageError(str(table.unknown("recipe", name, [*RECIPES, "oracle"])))
    each = [play(recipe, steps=given.steps, seed=seed, **sizes) for seed in range(given.seeds)]
    results = [summary(made) for made, _ in each]
    rows[name] = {k: float(np.mean([one[k] for one in results])) for k in results[0]}
    rows[name]["milliseconds"] = 1e3 * float(np.median([seconds for _, seconds in each]))
    best = rows.get("oracle", {}).get("mixed_per_1000_tokens")
    if best:
      rows[name]["of_oracle"] = rows[name]["mixed_per_1000_tokens"] / best
    print(
      json.dumps({"recipe": name, **{k: round(v, 4) for k, v in rows[name].items()}}), flush=True
    )


def define_flags():
  flags.DEFINE_list("recipes", ["oracle", "grpo", "dapo", "dps", "token_value"], "What to play.")
  flags.DEFINE_integer("num_prompts", 2000, "Prompts of the table.")
  flags.DEFINE_integer("prompts", 128, "Prompts of a round.")
  flags.DEFINE_integer("budget", 1024, "Rollouts of a round.")
  flags.DEFINE_integer("steps", 50, "Steps; the first third is not counted.")
  flags.DEFINE_integer("seeds", 1, "Runs of each recipe.")


if __name__ == "__main__":
  define_flags()
  app.run(main)
