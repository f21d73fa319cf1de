"""Collecting a batch: rounds of new prompts, waves of rows for them, verification after each wave.

Host code over jitted parts, since verification is host code: arrays go in and out, and the host reads no
more than it needs. Three sizes are static: the width of each wave, the rows of a round, the rows of the
batch; group sizes are not.
"""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import calibration, groups, hosts, keys, ledger, traits, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Texts, Verdict
from rlvr_jax.core.types import (
  ERROR,
  OPEN,
  STATUS_NAMES,
  Candidates,
  Collector,
  Policy,
  Prompts,
  PromptTable,
  Queued,
  Recipe,
  Round,
  Rows,
  Selection,
  Tally,
)
from rlvr_jax.decode.decode import DecodeCounts
from rlvr_jax.decode.stops import Stops
from rlvr_jax.train.rewards import Scorer


class Sample(NamedTuple):
  """One completion and what was made of it."""

  prompt_id: int
  text: str
  verdict: Verdict
  num_tokens: int
  rewards: dict[str, float]  # of the reward functions that apply
  reward: float  # shaped
  status: str  # of STATUS_NAMES


class Batch(NamedTuple):
  """What a step trains on."""

  rows: Rows  # [N,T], chosen rows; the rest is padding
  tally: Tally  # of everything generated in the step
  metrics: dict[str, float]  # of everything generated in the step
  samples: list[Sample]  # everything generated in the step


def completions(rows: Rows, decode_text: Callable[[list[int]], str]):
  """(index of each valid row that has ended, its text, the token ids of its response), on the host."""
  tokens, start, length, valid, status = hosts.host(
    (rows.tokens, rows.response_start, rows.length, rows.valid, rows.status)
  )
  index = np.flatnonzero(valid & (status != OPEN))
  ids = [tokens[i, start[i] : length[i]].tolist() for i in index]
  return index, [decode_text(one) for one in ids], ids


