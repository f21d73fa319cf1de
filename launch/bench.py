"""Measures the sampler, the learner, a whole step, and the choice of prompts.

  python -m launch.bench decode --policy=smollm2-135m --prompts=4 --group=8 --new_tokens=64 --json
  python -m launch.bench decode --prompts=8 --group=16 --lengths=lognormal:mean=16,max=128 --slots=32
  python -m launch.bench learn --prompts=8 --group=8 --new_tokens=16
  python -m launch.bench step --prompts=8 --group=8 --new_tokens=16 --json
  python -m launch.bench select --prompts=1000000 --recipes=dps,vade,token_value

Seconds are medians of --repeats calls after one that compiles; every call rolls out other prompts. With
--peer="COMMAND" a rival that prints one JSON line is run in turn with it, A B A B, and the ratio of the
medians is printed.
"""

import functools
import json
import resource
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from absl import app, flags, logging


def define_flags():
  """Here and not at the top, so that the module can be imported beside other commands."""
  flags.DEFINE_string("policy", "smollm2-135m", "Name, folder, .gguf file or hub id.")
  flags.DEFINE_integer("prompts", 4, "Prompts of a call.")
  flags.DEFINE_integer("group", 8, "Rollouts of each prompt.")
  flags.DEFINE_integer("new_tokens", 64, "Tokens of each response, exactly; no early end.")
  flags.DEFINE_string("lengths", None, "lognormal:mean=M,max=X instead of --new_tokens.")
  flags.DEFINE_list("recipes", ["grpo"], "Whose beliefs and selection `select` measures.")
  flags.DEFINE_integer("slots", 0, "Rows decoded at a time; 0: all.")
  flags.DEFINE_string("generator", "gsm_symbolic", "reasoning_gym generator of the prompts.")
  flags.DEFINE_string("dtype", "float32", "Of activations, parameters and cache.")
  flags.DEFINE_string("cache_dtype", None, "Of the cache, if another: bfloat16 or int8.")
  flags.DEFINE_integer("repeats", 3, "Timed calls.")
  flags.DEFINE_string("peer", None, "Command of a rival, run in turn with this one.")
  flags.DEFINE_bool("json", False, "One JSON line instead of a table.")


KINDS = ("decode", "learn", "step")
COMPARED = {"decode": "tokens_per_second", "learn": "seconds", "step": "seconds_per_step"}


def parse_lengths(text):
  """(mean, max) of "lognormal:mean=16,max=128".

  Raises:
    ValueError: if it is not of that form, or not 0 < mean <= max.
  """
  kind, _, rest = text.partition(":")
  parts = dict(item.split("=", 1) for item in rest.split(",") if "=" in item)
  try:
    mean, longest = float(parts["mean"]), int(parts["max"])
  except (KeyError, ValueError):
    mean = longest = 0
  if kind != "lognormal" or set(parts) != {"mean", "max"} or not 0 < mean <= longest:
    raise ValueError(f"lengths {text!r} is not of the form lognormal:mean=16,max=128")
  return mean, longest


def response_lengths(num, new_tokens, lengths, seed):
  """int32 [num]: tokens of each response; log-normal with sigma 1 if `lengths` says so."""
  import numpy as np

  if lengths is None:
    return np.full(num, new_tokens, np.int32)
  mean, longest = parse_lengths(lengths)
  draws = np.random.default_rng(seed).lognormal(np.log(mean) - 0.5, 1.0, num)
  return np.clip(np.round(draws), 1, longest).astype(np.int32)


