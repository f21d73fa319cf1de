"""The update: log-probs of each distinct token once, gradients summed bin by bin, one optimizer step.

A row lies in one bin whole, its loss depends on it alone, and the denominator of the loss depends on
masks and weights alone. So the loss of a batch is a sum over bins, each bin is run forwards and backwards
once, and its activations are gone before the next: memory grows with the bin, not with the batch, and
nothing is computed twice. The number of bins in use is a run-time number; no batch recompiles.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import groups, keys, masked
from rlvr_jax.core.types import Feedback, Learner, Packed, Policy, Recipe, Rows, Spans, TokenStats
from rlvr_jax.decode import logits as law
from rlvr_jax.train import pack


class Prepared(NamedTuple):
  """What an update needs beside the rows."""

  advantage: jax.Array  # float32 [N,T]
  weight: jax.Array  # float32 [N,T]
  wanted: jax.Array  # bool [N,T], tokens the model must be run for


def bin_stats(policy: Policy, params, packed: Packed, first, lanes: int) -> TokenStats:
  """TokenStats of the rows in bins [first, first + lanes); 0 for all other rows."""
  cut = lambda x: jax.lax.dynamic_slice_in_dim(x, first, lanes)
  tokens, source = cut(packed.tokens), cut(packed.source)
  view = Spans(cut(packed.stop))
  everywhere = jnp.ones(tokens.shape, bool)
  hidden, _ = policy.hidden(params, tokens, cut(packed.position), everywhere, view)
  hidden = jnp.take_along_axis(hidden, source[:, :, None], 1)
  reads = cut(packed.target), cut(packed.temperature)
  logprobs = _read(policy, params, hidden, *reads, cut(packed.num_reads).max()).reshape(-1)
  local = packed.place - first * source.shape[1]
  local = jnp.where(local < 0, len(logprobs), local)  # a negative index would count from the end
  return TokenStats(logprobs=logprobs.at[local].get(mode="fill", fill_value=0.0))


def _read(policy, params, hidden, target, temperature, num_reads):
  """float32 [lanes,R]: log-probs of target [lanes,R] after hidden [lanes,R,E]; 0 from num_reads on.

  The head is a fifth of a small model, and most bins hold few reads: it runs on as many quarters of the
  places as it must. Its logits are made again in the backward pass: on a CPU as fast as keeping them.
  """
  lanes, most = target.shape

  def first(size, params, hidden, target):
    z = policy.logits(params, hidden[:, :size]).reshape(lanes * size, -1)
    z = law.temper(z, temperature[:, :size].reshape(-1))
    logprobs = law.logprob(z, target[:, :size].reshape(-1)).reshape(lanes, size)
    return jnp.pad(logprobs, ((0, 0), (0, most - size)))

  sizes = sorted({-(-most * i // 4) for i in (1, 2, 3, 4)})
  branches = [jax.checkpoint(functools.partial(first, size)) for size in sizes]
  index = sum((num_reads > size).astype(jnp.int32) for size in sizes[:-1])
  return jax.lax.switch(jnp.asarray(index), branches, params, hidden, target)


def token_stats(policy: Policy, params, packed: Packed, *, lanes: int = 1) -> TokenStats:
  """TokenStats of every packed row, without gradients."""

  def body(carry):
    first, logprobs = carry
    stats = bin_stats(policy, params, packed, first, lanes)
    return first + lanes, logprobs + stats.logprobs

  start = jnp.zeros((), jnp.int32), jnp.zeros(packed.place.shape, jnp.float32)
  _, logprobs = jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)
  return TokenStats(logprobs=logprobs)


def loss_and_grads(policy, recipe, params, rows, packed, prepared, knobs, *, lanes: int = 1):
  """The loss of the batch, its gradient, and TokenStats on the way.

  Returns:
    loss float32 [], grads like params (float32), stats, seen: the rows the model was run for.
  """
  _, denominator = recipe.aggregate(prepared.advantage, prepared.weight, rows)
  scale = 1.0 / jnp.maximum(denominator, 1e-8)

  def bin_loss(params, first):
    here = (packed.row_bin >= first) & (packed.row_bin < first + lanes)
    mine = rows.replace(valid=rows.valid & here)
    stats = bin_stats(policy, params, packed, first, lanes)
    loss, _ = recipe.objective.loss(stats, mine, prepared.advantage, knobs)
    numerator, _ = recipe.aggregate(loss, prepared.weight, mine)
    return numerator * scale, stats

  def body(carry):
    first, loss, grads, logprobs = carry
    (one, stats), g = jax.value_and_grad(bin_loss, has_aux=True)(params, first)
    grads = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), grads, g)
    return first + lanes, loss + one, grads, logprobs + stats.logprobs

  zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), params)
  start = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), zeros, jnp.zeros(rows.tokens.shape)
  _, loss, grads, logprobs = jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)
  seen = rows.replace(valid=rows.valid & (packed.row_bin >= 0))
  return loss, grads, TokenStats(logprobs=logprobs), seen


def make_learn(
  policy: Policy,
  recipe: Recipe,
  optimizer: optax.GradientTransformation,
  *,
  num_rows: int,
  num_places: int,
  num_prompts: int,
  bin_tokens: int = 0,
  lanes: int = 1,
  constrain=lambda rows: rows,
):
  """Builds learn(learner, rows, tally, epoch, key) -> (learner, metrics, booked).

  Args:
    optimizer: an optax transformation; its schedule counts updates.
    num_rows, num_places: N and T of the batches. Static.
    num_prompts: M, for the bookings by prompt.
    bin_tokens: see pack.layout.
    lanes: bins computed side by side; the number of devices along the data axis.
    constrain: puts a sharding on row arrays inside jitted functions.

  An update whose loss or gradient is not finite is not applied: parameters and optimizer state stay as
  they are, `skipped` counts it, and the step goes on.
  """
  sizes = pack.layout(num_rows, num_places, bin_tokens=bin_tokens)

  @jax.jit
  def prepare(learner, rows, key) -> Prepared:
    knobs = recipe.control.value(learner.control)
    rows = constrain(rows)
    advantage = jax.lax.stop_gradient(recipe.advantage(rows))
    stream = keys.stream(key, "weigh", learner.step)
    weight = jax.lax.stop_gradient(recipe.weigh(stream, rows, advantage, knobs))
    counts = rows.loss_mask & (weight != 0)
    matters = advantage != 0 if recipe.objective.needs_advantage else jnp.ones_like(counts)
    # A row is run whole or not at all: a ratio of sequences needs every token.
    runs = (counts & matters).any(1)
    return Prepared(advantage, weight, rows.loss_mask & runs[:, None])

  @functools.partial(jax.jit, donate_argnums=0)
  def update(learner: Learner, rows: Rows, packed: Packed, prepared: Prepared, tally, epoch, last):
    knobs = recipe.control.value(learner.control)
    rows = constrain(rows)
    loss, grads, stats, seen = loss_and_grads(
      policy, recipe, learner.params, rows, packed, prepared, knobs, lanes=lanes
    )
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    params, opt_state = _apply(optimizer, grads, learner, finite)
    entropy = masked.mean(rows.entropy, rows.loss_mask)
    feedback = Feedback(
      rows=rows,
      advantage=prepared.advantage,
      entropy=entropy,
      tally=tally,
      epoch=epoch,
      step=learner.step,
    )
    control = recipe.control.update(learner.control, feedback)
    control = jax.tree.map(lambda a, b: jnp.where(last, a, b), control, learner.control)
    _, metrics = recipe.objective.loss(stats, seen, prepared.advantage, knobs)
    metrics = metrics | _mismatch(stats, seen)
    age = jnp.where(rows.loss_mask, learner.step - rows.version, 0)
    metrics |= {
      "policy/loss": loss,
      "policy/grad_norm": norm,
      "policy/entropy": entropy,
      "rollout/staleness_mean": masked.mean(age, rows.loss_mask),
      "rollout/staleness_max": age.max(),
    }
    learner = Learner(
      params=params,
      opt_state=opt_state,
      control=control,
      step=learner.step + last.astype(jnp.int32),
      skipped=learner.skipped + (~finite).astype(jnp.int32),
    )
    trained = rows.loss_mask & (prepared.weight != 0)
    booked = groups.total(trained.sum(1), rows.prompt_id, rows.valid, num_prompts)
    return learner, metrics | {"finite": finite}, booked

  def learn(learner, rows, tally, epoch, key):
    prepared = prepare(learner, rows, key)
    tokens, wanted, temperature = jax.device_get((rows.tokens, prepared.wanted, rows.temperature))
    packed, info = pack.pack(tokens, wanted, temperature, sizes, lanes=lanes)
    metrics, booked = {}, {"trained": np.zeros(num_prompts, np.int64), "computed": 0}
    for u in range(recipe.updates):
      last = jnp.asarray(u == recipe.updates - 1)
      learner, new, trained = update(learner, rows, packed, prepared, tally, epoch, last)
      # Sampler and learner can be compared only before the first update moved the policy.
      metrics |= {k: v for k, v in new.items() if u == 0 or not k.startswith("mismatch/")}
      booked["trained"] = booked["trained"] + np.asarray(trained, np.int64)
      booked["computed"] += info.unique
    metrics = {k: v.item() for k, v in jax.device_get(metrics).items()}
    metrics["perf/sharing"] = info.row_tokens / max(info.unique, 1)
    return learner, metrics, booked

  learn.parts = {"prepare": prepare, "update": update}
  learn.sizes = sizes
  return learn


def _apply(optimizer, grads, learner, finite):
  """One optimizer step, or none if something was not finite. float32 update, params keep their dtype."""
  grads = jax.tree.map(lambda g: jnp.where(finite, g, 0.0), grads)
  updates, opt_state = optimizer.update(grads, learner.opt_state, learner.params)
  params = optax.apply_updates(learner.params, updates)
  # optax hands moments of bfloat16 parameters back in float32: the state keeps its types.
  keep = lambda new, old: jax.tree.map(
    lambda a, b: jnp.where(finite, a.astype(b.dtype), b), new, old
  )
  return keep(params, learner.params), keep(opt_state, learner.opt_state)


def _mismatch(stats: TokenStats, seen: Rows):
  """How far the learner's log-probs are from the sampler's, over the tokens the learner computed."""
  mask = seen.loss_mask
  d = masked.select(stats.logprobs - seen.full_logprobs, mask)
  ratio = jnp.exp(jnp.clip(d, -20.0, 20.0))
  num = jnp.maximum(mask.sum(), 1)
  weight_sum = masked.total(ratio, mask)
  squares = jnp.maximum(masked.total(ratio * ratio, mask), 1e-8)
  return {
    "mismatch/logp_diff_mean": masked.mean(jnp.abs(d), mask),
    "mismatch/logp_diff_max": masked.highest(jnp.abs(d), mask),
    "mismatch/kl_k3": masked.mean(ratio - 1 - d, mask),
    "mismatch/ess": jnp.where(mask.any(), weight_sum * weight_sum / squares / num, 1.0),
  }