def make_collect(
  policy: Policy,
  recipe: Recipe,
  table: PromptTable,
  verify: Callable[[Sequence[int], Sequence[str]], list[Verdict]],
  decode_text: Callable[[list[int]], str],
  *,
  prompts: int,
  budget: int,
  max_new_tokens: int,
  eos_ids,
  stops: Stops | None = None,
  sources: Sequence[str],
  constrain=lambda rows: rows,
  scorer: Scorer | None = None,
  offer: Callable[[], np.ndarray] | None = None,
  texts: Texts | None = None,
):
  """Builds collect(params, step, control, collector, books) -> (collector, Batch, books, seconds).

  The posterior is donated: that of the collector handed in is gone afterwards.
  `step` says which batch it is; tokens get it as their version, unless collect is given a `version`.

  Args:
    table: all prompts, [M,P].
    verify: (prompt ids, completions) -> verdicts, in order.
    decode_text: token ids -> text.
    prompts: B, prompts of a round. At most M.
    budget: rows of a round and of the batch.
    max_new_tokens: response tokens a row may get.
    eos_ids: int32 [E].
    stops: strings that end a row as well.
    sources: names; the table's `source` is an index into them.
    constrain: puts a sharding on row arrays inside jitted functions.
    offer: () -> bool [M], the prompts that a round may choose among, where these come from a stream with
      epochs of its own; None: all, each once an epoch.
    texts: what the prompts say, for recipes that write more into them.
    scorer: reward functions, whose values become rows.extras["reward/<name>"]. A row that none of those
      with a weight applies to is left out of the batch.

  Raises:
    ValueError: if the table has fewer than `prompts` prompts, the allocator plans more than `budget`, or
      a reward function is called like a source.
  """
  num_table, prompt_places = table.tokens.shape
  if num_table < prompts:
    raise ValueError(f"a round needs {prompts} prompts, the table has {num_table}")
  plan = recipe.allocate.plan(prompts, budget)
  if sum(plan) > budget or min(plan) < 1:
    raise ValueError(f"the allocator plans waves {plan} for a budget of {budget} rows")
  condition = recipe.condition
  prompt_places += condition.places
  num_places = prompt_places + max_new_tokens
  replay = recipe.replay
  names = scorer.names if scorer else ()
  weighty = tuple(name for name in names if scorer and scorer.weights[name])
  if clash := sorted(set(names) & set(sources)):
    raise ValueError(f"a reward function and a data source are both called {clash[0]!r}")
  noted = traits.trait(recipe.rollout, "extras", {})
  unscored = lambda num: {
    **{f"reward/{name}": jnp.full(num, jnp.nan, jnp.float32) for name in names},
    **{name: jnp.zeros((num, *shape), jnp.float32) for name, shape in noted.items()},
  }
  blank = lambda num: rows_lib.blank(num, num_places).replace(extras=unscored(num))
  table = jax.tree.map(jnp.asarray, table)
  eos_ids = jnp.asarray(eos_ids, jnp.int32)
  all_prompts = np.ones(num_table, bool)
  lay = jax.jit(lambda rows: constrain(rows))

  def no_tally():
    zeros = lambda dtype: jnp.zeros(num_table, dtype)
    return Tally(zeros(jnp.float32), zeros(jnp.float32), zeros(jnp.int32), zeros(jnp.int32))

  @jax.jit
  def begin(control):
    used = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    knobs = recipe.control.value(control)
    return knobs, blank(budget), used, no_tally(), jnp.zeros(num_table, bool)

  @jax.jit
  def open_round(collector: Collector, key, offered, taken, step, knobs):
    ids = jnp.arange(num_table, dtype=jnp.int32)
    score = recipe.posterior.score(collector.posterior, keys.stream(key, "score"), ids, knobs)
    belief = recipe.posterior.belief(collector.posterior, ids)
    barred = taken | ~offered
    pick = lambda c: recipe.select(keys.stream(key, "select"), c, prompts, knobs)
    waiting = None
    if replay.held is not None:
      waiting = jnp.where(taken, 0, replay.held(collector.replay))
      barred |= waiting > 0
    candidates = Candidates(ids, score, table.source, belief, barred, collector.visited)
    old = pick(candidates)
    if waiting is not None:
      old = _after(waiting, old)
    # The epoch has run out: its last prompts come first, and the next epoch fills the round.
    ended = ~old.valid.all() & collector.visited.any()
    also = candidates.taken.at[old.index].max(old.valid)
    again = lambda: pick(candidates.replace(taken=also, visited=jnp.zeros_like(taken)))
    filled = _fill(old, jax.lax.cond(ended, again, lambda: old))
    chosen = jax.tree.map(lambda a, b: jnp.where(ended, a, b), filled, old)
    visited = chosen.consumed | (collector.visited & ~ended)
    if offer is not None:
      visited = jnp.zeros_like(visited)
    i = chosen.index
    belief = jax.tree.map(lambda x: x[i], belief)
    these = Prompts(
      i, table.tokens[i], table.length[i], table.source[i], score[i], belief, chosen.valid
    )
    round = Round(these, blank(sum(plan) + replay.room), jnp.zeros((), jnp.int32), step)
    taken = taken.at[i].max(chosen.valid)
    collector = collector.replace(visited=visited, epoch=collector.epoch + ended)
    return collector, round, recipe.allocate.init(these, knobs), taken

  @functools.partial(jax.jit, static_argnums=0)
  def allocate(width, state, round, wave, knobs):
    counts, state = recipe.allocate.next(state, round.replace(wave=wave), width, knobs)
    return counts, counts.sum(), state

  @functools.partial(jax.jit, static_argnums=0)
  def seed(width, key, round, counts, wave, tally, knobs, kept):
    these = round.prompts
    group, valid = groups.expand(counts, width)
    prompt_id = these.id[group]
    replica = tally.drawn[prompt_id] + groups.rank(group, valid)
    rows = rows_lib.fresh(
      these.tokens,
      these.length,
      group=group,
      valid=valid,
      uid=keys.row_uids(key, round.step, prompt_id, replica),
      num_places=num_places,
      max_new_tokens=max_new_tokens,
      temperature=knobs["temperature"],
    )
    rows = rows.replace(
      prompt_id=prompt_id,
      source=these.source[group],
      wave=jnp.broadcast_to(wave, (width,)),
      prior=these.belief.mean[group],
      extras=unscored(width),
    )
    reused = jnp.zeros(width, jnp.int32)
    if replay.resume is not None:
      rows, reused = replay.resume(kept, rows)
    return constrain(rows), reused

  @jax.jit
  def settle_roll(round, rows, begun, counts, reused, offset, tally):
    everywhere = jnp.ones_like(rows.valid)  # a pruned row is not valid, its tokens were generated
    by_prompt = lambda x: groups.total(x, rows.prompt_id, everywhere, num_table)
    booked = {
      "generated": by_prompt(counts.generated),
      "pruned": by_prompt(counts.pruned),
      "probed": by_prompt(counts.probed),
      "prefilled": by_prompt(counts.prefilled),
      "reused": by_prompt(reused),
    }
    if counts.drafted is not None:
      booked |= {"drafted": by_prompt(counts.drafted), "accepted": by_prompt(counts.accepted)}
      booked["reused"] += booked["accepted"]
    tally = tally.replace(
      drawn=tally.drawn + by_prompt(begun.astype(jnp.int32)),
      tokens=tally.tokens + booked["generated"],
    )
    return round.replace(rows=rows_lib.write(round.rows, rows, offset)), tally, booked

  @jax.jit
  def settle(round, offset, correct, values, knobs):
    put = lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, offset, 0)
    extras = round.rows.extras | {k: put(round.rows.extras[k], v) for k, v in values.items()}
    rows = round.rows.replace(correct=put(round.rows.correct, correct), extras=extras)
    return round.replace(rows=rows.replace(reward=recipe.reward(rows, knobs)))

  @jax.jit
  def close_round(round, key, pool, used, tally, knobs, kept):
    rows = round.rows
    ended = rows.valid & (rows.status != OPEN)
    told = ended & (rows.wave >= 0)  # the others were in an earlier step
    if condition.build is not None:
      told &= rows.response_start == round.prompts.length[rows.group]
    in_group = lambda x: groups.total(x, rows.group, ended)
    by_prompt = lambda x, rows, mask: groups.total(x, rows.prompt_id, mask, num_table)
    ones = jnp.ones(len(ended), jnp.float32)
    trials, successes = in_group(ones), in_group(rows.correct)
    tally = tally.replace(
      trials=tally.trials + by_prompt(ones, rows, told),
      successes=tally.successes + by_prompt(rows.correct, rows, told),
    )
    booked = {"verified": by_prompt(trees.owned(rows).sum(1), rows, ended)}
    metrics: dict[str, Any] = _round_metrics(rows.replace(valid=told), len(sources), names, weighty)
    metrics["posterior"] = calibration.measure(rows.prior, rows.correct, told)
    if replay.merge is not None:
      rows, reused = replay.merge(kept, rows, keys.stream(key, "merge"), round.step)
      rows = rows.replace(reward=recipe.reward(rows, knobs))
      booked["reused"] = by_prompt(reused, rows, rows.valid)
    rows = rows.replace(trials=trials[rows.group], successes=successes[rows.group])
    picked = recipe.choose(keys.stream(key, "choose"), rows, knobs) & (rows.status != OPEN)
    chosen = picked & _scored(rows, weighty)
    banked = jnp.zeros_like(chosen)
    if replay.add is not None:
      # A picked row without a score is dropped: kept, it would come back without one for ever.
      kept, banked = replay.add(kept, rows, picked, round.step)
    seen = rows if condition.strip is None else condition.strip(rows, round.prompts)
    pool, used, placed = rows_lib.append(pool, used, seen, chosen)
    made = trees.owned(rows).sum(1)
    booked |= {
      "batched": by_prompt(made, rows, placed),
      "banked": by_prompt(made, rows, banked),
      "rejected": by_prompt(made, rows, rows.valid & ~chosen & ~banked),
      "surplus": by_prompt(made, rows, chosen & ~placed),
    }
    return pool, used, tally, booked, metrics, kept

  @functools.partial(jax.jit, donate_argnums=0)
  def end(posterior, tally):
    return recipe.posterior.update(posterior, tally)

  def collect(params, step, control, collector: Collector, books: ledger.Ledger, version=None):
    clock, samples, rounds = _Clock(), [], []
    knobs, pool, used, tally, taken = begin(control)
    run_key = jax.random.wrap_key_data(collector.key)
    ticks, num_groups = np.zeros(2, np.int64), 0
    for r in range(recipe.refill.rounds):
      key = keys.stream(run_key, "round", step, r)
      collector, round, state, taken = open_round(
        collector, key, all_prompts if offer is None else offer(), taken, step, knobs
      )
      offset, judged, notes = 0, [], None
      for w, width in enumerate(plan):
        wave, at = np.int32(w), np.int32(offset)
        counts, total, state = allocate(width, state, round, wave, knobs)
        if int(total) > width:
          raise ValueError(f"the allocator gave {int(total)} rows to a wave of {width}")
        rows, reused = seed(width, run_key, round, counts, wave, tally, knobs, collector.replay)
        if condition.build is not None:
          rows, notes, cost = condition.build(
            policy, params, run_key, round.replace(wave=wave), rows, notes,
            version=round.step if version is None else version, eos_ids=eos_ids, texts=texts,
          )  # fmt: skip
          rows, ids = lay(rows), hosts.host(round.prompts.id)
          of_table = lambda x: np.bincount(ids, x, num_table)  # noqa: B023
          books = ledger.book(books, {name: of_table(x) for name, x in cost.items()})
        begun = rows.valid
        rows, made = recipe.rollout(
          policy,
          params,
          rows,
          round.step if version is None else version,
          eos_ids,
          num_contexts=prompts,
          prompt_places=prompt_places,
          stops=stops,
          **({"knobs": knobs} if traits.trait(recipe.rollout, "reads_knobs") else {}),
        )
        round, tally, booked = settle_roll(round, rows, begun, made, reused, at, tally)
        books = ledger.book(books, hosts.host(booked))
        ticks += np.array([made.ticks, made.slot_ticks])
        clock.lap("rollout")
        correct, values, some = _verify(verify, scorer, decode_text, rows, step)
        judged += [(offset + i, sample) for i, sample in some]
        round = settle(round, at, correct, values, knobs)
        clock.lap("verify")
        offset += width
      pool, used, tally, booked, metrics, kept = close_round(
        round, key, pool, used, tally, knobs, collector.replay
      )
      collector = collector.replace(replay=kept)
      if replay.check is not None:
        replay.check(kept)
      books = ledger.book(books, hosts.host(booked))
      rounds.append(hosts.host(metrics))
      samples += _settled(judged, round.rows)
      num_groups = int(used[1])
      if num_groups >= prompts:
        break
    collector = collector.replace(posterior=end(collector.posterior, tally))
    metrics = (
      _merge(rounds, sources, names)
      | _verifier_metrics(samples)
      | {
        "rollout/rounds": len(rounds),
        "rollout/ticks": int(ticks[0]),
        "rollout/slot_use": int(tally.tokens.sum()) / max(int(ticks[1]), 1),
        "group/trained": num_groups,
      }
    )
    clock.lap("rollout")
    return collector, Batch(pool, tally, metrics, samples), books, clock.seconds

  def rehearse(control, posterior, kept):
    """Shapes of the batch's rows and of the tally, by tracing all parts but rollout and verification."""
    shape: Any = jax.eval_shape
    scalar: Any = jax.ShapeDtypeStruct((), jnp.int32)
    knobs, pool, used, tally, taken = shape(begin, control)
    key = shape(jax.random.key, 0)
    collector = Collector(posterior, kept, taken, scalar, shape(jax.random.key_data, key))
    collector, round, state, taken = shape(
      open_round, collector, key, all_prompts, taken, scalar, knobs
    )
    for width in plan:
      counts, _, state = shape(functools.partial(allocate, width), state, round, scalar, knobs)
      rows, reused = shape(
        functools.partial(seed, width), key, round, counts, scalar, tally, knobs, kept
      )
      made = DecodeCounts(reused, reused, reused, reused, reused, scalar, scalar)
      round, tally, _ = shape(settle_roll, round, rows, rows.valid, made, reused, scalar, tally)
      values = {f"reward/{name}": rows.reward for name in names}
      round = shape(settle, round, scalar, rows.correct, values, knobs)
    pool, *_ = shape(close_round, round, key, pool, used, tally, knobs, kept)
    shape(end, posterior, tally)
    return pool, tally

  collect.rehearse = rehearse
  collect.parts = {
    "begin": begin,
    "open_round": open_round,
    "allocate": allocate,
    "seed": seed,
    "settle_roll": settle_roll,
    "settle": settle,
    "close_round": close_round,
  }
  collect.num_places = num_places
  collect.empty = lambda: Queued(blank(budget), no_tally(), jnp.zeros((), jnp.int32))
  return collect