class Work:
  """Rows of real prompts, ready to be rolled out."""

  def __init__(self, loaded, *, generator, prompts, group, new_tokens, lengths, calls):
    """Tokenises prompts for `calls` calls."""
    import jax.numpy as jnp

    from rlvr_jax.tasks.reasoning_gym import reasoning_gym
    from rlvr_jax.tasks.table import tokenise

    task = reasoning_gym(mixture=[{"name": generator}], train_size=prompts * calls, eval_size=0)
    self.table, _, _ = tokenise(loaded.tokenizer, task.train, max_length=4096, sources=task.sources)
    self.prompts, self.group_size = prompts, group
    self.num_rows = prompts * group
    longest = new_tokens if lengths is None else parse_lengths(lengths)[1]
    self.prompt_places = self.table.tokens.shape[1]
    self.num_places = self.prompt_places + longest
    self.lengths = lambda call: response_lengths(self.num_rows, new_tokens, lengths, call)
    self._group = jnp.repeat(jnp.arange(prompts, dtype=jnp.int32), group)

  def rows(self, call):
    """The open rows of one call."""
    import jax
    import jax.numpy as jnp

    from rlvr_jax.core import keys
    from rlvr_jax.core import rows as rows_lib

    these = slice(call * self.prompts, (call + 1) * self.prompts)
    index = jnp.arange(self.num_rows)
    return rows_lib.fresh(
      jnp.asarray(self.table.tokens[these]),
      jnp.asarray(self.table.length[these]),
      group=self._group,
      valid=jnp.ones(self.num_rows, bool),
      uid=keys.row_uids(jax.random.key(call), 0, self._group, index),
      num_places=self.num_places,
      max_new_tokens=jnp.asarray(self.lengths(call)),
      temperature=1.0,
    )


class Products(NamedTuple):
  """The matrix products of a model alone, over some tokens."""

  seconds: float  # one pass
  flops: int
  weight_bytes: int  # streamed


def products(policy, params, tokens, *, layers=True, head=True):
  """Products with the weights of the layers and of the head, for `tokens` side by side."""
  import jax
  import jax.numpy as jnp

  config, weights = policy.config, []
  if layers:
    names = "q", "k", "v", "o", "gate", "up", "down"
    weights += [params[f"layers_{i}"][name] for i in range(config.num_layers) for name in names]
  if head:
    weights.append(params["embedding"] if config.tied else params["head"])
  shapes = [w.shape for w in weights]

  @jax.jit
  def run(x, weights):
    # Each product waits for the one before it, as in a model; its result is used, so it is not dropped.
    out = []
    for w in weights:
      out.append((w @ x[: w.shape[1]]).sum())
      x = x + 1e-9 * out[-1]
    return jnp.stack(out)

  x = jnp.ones((max(b for _, b in shapes), tokens), weights[0].dtype)
  return Products(
    seconds=timed(lambda: run(x, weights), 5),
    flops=sum(2 * tokens * a * b for a, b in shapes),
    weight_bytes=sum(w.nbytes for w in weights),
  )


def timed(call, repeats):
  """Median seconds of call(), after one that compiles."""
  import jax

  jax.block_until_ready(call())
  seconds = []
  for _ in range(repeats):
    began = time.perf_counter()
    jax.block_until_ready(call())
    seconds.append(time.perf_counter() - began)
  return statistics.median(seconds)


def bench_decode(loaded, work, *, slots, calls):
  """Yields a result for each call; the first has compiled."""
  import jax
  import jax.numpy as jnp

  from rlvr_jax.decode import decode as engine
  from rlvr_jax.schedule.simulate import refill_ticks

  slots = min(slots or work.num_rows, work.num_rows)
  parts = engine.parts_of(loaded.policy)
  eos = jnp.asarray([-1], jnp.int32)  # nothing ends a row but its length
  ideal = products(loaded.policy, loaded.params, slots)
  for call in range(calls):
    rows = jax.block_until_ready(work.rows(call))
    sizes = {"num_contexts": work.prompts, "prompt_places": work.prompt_places}
    places = min(engine.PLACES, work.num_places)
    began = time.perf_counter()
    jax.block_until_ready(parts.start(loaded.params, rows, eos, slots, places, *sizes.values()))
    prefill = time.perf_counter() - began
    began = time.perf_counter()
    _, counts = jax.block_until_ready(
      engine.decode(
        loaded.policy, loaded.params, rows, version=0, eos_ids=eos, slots=slots, **sizes
      )
    )
    seconds = time.perf_counter() - began
    tokens, ticks = int(counts.generated.sum()), int(counts.ticks)
    roofline = int(counts.slot_ticks) / slots * ideal.seconds
    yield {
      "tokens_per_second": tokens / seconds,
      "seconds": seconds,
      "prefill_seconds": prefill,
      "decode_tokens_per_second": tokens / max(seconds - prefill, 1e-9),
      "tokens": tokens,
      "prefilled": int(counts.prefilled.sum()),
      "ticks": ticks,
      "simulated_ticks": refill_ticks(work.lengths(call).tolist(), slots),
      "slot_use": tokens / int(counts.slot_ticks),
      "roofline_fraction": roofline / max(seconds - prefill, 1e-9),
      "product_gflops": ideal.flops / ideal.seconds / 1e9,
      "weight_gb_per_second": ideal.weight_bytes / ideal.seconds / 1e9,
    }


