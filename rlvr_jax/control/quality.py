"""A quality head that learns online which half-written responses end well."""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import optax

from rlvr_jax.control.joined import joined
from rlvr_jax.core import groups, survival
from rlvr_jax.core.types import Array, Controller


class QualityState(flax.struct.PyTreeNode):
  head: survival.Head
  opt_state: Any
  right: Array  # float32 [bins]
  seen: Array  # float32 [bins]
  step: Array  # int32 [], updates seen


def quality(
  *,
  base: Controller | None = None,
  features: int = 256,
  width: int = 256,
  bins: int = 10,
  decay: float = 0.99,
  warmup: int = 10,
  learning_rate: float = 1e-3,
) -> Controller:
  """The knobs "quality/...", a core.survival.Quality, for rollout.prune.

  It learns from the batch's rows that reached the detection length: the head one Adam step on the
  cross-entropy to the verdicts, each row with weight 1 / (probability that it survived), since those that
  were cut off have no verdict; the bins by counting with the same weights.

  Args:
    base: a controller whose knobs are there too.
    features: of a hidden state; as in rollout.prune.
    width: of the head's hidden layer.
    bins: of scores.
    decay: of the counts, each update.
    warmup: updates before anything is cut off.
    learning_rate: positive.
  """
  if min(features, width, bins) < 1 or warmup < 0:
    raise ValueError(
      f"need features, width and bins >= 1 and warmup >= 0: {features}, {width}, {bins}, {warmup}"
    )
  if not 0 < decay <= 1 or learning_rate <= 0:
    raise ValueError(
      f"need decay in (0, 1] and a positive learning_rate, got {decay} and {learning_rate}"
    )
  optimizer = optax.adam(learning_rate)

  def init(table):
    del table
    head: Any = survival.new_head(jax.random.key(0), features, width)
    none = lambda: jnp.zeros(bins, jnp.float32)
    return QualityState(head, optimizer.init(head), none(), none(), jnp.zeros((), jnp.int32))

  def value(state):
    acts = (state.step >= warmup).astype(jnp.int32)
    return survival.Quality(state.head, state.right, state.seen, acts).knobs()

  def update(state, feedback):
    rows = feedback.rows
    if "inclusion" not in rows.extras:  # rolled out in another way
      return state
    chance = rows.extras["inclusion"]
    used = rows.valid & (chance > 0)
    weight = jnp.where(used, 1 / jnp.where(used, chance, 1.0), 0.0)
    x = jnp.where(used[:, None], rows.extras["detected"], 0.0)
    right = jnp.where(used, rows.correct, 0.0)

    def loss(head: Any):
      z = survival.logit(head, x)
      return (weight * (jax.nn.softplus(z) - right * z)).sum() / jnp.maximum(weight.sum(), 1e-6)

    score = jax.nn.sigmoid(survival.logit(state.head, x))
    step, opt_state = optimizer.update(jax.grad(loss)(state.head), state.opt_state)
    keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(used.any(), a, b), new, old)
    b = survival.bin_of(score, bins)
    count = lambda x: groups.total(x, b, used, bins)
    return QualityState(
      head=keep(jax.tree.map(jnp.add, state.head, step), state.head),
      opt_state=keep(opt_state, state.opt_state),
      right=decay * state.right + count(weight * right),
      seen=decay * state.seen + count(weight),
      step=state.step + 1,
    )

  return joined(base, Controller(init, value, update))