def _after(waiting, others: Selection) -> Selection:
  """The prompts that are `waiting` [M], the highest number first, and then the others."""
  some, index = jax.lax.top_k(waiting, len(others.index))
  return _fill(Selection(index.astype(jnp.int32), some > 0, others.consumed), others)


def _fill(first: Selection, second: Selection) -> Selection:
  """`first` with its empty places filled from `second`, in order; consumed is of `second` alone."""
  empty = ~first.valid
  place = jnp.cumsum(empty) - 1
  index = jnp.where(empty, second.index[place], first.index)
  spare = second.valid & (jnp.arange(len(empty)) >= empty.sum())
  unused = jnp.zeros(second.consumed.shape, bool).at[second.index].max(spare)
  return Selection(index, first.valid | second.valid[place], second.consumed & ~unused)


class _Clock:
  """Seconds spent since the last lap, by name."""

  def __init__(self):
    self.seconds: dict[str, float] = {}
    self._last = time.perf_counter()

  def lap(self, name: str):
    now = time.perf_counter()
    self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
    self._last = now


def _verify(verify, scorer, decode_text, rows, step):
  """float32 [N] verdicts of the rows, what reward functions say, and (row, Sample) of the valid ones."""
  index, texts, ids = completions(rows, decode_text)
  prompt_id = hosts.host(rows.prompt_id)[index].tolist()
  verdicts = verify(prompt_id, texts)
  correct = np.zeros(len(rows.valid), np.float32)
  correct[index] = [v.correct for v in verdicts]
  said, values = {}, {}
  if scorer and scorer.names:  # once for all processes: a function need not repeat itself
    said = hosts.first(lambda: scorer(prompt_id, texts, ids, verdicts, int(step)))
  for name, some in said.items():
    values[f"reward/{name}"] = whole = np.full(len(rows.valid), np.nan, np.float32)
    whole[index] = some
  applies = lambda i: {k: v[i].item() for k, v in said.items() if not np.isnan(v[i])}
  made = zip(prompt_id, texts, verdicts, ids, strict=True)
  samples = [
    Sample(one, text, verdict, len(tokens), applies(i), float("nan"), "")
    for i, (one, text, verdict, tokens) in enumerate(made)
  ]
  return correct, values, list(zip(index.tolist(), samples, strict=True))


