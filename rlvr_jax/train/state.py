"""The state of a run, and how it starts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import ledger, table
from rlvr_jax.core.types import Collector, Learner, Params, PromptTable, Recipe, RunState
from rlvr_jax.models.lora import fingerprint
from rlvr_jax.tasks.pool import COUNTERS
from rlvr_jax.train.config import Config
from rlvr_jax.train.optimizers import OPTIMIZERS, scaled, with_rate


def make_schedule(config: Config, updates: int) -> optax.Schedule:
  """The learning rate of each optimizer update: warm-up, then what the config says.

  Args:
    updates: optimizer updates a step; the config counts steps.
  """
  warmup = config.warmup_steps * updates
  rest = max(config.steps * updates - warmup, 1)
  peak = config.learning_rate
  after = {
    "constant": lambda: optax.constant_schedule(peak),
    "linear": lambda: optax.linear_schedule(peak, 0.0, rest),
    "cosine": lambda: optax.cosine_decay_schedule(peak, rest),
  }[config.schedule]()
  # Warm-up starts one notch above 0: an update at rate 0 would be a step wasted.
  ramp = optax.linear_schedule(peak / max(warmup, 1), peak, max(warmup - 1, 1))
  return optax.join_schedules([ramp, after], [warmup]) if warmup else after


def make_optimizer(
  config: Config, schedule: optax.Schedule, step_scale=None
) -> optax.GradientTransformation:
  """The config's optimizer at the schedule's rate, after gradients are clipped by their global norm.

  Parameters of fewer than 32 bits have their master weights and moments in the state, in float32.

  Args:
    step_scale: see Recipe.step_scale.
  """
  args = config.optimizer_args
  if config.optimizer == "adamw":
    args = {"b1": config.adam_b1, "b2": config.adam_b2, "eps": config.adam_eps} | args
  direction = table.build("optimizer", config.optimizer, OPTIMIZERS, args)
  optimizer = optax.chain(
    optax.clip_by_global_norm(config.max_grad_norm),
    with_rate(scaled(direction, step_scale), schedule, weight_decay=config.weight_decay),
  )
  return optimizer if config.param_dtype == "float32" else with_master_weights(optimizer)


class MasterState(NamedTuple):
  """State of `with_master_weights`."""

  weights: Params  # float32
  inner: Any


def with_master_weights(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
  """The optimizer on float32 weights held in its state; the parameters become their rounding.

  bfloat16 has 8 bits of mantissa: an update below 1/512 of a parameter would be lost if added to it.

  Source: mixed precision training, arXiv 1710.03740, section 3.1.
  """
  lift = lambda tree: jax.tree.map(lambda x: x.astype(jnp.float32), tree)

  def init(params):
    weights = lift(params)
    return MasterState(weights, optimizer.init(weights))

  def update(updates, state, params=None):
    updates, inner = optimizer.update(lift(updates), state.inner, state.weights)
    weights = optax.apply_updates(state.weights, updates)
    # What takes the parameters to the new weights, in float32: their sum is rounded once.
    updates = jax.tree.map(lambda new, old: new - old.astype(jnp.float32), weights, params)
    return updates, MasterState(weights, inner)

  return optax.GradientTransformation(init, update)


def init_state(
  recipe: Recipe, optimizer, params, *, table: PromptTable, num_places: int, seed: int, frozen=None
) -> RunState:
  """The state before step 0. It takes the parameters over: the learner donates its state, so the caller's
  arrays are gone after the first update. Copy them before, if they are still wanted.
  Of `frozen`, parameters that are not trained, the state keeps the fingerprint. Rows have `num_places` (T).
  """
  params = jax.tree.map(jnp.asarray, params)
  num_prompts = len(table.length)
  key = jax.random.key_data(jax.random.fold_in(jax.random.key(seed), 0))
  learner = Learner(
    params=params,
    opt_state=jax.jit(optimizer.init)(params),
    control=recipe.control.init(table),
    step=jnp.zeros((), jnp.int32),
    skipped=jnp.zeros((), jnp.int32),
  )
  collector = Collector(
    posterior=recipe.posterior.init(table),
    replay=recipe.replay.init(table, num_places),
    visited=jnp.zeros(num_prompts, bool),
    epoch=jnp.zeros((), jnp.int32),
    key=key,
  )
  return RunState(
    learner=learner,
    collector=collector,
    ledger=ledger.new(num_prompts),
    frozen=np.asarray(fingerprint(frozen)) if frozen else None,
    verifier=np.zeros(len(COUNTERS), np.int64),
  )