def _rolled(loaded, work, call):
  from rlvr_jax.decode.decode import decode

  rows, _ = decode(
    loaded.policy,
    loaded.params,
    work.rows(call),
    version=0,
    eos_ids=[-1],
    slots=work.num_rows,
    num_contexts=work.prompts,
    prompt_places=work.prompt_places,
  )
  return rows


def _learner(loaded, work):
  """(learn, learner, its other arguments) for GRPO with rewards that alternate in a group."""
  import jax
  import jax.numpy as jnp

  from rlvr_jax.core.types import Tally, plain_table
  from rlvr_jax.recipes.grpo import grpo
  from rlvr_jax.train.config import Config
  from rlvr_jax.train.learn import make_learn
  from rlvr_jax.train.state import init_state, make_optimizer, make_schedule

  config, recipe = Config(), grpo()
  optimizer = make_optimizer(config, make_schedule(config, 1))
  learn = make_learn(
    loaded.policy,
    recipe,
    optimizer,
    num_rows=work.num_rows,
    num_places=work.num_places,
    num_prompts=work.prompts,
  )
  # The learner takes the parameters over: a second copy would count in the peak memory.
  sizes = {"table": plain_table(work.prompts), "num_places": work.num_places}
  state = init_state(recipe, optimizer, loaded.params, **sizes, seed=0)
  zeros = jnp.zeros(work.prompts, jnp.float32)
  counts = jnp.zeros(work.prompts, jnp.int32)
  return (
    learn,
    state.learner,
    (Tally(zeros, zeros, counts, counts), jnp.int32(0), jax.random.key(0)),
  )


def _rewarded(rows):
  import jax.numpy as jnp

  return rows.replace(reward=(jnp.arange(len(rows.length)) % 2).astype(jnp.float32))


def bench_learn(loaded, work, *, calls):
  """Yields the seconds of one update of each call, and of its parts; the first has compiled.

  The roofline is what the matrix products alone would take: three passes, forward and twice backward, over
  the distinct tokens in the layers and over those whose log-prob is read in the head.
  """
  import jax

  learn, learner, rest = _learner(loaded, work)
  width = learn.sizes.bin_tokens
  layers = products(loaded.policy, loaded.params, width, head=False)
  head = products(loaded.policy, loaded.params, width, layers=False)
  forward, optimizer = _learn_parts(loaded, learn, learner)
  for call in range(calls):
    policy = loaded._replace(params=learner.params)
    rows = jax.block_until_ready(_rewarded(_rolled(policy, work, call)))
    forward_seconds = forward(learner, rows)
    began = time.perf_counter()
    learner, metrics, booked = learn(learner, rows, *rest)
    jax.block_until_ready(learner.params)
    seconds = time.perf_counter() - began
    computed, read = int(booked["computed"]), int(booked["trained"].sum())
    flops = (layers.flops * computed + head.flops * read) / width
    roofline = 3 * (layers.seconds * computed + head.seconds * read) / width
    backward = seconds - forward_seconds - optimizer
    yield {
      "seconds": seconds,
      "forward_seconds": forward_seconds,
      "backward_seconds": backward,
      "optimizer_seconds": optimizer,
      "computed_tokens": computed,
      "trained_tokens": read,
      "sharing": metrics["perf/sharing"],
      "gflops": 3 * flops / seconds / 1e9,
      "forward_gflops": flops / forward_seconds / 1e9,
      "backward_gflops": 2 * flops / backward / 1e9,
      "product_gflops": (layers.flops + head.flops) / (layers.seconds + head.seconds) / 1e9,
      "roofline_fraction": roofline / seconds,
    }


