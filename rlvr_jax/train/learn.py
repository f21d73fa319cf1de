"""The update: log-probs of each distinct token once, gradients summed bin by bin, one optimizer step.

A row lies in one bin whole, its loss depends on it alone, and the denominator of the loss depends on
masks and weights alone. So the loss of a batch is a sum over bins, each bin is run forwards and backwards
once, and its activations are gone before the next: memory grows with the bin, not with the batch, and
nothing is computed twice. The number of bins in use is a run-time number; no batch recompiles.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlvr_jax.core import groups, hosts, keys, masked, traits, trees
from rlvr_jax.core.types import Feedback, Learner, Packed, Policy, Recipe, Rows, Spans, TokenStats
from rlvr_jax.decode import logits as law
from rlvr_jax.train import pack

READ_TOKENS = 256  # reads of a lane whose logits exist at a time


class Prepared(NamedTuple):
  """What an update needs beside the rows."""

  advantage: jax.Array  # float32 [N,T]
  weight: jax.Array  # float32 [N,T]
  wanted: jax.Array  # bool [N,T], tokens the model must be run for


class Apart(NamedTuple):
  """Parts of the devices that go through their bins on their own, and add up their gradients once a step."""

  num: int  # divides the lanes
  each: Callable[..., Any]  # of function(whole, part): see core.sharding.each_part
  constrain: Callable[..., Any]  # as that of make_learn, inside a part


BINS = "tokens", "position", "stop", "source", "target", "temperature", "num_reads"


def bins_of(packed: Packed, first, num: int) -> Packed:
  """Bins [first, first + num) alone; `place` and `row_bin` are counted from there."""
  cut = lambda x: jax.lax.dynamic_slice_in_dim(x, first, num)
  return _counted_from(packed.replace(**{name: cut(getattr(packed, name)) for name in BINS}), first)


def _counted_from(packed: Packed, first) -> Packed:
  place = packed.place - first * packed.source.shape[1]
  return packed.replace(place=place, row_bin=packed.row_bin - first)


def bin_stats(
  policy: Policy, params, packed: Packed, *, entropy: bool, read_tokens: int, constrain
) -> TokenStats:
  """TokenStats of the rows in these bins, computed side by side; 0 for all other rows."""
  tokens, source = constrain(packed.tokens), constrain(packed.source)
  view = Spans(constrain(packed.stop))
  everywhere = jnp.ones(tokens.shape, bool)
  hidden, _ = policy.hidden(params, tokens, constrain(packed.position), everywhere, view)
  hidden = constrain(jnp.take_along_axis(hidden, source[:, :, None], 1))
  logits = functools.partial(policy.logits, params)
  reads = read(
    logits, hidden, constrain(packed.target), constrain(packed.temperature),
    constrain(packed.num_reads).max(), entropy=entropy, chunk=read_tokens,
  )  # fmt: skip
  place = jnp.where(packed.place < 0, source.size, packed.place)  # would count from the end
  return jax.tree.map(lambda x: x.reshape(-1).at[place].get(mode="fill", fill_value=0.0), reads)


def read(
  logits, hidden, target, temperature, num_reads, *, entropy: bool = False, chunk: int = READ_TOKENS
) -> TokenStats:
  """What `logits` says of the first reads of each lane, a chunk at a time; 0 for the others.

  The logits of a chunk are gone before the next, and made again in the backward pass: memory grows
  with the chunk, whatever the number of reads. How many chunks are run is a run-time number.

      d logprob(t) / d z_v = [v = t] - p_v,   d entropy / d z_v = -p_v (log p_v + entropy)

  Args:
    logits: (hidden [...,E]) -> float32 [...,V]; may close over parameters, which get gradients.
    hidden: [lanes,R,E].
    target: int32 [lanes,R], the token whose log-prob is read.
    temperature: float32 [lanes,R].
    num_reads: int32 [], reads of a lane in use, rounded up to the chunk; the others are not looked at.
    entropy: whether to give the entropy of the whole softmax too.
    chunk: reads of a lane whose logits exist at a time.
  """
  lanes, most = target.shape
  chunk = min(chunk, most)
  pad = lambda x: jnp.pad(x, ((0, 0), (0, -most % chunk)) + ((0, 0),) * (x.ndim - 2))
  hidden, target, temperature = pad(hidden), pad(target), pad(temperature)
  steps = jnp.minimum(-(-num_reads // chunk), hidden.shape[1] // chunk)
  logits, weights = jax.closure_convert(logits, hidden[:, :chunk])
  piece = lambda x, i: jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, 1)
  put = lambda x, y, i: jax.lax.dynamic_update_slice_in_dim(x, y.astype(x.dtype), i * chunk, 1)

  def tempered(z, temperature):
    return law.temper(z.reshape(lanes * chunk, -1), temperature.reshape(-1))

  def at(z, target):  # a comparison: with a gather, logits sharded over the vocabulary would move
    return jnp.arange(z.shape[1], dtype=jnp.int32)[None] == target.reshape(-1)[:, None]

  def run(hidden, weights, target, temperature, steps):
    """Log-probs, entropies if asked, and log-normalisers, [lanes,R] each."""

    def body(i, out):
      z = tempered(logits(piece(hidden, i), *weights), piece(temperature, i))
      total = law.log_normaliser(z)
      one = [jnp.where(at(z, piece(target, i)), z, 0.0).sum(1) - total, total]
      one += [law.entropy(z)] if entropy else []
      return [put(x, y.reshape(lanes, chunk), i) for x, y in zip(out, one)]

    return jax.lax.fori_loop(0, steps, body, [jnp.zeros(target.shape, jnp.float32)] * (2 + entropy))

  @jax.custom_vjp
  def stats(*inputs):
    logprobs, _, *entropies = run(*inputs)
    return TokenStats(logprobs, *entropies)

  def forward(*inputs):
    logprobs, totals, *entropies = run(*inputs)
    return TokenStats(logprobs, *entropies), (inputs, totals, *entropies)

  def backward(saved, cotangents):
    (hidden, weights, target, temperature, steps), totals, *entropies = saved
    flat = lambda x, i: piece(x, i).reshape(-1)[:, None]

    def body(i, grads):
      z, pull = jax.vjp(lambda h, w: logits(h, *w), piece(hidden, i), weights)
      y = tempered(z, piece(temperature, i))
      log_p = y - flat(totals, i)
      p = jnp.exp(log_p)
      to_y = flat(cotangents.logprobs, i) * (at(y, piece(target, i)) - p)
      if entropy:
        to_y -= flat(cotangents.entropy, i) * p * (log_p + flat(entropies[0], i))
      scale = jnp.where(flat(temperature, i) > 0, flat(temperature, i), 1.0)
      to_hidden, to_weights = pull((to_y / scale).reshape(z.shape))
      add = lambda total, g: total + g.astype(total.dtype)
      return put(grads[0], to_hidden, i), jax.tree.map(add, grads[1], to_weights)

    zeros = [jnp.zeros(w.shape, jnp.float32) for w in weights]
    to_hidden, to_weights = jax.lax.fori_loop(0, steps, body, (jnp.zeros_like(hidden), zeros))
    to_weights = [g.astype(w.dtype) for g, w in zip(to_weights, weights)]
    return to_hidden, to_weights, None, None, None

  stats.defvjp(forward, backward)
  out = stats(hidden, weights, target, temperature, steps)
  return jax.tree.map(lambda x: x[:, :most], out)


def token_stats(
  policy: Policy, params, packed: Packed, *, lanes: int = 1, entropy: bool = False,
  read_tokens: int = READ_TOKENS, constrain=lambda lanes: lanes,
) -> TokenStats:  # fmt: skip
  """TokenStats of every packed row, without gradients; entropy only if asked. Options: see make_learn."""

  def body(carry):
    first, stats = carry
    one = bin_stats(
      policy, params, bins_of(packed, first, lanes), entropy=entropy, read_tokens=read_tokens,
      constrain=constrain,
    )  # fmt: skip
    return first + lanes, jax.tree.map(jnp.add, stats, one)

  start = jnp.zeros((), jnp.int32), _nothing(packed.place.shape, entropy)
  return jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)[1]


def _nothing(shape, entropy: bool) -> TokenStats:
  zeros = jnp.zeros(shape, jnp.float32)
  return TokenStats(zeros, zeros if entropy else None)


def loss_and_grads(
  policy, recipe, params, frozen, rows, packed, prepared, knobs, *, lanes: int = 1,
  read_tokens: int = READ_TOKENS, constrain=lambda lanes: lanes, apart: Apart | None = None,
):  # fmt: skip
  """The loss of the batch, its gradient with respect to `params` alone, and TokenStats on the way.

  Returns:
    loss float32 [], grads like params (float32), stats, seen: the rows and tokens the model was run for.
  """
  _, denominator = recipe.aggregate(prepared.advantage, prepared.weight, rows)
  scale = 1.0 / jnp.maximum(denominator, 1e-8)
  entropy = recipe.objective.needs_entropy
  lay = apart.constrain if apart else constrain

  def bin_loss(params, bins, frozen, rows, prepared, knobs, scale):
    here = (bins.row_bin >= 0) & (bins.row_bin < len(bins.tokens))
    mine = rows.replace(valid=rows.valid & here)
    read = mine.replace(response_mask=prepared.wanted)
    stats = bin_stats(
      policy, {**params, **frozen} if frozen else params, bins, entropy=entropy,
      read_tokens=read_tokens, constrain=lay,
    )  # fmt: skip
    loss, _ = recipe.objective.loss(stats, read, prepared.advantage, knobs)
    numerator, _ = recipe.aggregate(loss, prepared.weight, mine)
    return numerator * scale, stats

  def grads_of(whole, part):
    """((loss, stats), grads) of the bins of one part."""
    params, bins, *rest = whole
    of_bins, index = part
    bins = _counted_from(bins.replace(**of_bins), index[0])
    return jax.value_and_grad(bin_loss, has_aux=True)(params, bins, *rest)

  run = apart.each(grads_of) if apart else grads_of

  def body(carry):
    first, loss, grads, stats = carry
    bins = bins_of(packed, first, lanes)
    part = {name: getattr(bins, name) for name in BINS}, jnp.arange(lanes, dtype=jnp.int32)
    whole = params, bins, frozen, rows, prepared, knobs, scale
    (one, new), g = run(whole, part)
    if apart:
      one, new = jax.tree.map(lambda x: x.sum(0), (one, new))
    grads = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), grads, g)
    return first + lanes, loss + one, grads, jax.tree.map(jnp.add, stats, new)

  parts = (apart.num,) if apart else ()
  zeros = jax.tree.map(lambda p: jnp.zeros((*parts, *p.shape), jnp.float32), params)
  none = _nothing(rows.tokens.shape, entropy)
  start = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.float32), zeros, none
  _, loss, grads, stats = jax.lax.while_loop(lambda c: c[0] < packed.num_bins, body, start)
  if apart:
    grads = jax.tree.map(lambda g: g.sum(0), grads)
  seen = rows.replace(valid=rows.valid & (packed.row_bin >= 0), response_mask=prepared.wanted)
  return loss, grads, stats, seen


def make_learn(
  policy: Policy,
  recipe: Recipe,
  optimizer: optax.GradientTransformation,
  *,
  num_rows: int,
  num_places: int,
  num_prompts: int,
  bin_tokens: int = 0,
  read_tokens: int = READ_TOKENS,
  lanes: int = 1,
  constrain=lambda rows: rows,
  apart: Apart | None = None,
  settle=lambda learner: learner,
  frozen=None,
):
  """Builds learn(learner, rows, tally, epoch, key) -> (learner, metrics, booked).

  `learn.begin`, with the same arguments, dispatches the updates; `learn.finish` reads what came of them.

  Args:
    optimizer: an optax transformation; its schedule counts updates.
    num_rows, num_places: N and T of the batches. Static.
    num_prompts: M, for the bookings by prompt.
    bin_tokens: see pack.layout.
    read_tokens: tokens of a lane whose logits exist at a time, see `read`.
    lanes: bins computed side by side; the number of devices that rows are laid along.
    constrain: lays arrays of rows, or of lanes, over the devices inside jitted functions.
    apart: parts of the devices whose gradients meet once a step and not once a bin.
    settle: lays the new learner over the devices, inside jit.
    frozen: dict of params that the policy reads beside the learner's and that nothing trains.

  Raises:
    ValueError: if the pieces of the recipe do not go together, see core.traits.check.

  An update whose loss or gradient is not finite is not applied: parameters and optimizer state stay as
  they are, `skipped` counts it, and the step goes on.
  """
  traits.check(recipe)
  sizes = pack.layout(num_rows, num_places, bin_tokens=bin_tokens)
  # XLA's CPU default starts whatever it can, and so holds all gradients and recomputed layers at once.
  scheduler = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
  compiler_options = scheduler if jax.default_backend() == "cpu" else None

  @jax.jit
  def prepare(learner, rows, key) -> Prepared:
    knobs = recipe.control.value(learner.control)
    rows = constrain(rows)
    advantage = jax.lax.stop_gradient(recipe.advantage(rows))
    stream = keys.stream(key, "weigh", learner.step)
    weight = jax.lax.stop_gradient(recipe.weigh(stream, rows, advantage, knobs))
    counts = rows.loss_mask & (weight != 0)
    matters = advantage != 0 if recipe.objective.needs_advantage else jnp.ones_like(counts)
    wanted = rows.loss_mask & _read_by(counts & matters, recipe.objective.reads)
    return Prepared(advantage, weight, wanted)

  @functools.partial(jax.jit, donate_argnums=0, compiler_options=compiler_options)
  def update(
    learner: Learner, frozen, rows: Rows, packed: Packed, prepared: Prepared, tally, epoch, last
  ):
    knobs = recipe.control.value(learner.control)
    rows = constrain(rows)
    loss, grads, stats, seen = loss_and_grads(
      policy, recipe, learner.params, frozen, rows, packed, prepared, knobs, lanes=lanes,
      read_tokens=read_tokens, constrain=constrain, apart=apart,
    )  # fmt: skip
    norm = optax.tree.norm(grads)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    # Without a token to learn from, momentum and decay have nothing to add either.
    params, opt_state = _apply(optimizer, grads, learner, finite & (packed.num_bins > 0))
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
    trained = rows.loss_mask & (prepared.weight != 0) & trees.owned(rows)
    booked = groups.total(trained.sum(1), rows.prompt_id, rows.valid, num_prompts)
    return settle(learner), metrics | {"finite": finite}, booked

  def begin(learner, rows, tally, epoch, key):
    """(learner, pending): the updates on their way; no result of them is read."""
    prepared = prepare(learner, rows, key)
    packed, info = pack.pack_rows(rows, prepared.wanted, sizes, lanes=lanes)
    made = []
    for u in range(recipe.updates):
      last = jnp.asarray(u == recipe.updates - 1)
      learner, new, trained = update(
        learner, frozen or {}, rows, packed, prepared, tally, epoch, last
      )
      made.append((new, trained))
    return learner, (made, info)

  def finish(pending):
    """(metrics, booked) of what `begin` has begun."""
    made, info = pending
    metrics, booked = {}, {"trained": np.zeros(num_prompts, np.int64), "computed": 0}
    for u, (new, trained) in enumerate(made):
      # Sampler and learner can be compared only before the first update moved the policy.
      metrics |= {k: v for k, v in new.items() if u == 0 or not k.startswith("mismatch/")}
      booked["trained"] = booked["trained"] + hosts.host(trained).astype(np.int64)
      booked["computed"] += info.unique
    metrics = {k: v.item() for k, v in hosts.host(metrics).items()}
    metrics["perf/sharing"] = info.row_tokens / max(info.unique, 1)
    return metrics, booked

  def learn(*args):
    learner, pending = begin(*args)
    return learner, *finish(pending)

  learn.begin, learn.finish = begin, finish
  learn.parts = {"prepare": prepare, "update": update}
  learn.sizes = sizes
  return learn


def _read_by(tokens, reads: str):
  """bool [N,T]: what the losses of `tokens` read of their rows; see Objective.reads."""
  if reads == "token":
    return tokens
  if reads == "prefix":
    return jnp.flip(jnp.cumsum(jnp.flip(tokens, 1), 1), 1) > 0
  return tokens.any(1)[:, None] & jnp.ones_like(tokens)


def _apply(optimizer, grads, learner, finite):
  """One optimizer step, or none if something was not finite. Parameters and state keep their types."""

  def step(grads, opt_state, params):
    updates, new_state = optimizer.update(grads, opt_state, params)
    # optax hands moments of bfloat16 parameters back in float32.
    new_state = jax.tree.map(lambda new, old: new.astype(old.dtype), new_state, opt_state)
    return optax.apply_updates(params, updates), new_state

  # A branch, not a selection: that would keep the old state beside the new one.
  skip = lambda grads, opt_state, params: (params, opt_state)
  return jax.lax.cond(finite, step, skip, grads, learner.opt_state, learner.params)


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
