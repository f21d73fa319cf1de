"""Baselines that learn: a critic with gradients, a probe in closed form. Each writes what advantages read.

    annotate(state, policy params, rows) -> rows with the values in rows.extras, before the advantage
    update(state, policy params, rows)   -> (state, metrics), after the policy's own update

Both run the model over the packed batch, each distinct prefix once, as the learner does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

from rlvr_jax.core import groups, masked, returns
from rlvr_jax.core.table import resolve, unknown
from rlvr_jax.core.types import Array, Packed, Params, Policy, Rows, Spans
from rlvr_jax.models import heads
from rlvr_jax.train import pack


class Baseline(NamedTuple):
  """A learned baseline."""

  init: Callable  # (policy params) -> state
  annotate: Callable  # (state, policy params, rows) -> rows
  update: Callable  # (state, policy params, annotated rows) -> (state, metrics)


class CriticState(flax.struct.PyTreeNode):
  params: Params
  opt_state: Any
  step: Array  # int32 [], batches learned from


def make_critic(
  critic: heads.Critic,
  optimizer: optax.GradientTransformation,
  *,
  num_rows: int,
  num_places: int,
  updates: int = 2,
  gamma: float = 1.0,
  lam: float = 1.0,
  bin_tokens: int = 0,
  lanes: int = 1,
) -> Baseline:
  """A critic that writes rows.extras["values"], float32 [N,T]: the value before each trained token.

  It learns from the returns of a GAE of its own, by default Monte-Carlo ones; the loss is the mean over the
  trained tokens of the batch. An update that is not finite is not applied.

  Args:
    updates: optimizer steps on each batch.
    gamma, lam: of the returns it learns from; `lam` 1 does not bootstrap.
    bin_tokens, lanes: as in `learn.make_learn`.

  Source: SAO, arXiv 2607.07508: two updates a batch at rate 5e-6, and Monte-Carlo returns.
  """
  if updates < 1:
    raise ValueError(f"updates must be at least 1, got {updates}")
  layout = pack.layout(num_rows, num_places, bin_tokens=bin_tokens)
  head = critic.head

  def outputs(params, policy_params, packed: Packed, first):
    """float32 [N,T,K] for the rows in bins [first, first + lanes), 0 for the others."""
    run = lambda *inputs: critic.out(params, policy_params, *inputs)
    return _read(run, packed, first, lanes)

  @jax.jit
  def read(params, policy_params, packed):
    def body(carry):
      first, values = carry
      out = outputs(params, policy_params, packed, first)
      return first + lanes, jnp.where(_here(packed, first, lanes), head.value(out), values)

    start = jnp.zeros((), jnp.int32), jnp.zeros(packed.place.shape, jnp.float32)
    return jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)[1]

  @jax.jit
  def learn(state: CriticState, policy_params, packed, rows: Rows):
    mask = _scored(rows)
    reward = returns.at_end(jnp.where(mask.any(1), rows.reward, 0.0), mask)
    old = masked.select(rows.extras["values"], mask)
    _, target = returns.gae(reward, old, mask, gamma=gamma, lam=lam)
    count = jnp.maximum(mask.sum(), 1).astype(jnp.float32)

    def bin_loss(params, first):
      out = outputs(params, policy_params, packed, first)
      here = mask & _here(packed, first, lanes)
      return masked.total(head.loss(out, old, target), here) / count

    def body(carry):
      first, loss, grads = carry
      one, g = jax.value_and_grad(bin_loss)(state.params, first)
      grads = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), grads, g)
      return first + lanes, loss + one, grads

    zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), state.params)
    start = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), zeros
    _, loss, grads = jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)
    learns = critic.trained(state.params)
    grads = jax.tree.map(lambda g, t: g if t else jnp.zeros_like(g), grads, learns)
    finite = jnp.isfinite(loss) & jnp.isfinite(optax.tree.norm(grads))
    step, opt_state = optimizer.update(grads, state.opt_state, state.params)
    step = jax.tree.map(lambda u, t: u if t else jnp.zeros_like(u), step, learns)
    new = optax.apply_updates(state.params, step)
    keep = lambda a, b: jax.tree.map(lambda x, y: jnp.where(finite, x.astype(y.dtype), y), a, b)
    error = masked.variance(target - old, mask)
    spread = jnp.maximum(masked.variance(target, mask), 1e-8)
    metrics = {"critic/loss": loss, "critic/explained": 1 - error / spread}
    params, opt_state = keep(new, state.params), keep(opt_state, state.opt_state)
    return state.replace(params=params, opt_state=opt_state), metrics

  def init(policy_params):
    params = critic.init(policy_params)
    return CriticState(params, optimizer.init(params), jnp.zeros((), jnp.int32))

  def annotate(state, policy_params, rows):
    packed, _ = pack.pack_rows(rows, rows.loss_mask, layout, lanes=lanes)
    values = read(state.params, policy_params, packed)
    return rows.replace(extras=rows.extras | {"values": masked.select(values, rows.loss_mask)})

  def update(state, policy_params, rows):
    packed, _ = pack.pack_rows(rows, rows.loss_mask, layout, lanes=lanes)
    metrics = {}
    for _ in range(updates):
      state, new = learn(state, policy_params, packed, rows)
      metrics = metrics or new  # of the first: the values before this batch was seen
    metrics = {k: v.item() for k, v in jax.device_get(metrics).items()}
    return state.replace(step=state.step + 1), metrics

  return Baseline(init, annotate, update)


class ProbeState(flax.struct.PyTreeNode):
  probe: heads.Ridge
  features: Array  # float32 [steps,N,F], of the last batches; the newest first
  target: Array  # float32 [steps,N]
  used: Array  # bool [steps,N]


def make_probe(
  policy: Policy,
  *,
  num_rows: int,
  num_places: int,
  steps: int = 8,
  last: int = 10,
  alpha: float = 0.01,
  bin_tokens: int = 0,
  lanes: int = 1,
) -> Baseline:
  """A ridge probe on the policy's hidden states; writes rows.extras["prediction"] and ["features"], [N,...].

  Features of a row: the mean hidden state over its last prompt tokens, the mean over its last response
  tokens, and mean, standard deviation and maximum of the entropy of its trained tokens. A row's target is
  the mean reward of the OTHER rows of its group. It is refitted after every batch on the last batches.
  Hidden states are those that the head reads.

  Args:
    steps: batches that are kept.
    last: tokens averaged at the end of the prompt and of the response.
    alpha: of the ridge.

  Source: POISE, arXiv 2605.07579 (which reads a layer at about two thirds of the depth).
  """
  if steps < 1 or last < 1 or alpha <= 0:
    raise ValueError(
      f"want steps and last at least 1, alpha positive; got {steps}, {last}, {alpha}"
    )
  layout = pack.layout(num_rows, num_places, bin_tokens=bin_tokens)

  @jax.jit
  def predict(state: ProbeState, params, packed, rows: Rows):
    ends = rows.response_start, rows.length
    place = jnp.arange(num_places, dtype=jnp.int32)[None]
    # The hidden state of token t - 1 is what token t is read from.
    spans = [
      (place > jnp.maximum(end - last, start)[:, None]) & (place <= end[:, None])
      for start, end in ((jnp.zeros_like(ends[0]), ends[0]), ends)
    ]

    def body(carry):
      first, sums = carry
      hidden = lambda *inputs: policy.hidden(params, *inputs)[0].astype(jnp.float32)
      out = _read(hidden, packed, first, lanes)
      mean = [(out * s[:, :, None]).sum(1) / jnp.maximum(s.sum(1), 1)[:, None] for s in spans]
      here = _here(packed, first, lanes)
      return first + lanes, jnp.where(here, jnp.concatenate(mean, 1), sums)

    width = state.features.shape[2] - 3
    start = jnp.zeros((), jnp.int32), jnp.zeros((num_rows, width), jnp.float32)
    _, means = jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)
    mask = rows.loss_mask
    entropy = masked.select(rows.entropy, mask)
    mean = masked.mean(entropy, mask, 1)
    spread = jnp.sqrt(masked.mean((entropy - mean[:, None]) ** 2, mask, 1))
    features = jnp.concatenate([means, jnp.stack([mean, spread, entropy.max(1)], 1)], 1)
    return features, heads.ridge_predict(state.probe, features)

  @jax.jit
  def fit(state: ProbeState, rows: Rows):
    ok = _scored(rows).any(1)
    reward = jnp.where(ok, rows.reward, 0.0)
    used = ok & (groups.count(rows.group, ok)[rows.group] > 1)
    push = lambda old, new: jnp.concatenate([new[None], old[:-1]])
    features = push(state.features, rows.extras["features"])
    target = push(state.target, groups.leave_one_out(reward, rows.group, ok))
    used = push(state.used, used)
    flat = lambda x: x.reshape(steps * num_rows, *x.shape[2:])
    probe = heads.ridge_fit(flat(features), flat(target), flat(used), alpha=alpha)
    error = jnp.abs(rows.extras["prediction"] - target[0])
    known = used[0] & jnp.isfinite(error)
    return ProbeState(probe, features, target, used), masked.mean(error, known)

  def init(policy_params):
    one = jnp.zeros((1, 1), jnp.int32)
    hidden = lambda p: policy.hidden(p, one, one, one == 0, Spans(one))[0]
    size = 2 * jax.eval_shape(hidden, policy_params).shape[-1] + 3
    shape = steps, num_rows
    zeros = jnp.zeros(shape, jnp.float32)
    features = jnp.zeros((*shape, size), jnp.float32)
    return ProbeState(heads.unfitted(size), features, zeros, jnp.zeros(shape, bool))

  def annotate(state, policy_params, rows):
    # Every place after the first, not the trained ones alone: the prompt is read too.
    places = jnp.arange(num_places)[None]
    wanted = rows.valid[:, None] & (places > 0) & (places <= rows.length[:, None])
    packed, _ = pack.pack_rows(rows, wanted, layout, lanes=lanes)
    features, prediction = predict(state, policy_params, packed, rows)
    extras = {"features": features, "prediction": prediction}
    return rows.replace(extras=rows.extras | extras)

  def update(state, policy_params, rows):
    del policy_params
    state, error = fit(state, rows)
    return state, {"critic/error": error.item()}

  return Baseline(init, annotate, update)


def _scored(rows: Rows):
  """bool [N,T]: trained tokens of rows that have a reward."""
  return rows.loss_mask & jnp.isfinite(rows.reward)[:, None]


def _here(packed: Packed, first, lanes: int):
  """bool [N,1]: rows in bins [first, first + lanes)."""
  return ((packed.row_bin >= first) & (packed.row_bin < first + lanes))[:, None]


def _read(run, packed: Packed, first, lanes: int):
  """[N,T,...]: run(tokens, positions, valid, view) at what predicts each place, for the rows in bins
  [first, first + lanes); 0 elsewhere."""
  cut = lambda x: jax.lax.dynamic_slice_in_dim(x, first, lanes)
  tokens, source = cut(packed.tokens), cut(packed.source)
  out = run(tokens, cut(packed.position), jnp.ones(tokens.shape, bool), Spans(cut(packed.stop)))
  out = jnp.take_along_axis(out, source[:, :, None], 1).reshape(source.size, -1)
  local = packed.place - first * source.shape[1]
  local = jnp.where(local < 0, source.size, local)  # a negative index would count from the end
  return out.at[local].get(mode="fill", fill_value=0.0)


# --------------------------------------------------------------------------------------------------
# What a recipe names


HEADS = {"scalar": heads.scalar, "categorical": heads.categorical, "quantile": heads.quantile}


def critic_baseline(
  policy: Policy,
  *,
  head: str = "scalar",
  own_trunk: bool = False,
  frozen: tuple[str, ...] = (),
  learning_rate: float = 1e-4,
  **options,
) -> Baseline:
  """`make_critic` with AdamW at a constant rate, from plain arguments.

  Args:
    head: of HEADS, with its defaults.
    own_trunk, frozen: of heads.critic.
    learning_rate: positive.
    **options: of make_critic.
  """
  if head not in HEADS:
    raise unknown("value head", head, HEADS)
  if learning_rate <= 0:
    raise ValueError(f"learning_rate must be positive, got {learning_rate}")
  critic = heads.critic(policy, HEADS[head](), own_trunk=own_trunk, frozen=frozen)
  return make_critic(critic, optax.adamw(learning_rate), **options)


BASELINES = {
  "critic": "rlvr_jax.train.critic:critic_baseline",
  "probe": "rlvr_jax.train.critic:make_probe",
}


def make_baseline(policy: Policy, named: tuple[str, dict], **sizes) -> Baseline:
  """The baseline that a recipe names: (a name of BASELINES, its arguments).

  Args:
    **sizes: num_rows, num_places, bin_tokens, lanes.

  Raises:
    ValueError: for an unknown name.
  """
  name, args = named
  return resolve("baseline", name, BASELINES)(policy, **args, **sizes)


def attach(learn, baseline: Baseline | None):
  """learn(learner, state, rows, ...) -> (learner, state, metrics, booked) around `learn.make_learn`'s: the
  baseline speaks before the update, and learns after it from the same batch. None: there is none."""

  def both(learner, state, rows, *rest):
    if baseline is None:
      learner, metrics, booked = learn(learner, rows, *rest)
      return learner, state, metrics, booked
    rows = baseline.annotate(state, learner.params, rows)
    learner, metrics, booked = learn(learner, rows, *rest)
    state, more = baseline.update(state, learner.params, rows)
    return learner, state, metrics | more, booked

  return both