def _learn_parts(loaded, learn, learner):
  """forward(learner, rows) -> its seconds, once compiled; and the median seconds of the optimizer."""
  import jax
  import jax.numpy as jnp
  import optax

  from rlvr_jax.train import pack
  from rlvr_jax.train.config import Config
  from rlvr_jax.train.learn import token_stats
  from rlvr_jax.train.state import make_optimizer, make_schedule

  run = jax.jit(lambda params, packed: token_stats(loaded.policy, params, packed))
  compiled = set()

  def forward(learner, rows):
    packed, _ = pack.pack_rows(rows, rows.loss_mask, learn.sizes)
    if not compiled:
      jax.block_until_ready(run(learner.params, packed))
      compiled.add(True)
    began = time.perf_counter()
    jax.block_until_ready(run(learner.params, packed))
    return time.perf_counter() - began

  config = Config()
  update = make_optimizer(config, make_schedule(config, 1)).update
  step = jax.jit(lambda g, state, p: optax.apply_updates(p, update(g, state, p)[0]))
  grads = jax.tree.map(jnp.zeros_like, learner.params)
  return forward, timed(lambda: step(grads, learner.opt_state, learner.params), 3)


def bench_step(loaded, work, *, calls):
  """Yields the seconds of a GRPO step, rollout and update, of each call; the first has compiled."""
  import jax

  learn, learner, rest = _learner(loaded, work)
  for call in range(calls):
    began = time.perf_counter()
    rows = jax.block_until_ready(_rolled(loaded._replace(params=learner.params), work, call))
    rollout = time.perf_counter() - began
    learner, _, booked = learn(learner, _rewarded(rows), *rest)
    jax.block_until_ready(learner.params)
    seconds = time.perf_counter() - began
    yield {
      "seconds_per_step": seconds,
      "rollout_seconds": rollout,
      "learn_seconds": seconds - rollout,
      "tokens": int(rows.response_mask.sum()),
      "computed_tokens": int(booked["computed"]),
      "tokens_per_second": int(rows.response_mask.sum()) / seconds,
    }


def bench_select(recipe, num_prompts, *, num=256, repeats=5):
  """What choosing `num` of a table's prompts takes: beliefs learn of a step, all prompts are scored.

  Returns:
    seconds, the median; and the bytes of belief that a prompt takes.
  """
  import jax
  import jax.numpy as jnp
  import numpy as np

  from rlvr_jax.core.types import Candidates, Tally, plain_table

  rng = np.random.default_rng(0)
  table = plain_table(
    num_prompts, source=rng.integers(0, 10, num_prompts), difficulty=rng.integers(1, 6, num_prompts)
  )
  drawn = np.zeros(num_prompts, np.float32)
  drawn[rng.choice(num_prompts, min(num, num_prompts), replace=False)] = 8
  tally = Tally(
    jnp.asarray(drawn),
    jnp.asarray(rng.binomial(drawn.astype(int), 0.4), jnp.float32),
    jnp.asarray(drawn, jnp.int32),
    jnp.asarray(40 * drawn, jnp.int32),
  )
  ids, no = jnp.arange(num_prompts, dtype=jnp.int32), jnp.zeros(num_prompts, bool)
  source = jnp.asarray(table.source)
  knobs = recipe.control.value(recipe.control.init(table))

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state, key, tally):
    state = recipe.posterior.update(state, tally)
    first, second = jax.random.split(key)
    score = recipe.posterior.score(state, first, ids, knobs)
    belief = recipe.posterior.belief(state, ids)
    candidates = Candidates(ids, score, source, belief, no, no)
    return state, recipe.select(second, candidates, min(num, num_prompts), knobs)

  state, seconds = recipe.posterior.init(table), []
  held = sum(x.nbytes for x in jax.tree.leaves(state)) / num_prompts
  for call in range(repeats + 1):
    key = jax.block_until_ready(jax.random.key(call))
    began = time.perf_counter()
    state, _ = jax.block_until_ready(step(state, key, tally))
    seconds.append(time.perf_counter() - began)
  return statistics.median(seconds[1:]), held


