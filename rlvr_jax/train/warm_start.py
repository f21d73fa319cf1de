"""A supervised warm start: the learner itself, with the log-likelihood of demonstrations as its loss."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Controller, Learner, Objective, Policy, Recipe, Tally
from rlvr_jax.train.learn import make_learn


def likelihood() -> Objective:
  """Minus the log-prob of each token."""
  return Objective(lambda stats, rows, advantage, knobs: (-stats.logprobs, {}), False)


def warm_start(
  policy: Policy,
  params,
  recipe: Recipe,
  demonstrations: Sequence[tuple[list[int], list[int]]],
  *,
  steps: int,
  rows: int,
  learning_rate: float,
  seed: int,
):
  """Parameters after `steps` Adam updates on batches of demonstrations.

  Args:
    recipe: for the slots that an update does not look at; all recipes begin from the same parameters.
    demonstrations: (prompt ids, response ids, the end token included).
    rows: demonstrations in a batch.

  Returns:
    params, and the mean loss in nats a token over the last tenth of the steps.
  """
  places = max(len(prompt) + len(answer) for prompt, answer in demonstrations)
  optimizer = optax.adam(learning_rate)
  supervised = recipe._replace(
    advantage=lambda rows: jnp.zeros(rows.tokens.shape, jnp.float32),
    weigh=lambda key, rows, advantage, knobs: rows.loss_mask.astype(jnp.float32),
    objective=likelihood(),
    aggregate=lambda loss, weight, rows: ((loss * weight).sum(), weight.sum()),
    control=Controller(
      init=lambda table: (),
      value=lambda state: {"temperature": jnp.ones((), jnp.float32)},
      update=lambda state, feedback: state,
    ),
    annotate=(),
    updates=1,
  )
  learn = make_learn(policy, supervised, optimizer, num_rows=rows, num_places=places, num_prompts=1)
  learner = Learner(
    params=jax.tree.map(lambda p: jnp.array(p, copy=True), params),
    opt_state=optimizer.init(params),
    control=(),
    step=jnp.zeros((), jnp.int32),
    skipped=jnp.zeros((), jnp.int32),
  )
  z = jnp.zeros(1, jnp.float32)
  tally = Tally(z, z, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32))
  rng = np.random.default_rng(seed)
  losses = []
  for _ in range(steps):
    chosen = rng.integers(0, len(demonstrations), rows)
    batch = _rows([demonstrations[i] for i in chosen], places)
    learner, metrics, _ = learn(learner, batch, tally, jnp.int32(0), jax.random.key(seed))
    losses.append(metrics["policy/loss"])
  return learner.params, float(np.mean(losses[-max(steps // 10, 1) :]))


def _rows(pairs, places):
  n = len(pairs)
  blank = rows_lib.blank(n, places)
  tokens, mask = np.zeros((n, places), np.int32), np.zeros((n, places), bool)
  for i, (prompt, answer) in enumerate(pairs):
    tokens[i, : len(prompt) + len(answer)] = [*prompt, *answer]
    mask[i, len(prompt) : len(prompt) + len(answer)] = True
  start = np.array([len(prompt) for prompt, _ in pairs], np.int32)
  return blank.replace(
    tokens=jnp.asarray(tokens),
    response_mask=jnp.asarray(mask),
    response_start=jnp.asarray(start),
    length=jnp.asarray(start + mask.sum(1), jnp.int32),
    group=jnp.arange(n, dtype=jnp.int32),
    valid=jnp.ones(n, bool),
  )