def _settled(judged: list[tuple[int, Sample]], rows: Rows) -> list[Sample]:
  """The samples of a round with what its rows, [N], say at its end: a reward may look at all of them."""
  reward, status = hosts.host((rows.reward, rows.status))
  return [
    sample._replace(reward=reward[i].item(), status=STATUS_NAMES[status[i]]) for i, sample in judged
  ]


def _verifier_metrics(samples: Sequence[Sample]) -> dict[str, float]:
  """How often the verifier itself failed; see tasks.pool.VerifierPool for the rules."""
  rules = [sample.verdict.rule for sample in samples]
  failed = sum(
    rule in ("crashed", "memory", "forked") or rule.startswith("error:") for rule in rules
  )
  return {
    "verifier/timeout_frac": rules.count("timeout") / max(len(rules), 1),
    "verifier/failed_frac": failed / max(len(rules), 1),
  }


def _scored(rows: Rows, names: Sequence[str]) -> jax.Array:
  """bool [N]: valid rows that some of the functions apply to; all valid rows if there are none."""
  if not names:
    return rows.valid
  values = jnp.stack([rows.extras[f"reward/{name}"] for name in names])
  return rows.valid & ~jnp.isnan(values).all(0)


def _round_metrics(
  rows: Rows, num_sources: int, names: Sequence[str], weighty: Sequence[str]
) -> dict[str, jax.Array]:
  """Sums over the valid rows and groups of a round; `_merge` divides."""
  valid, ones = rows.valid, jnp.ones(len(rows.valid), jnp.float32)
  args = rows.group, valid
  scored = _scored(rows, weighty)
  values = [rows.extras[f"reward/{name}"] for name in names]
  applies = [valid & ~jnp.isnan(value) for value in values]
  size = groups.count(*args)
  live = size > 0
  lowest, highest = groups.lowest(rows.correct, *args), groups.highest(rows.correct, *args)
  reward = jnp.where(scored, rows.reward, 0.0)
  compared = rows.reward, rows.group, scored
  flat = groups.highest(*compared) == groups.lowest(*compared)
  length = jnp.where(valid, rows.response_length, 0)
  return {
    "rows": jnp.where(valid, ones, 0).sum(),
    "scored": jnp.where(scored, ones, 0).sum(),
    "groups": live.sum(),
    "reward": reward.sum(),
    "reward_squared": (reward * reward).sum(),
    "zero_std": (live & flat).sum(),
    "all_0": (live & (highest == 0)).sum(),
    "all_1": (live & (lowest == 1)).sum(),
    "length": length.sum(),
    "length_max": length.max(),
    "truncated": (valid & rows.truncated).sum(),
    "errors": (valid & (rows.status == ERROR)).sum(),
    "part_rows": jnp.append(
      groups.total(ones, rows.source, scored, num_sources),
      jnp.array([mask.sum() for mask in applies], jnp.float32),
    ),
    "part_reward": jnp.append(
      groups.total(rows.reward, rows.source, scored, num_sources),
      jnp.array([jnp.where(mask, v, 0.0).sum() for mask, v in zip(applies, values)], jnp.float32),
    ),
  }