def run_peer(command, name):
  """The number `name` of the JSON object on the last line that has one of a command's output.

  Raises:
    ValueError: if the command fails, prints none, or the number is not positive.
  """
  done = subprocess.run(command, shell=True, capture_output=True, text=True)
  lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
  if done.returncode or not lines:
    raise ValueError(
      f"the peer failed or printed no JSON line (exit status {done.returncode}): {done.stderr[-500:]}"
    )
  try:
    number = float(json.loads(lines[-1])[name])
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f"the peer's line has no number {name!r}: {lines[-1][:200]}") from error
  if not number > 0:
    raise ValueError(f"the peer's {name} is {number}")
  return number


def bench(kind, loaded, work, *, slots, repeats, peer=None):
  """Medians of a benchmark, with its compilations and memory; and of the peer, if there is one."""
  from rlvr_jax.train.metrics import CompileCounter

  decode = functools.partial(bench_decode, slots=slots)
  run = {"decode": decode, "learn": bench_learn, "step": bench_step}[kind]
  results, rivals = [], []
  with CompileCounter() as compiled:
    for i, result in enumerate(run(loaded, work, calls=repeats + 1)):
      if i == 0:
        first = compiled.count
        continue
      results.append(result)
      if peer:
        rivals.append(run_peer(peer, COMPARED[kind]))
    later = compiled.count - first
  out = {name: statistics.median(r[name] for r in results) for name in results[0]}
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  out |= {"compilations": first, "later_compilations": later, "peak_memory_gib": peak}
  if rivals:
    ours, theirs = out[COMPARED[kind]], statistics.median(rivals)
    out |= {"peer": theirs, "ratio": ours / theirs if kind == "decode" else theirs / ours}
  return out


def _select(given):
  from rlvr_jax.recipes.compose import compose

  for name in given.recipes:
    try:
      seconds, held = bench_select(compose(name), given.prompts, repeats=given.repeats)
    except ValueError as error:
      sys.exit(f"error: {error}")
    out = {"benchmark": "select", "recipe": name, "prompts": given.prompts}
    out |= {"milliseconds": 1e3 * seconds, "bytes_a_prompt": held}
    print(
      json.dumps(out) if given.json else f"{name:16s} {1e3 * seconds:9.2f} ms {held:6.1f} bytes"
    )


def main(argv):
  given = flags.FLAGS
  logging.set_verbosity(logging.WARNING)  # JAX tells which backends it did not find
  if len(argv) != 2 or argv[1] not in (*KINDS, "select"):
    raise app.UsageError(f"say what to measure: {', '.join((*KINDS, 'select'))}")
  if argv[1] == "select":
    return _select(given)
  from rlvr_jax.models.load import load_policy

  try:
    for name in ("prompts", "group", "new_tokens", "repeats"):
      if getattr(given, name) < 1:
        raise ValueError(f"--{name} must be at least 1, got {getattr(given, name)}")
    if given.slots < 0:
      raise ValueError(f"--slots must be at least 0 (0: all), got {given.slots}")
    if given.slots and argv[1] != "decode":
      raise ValueError("--slots is for decode; the others decode all rows at once")
    loaded = load_policy(
      given.policy, dtype=given.dtype, param_dtype=given.dtype, cache_dtype=given.cache_dtype
    )
    work = Work(
      loaded,
      generator=given.generator,
      prompts=given.prompts,
      group=given.group,
      new_tokens=given.new_tokens,
      lengths=given.lengths,
      calls=given.repeats + 1,
    )
    out = bench(
      argv[1],
      loaded,
      work,
      slots=given.slots,
      repeats=given.repeats,
      peer=given.peer,
    )
  except ValueError as error:
    sys.exit(f"error: {error}")
  out = {"benchmark": argv[1], "policy": given.policy, "rows": work.num_rows, **out}
  if given.json:
    print(json.dumps(out))
  else:
    for name, value in out.items():
      print(f"{name:28s} {value:.4g}" if isinstance(value, float) else f"{name:28s} {value}")


if __name__ == "__main__":
  define_flags()
  app.run(main)