def _merge(
  rounds: list[dict[str, Any]], sources: Sequence[str], names: Sequence[str]
) -> dict[str, float]:
  add = lambda *leaves: np.sum(leaves, axis=0, dtype=np.float64)
  total: dict[str, Any] = jax.tree.map(add, *rounds)
  believed = calibration.summary(total.pop("posterior"))
  by_part = {
    f"reward/{name}/mean": float(reward / rows)
    for name, rows, reward in zip(
      (*sources, *names), total.pop("part_rows"), total.pop("part_reward"), strict=True
    )
    if rows
  }
  total = {k: float(v) for k, v in total.items()}
  n, g = max(total["rows"], 1.0), max(total["groups"], 1.0)
  scored = max(total["scored"], 1.0)
  mean = total["reward"] / scored
  return (
    by_part
    | believed
    | {
      "reward/mean": mean,
      "reward/std": max(total["reward_squared"] / scored - mean * mean, 0.0) ** 0.5,
      "group/size_mean": total["rows"] / g,
      "group/frac_zero_std": total["zero_std"] / g,
      "group/frac_all_0": total["all_0"] / g,
      "group/frac_all_1": total["all_1"] / g,
      "completion/length_mean": total["length"] / n,
      "completion/length_max": float(max(r["length_max"] for r in rounds)),
      "completion/truncated_frac": total["truncated"] / n,
      "completion/error_frac": total["errors"] / n,
    }
  )
