"""Held-out evaluation: unbiased pass@k and maj@k from n samples of each prompt, and how sure they are."""

import collections
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import hosts, keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Example, Tokenizer, Verdict
from rlvr_jax.core.types import STATUS_NAMES, Policy, PromptTable
from rlvr_jax.decode.decode import decode
from rlvr_jax.decode.stops import Stops, stops
from rlvr_jax.train.collect import completions

# What an evaluation writes.
REPORT_FILE = "evaluation.json"
COMPLETIONS_FILE = "completions.jsonl"
PLOT_FILE = "pass_at_k.png"
RESAMPLES = 1000  # of the prompts, for an interval
LEVEL = 0.95  # of the intervals


class Response(NamedTuple):
  """One sample of one prompt."""

  prompt_id: int  # index into the table
  text: str
  num_tokens: int
  ending: str  # of core.types.STATUS_NAMES: "eos", or "length" if it was cut off
  verdict: Verdict


# --------------------------------------------------------------------------------------------------
# Estimates


def pass_at_k(n: int, c: int, k: int) -> float:
  """Chance that k of n samples, c of them correct, hold a correct one.

      1 - C(n-c, k) / C(n, k)

  the unbiased estimate of solving a prompt in k tries.

  Raises:
    ValueError: if not 0 <= c <= n or not 1 <= k <= n.

  Source: Chen et al. 2021, arXiv 2107.03374.
  """
  if not 0 <= c <= n:
    raise ValueError(f"{c} correct of {n} samples")
  if not 1 <= k <= n:
    raise ValueError(f"pass@{k} needs at least {k} samples and k >= 1, got {n} samples")
  return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority_at_k(row: Sequence[Verdict], k: int) -> float:
  """Expected verdict of the commonest answer among k of the samples, over all choices of k.

  The samples vote with their parsed answers, as text; what could not be parsed does not vote, and where
  nobody votes the verdict is 0. Answers that are equally common have equal chances.

  Raises:
    ValueError: if not 1 <= k <= len(row).
  """
  if not 1 <= k <= len(row):
    raise ValueError(f"maj@{k} needs at least {k} samples and k >= 1, got {len(row)} samples")
  if len(row) > 1000:  # binomials of more do not fit a float
    raise ValueError(f"majorities of {len(row)} samples: at most 1000")
  said = collections.defaultdict(list)
  for verdict in row:
    if verdict.parsed is not None:
      said[verdict.parsed].append(verdict.correct)
  votes = sorted((len(scores), sum(scores) / len(scores)) for scores in said.values())
  return float(_majorities(len(row), tuple(votes))[k])


@functools.lru_cache(maxsize=4096)
def _majorities(n: int, votes: tuple[tuple[int, float], ...]) -> np.ndarray:
  """[n + 1]: the expected verdict of the winner of each number k of samples.

  Counts subsets by generating functions. For each winning count w, ways[k, t] is the number of subsets
  of k samples in which t answers have w votes and the others fewer, and worth[k, t] the sum of the
  winners' verdicts over these subsets. Adding the silent samples last, the expectation is
  sum over w, t of worth[k, t] / t, over C(n, k).

  Args:
    votes: (samples, verdict) of each answer; the other samples are silent.
  """
  choose = lambda m, j: float(math.comb(m, j))
  silent = n - sum(count for count, _ in votes)
  total = np.zeros(n + 1)
  for w in range(1, max((count for count, _ in votes), default=0) + 1):
    ways = np.zeros((n + 1, sum(count >= w for count, _ in votes) + 1))
    worth = np.zeros_like(ways)
    ways[0, 0] = 1.0
    for count, verdict in votes:
      new, new_worth = np.zeros_like(ways), np.zeros_like(worth)
      for j in range(min(w - 1, count) + 1):
        new[j:] += choose(count, j) * ways[: n + 1 - j]
        new_worth[j:] += choose(count, j) * worth[: n + 1 - j]
      if count >= w:
        new[w:, 1:] += choose(count, w) * ways[: n + 1 - w, :-1]
        won = worth[: n + 1 - w, :-1] + verdict * ways[: n + 1 - w, :-1]
        new_worth[w:, 1:] += choose(count, w) * won
      ways, worth = new, new_worth
    shared = (worth[:, 1:] / np.arange(1, worth.shape[1])[None]).sum(1)
    for j in range(silent + 1):
      total[j:] += choose(silent, j) * shared[: n + 1 - j]
  return total / np.array([choose(n, k) for k in range(n + 1)])


def powers(n: int) -> list[int]:
  """1, 2, 4, ... below n, and n: the k that are reported of n samples."""
  return [*(2**i for i in range((n - 1).bit_length())), n]


def per_prompt(verdicts: Sequence[Sequence[Verdict]], ks: Sequence[int]) -> dict[str, np.ndarray]:
  """What each prompt adds to the metrics: name -> float64 [M].

  avg@n   mean verdict of its n samples; partial credit counts
  pass@k  see pass_at_k; a sample is correct if its verdict is at least 1
  maj@k   see majority_at_k; of k > 1
  """
  n = len(verdicts[0])
  if any(len(row) != n for row in verdicts):
    raise ValueError("every prompt needs the same number of samples")
  solved = [sum(v.correct >= 1.0 for v in row) for row in verdicts]
  out = {f"avg@{n}": np.array([math.fsum(v.correct for v in row) / n for row in verdicts])}
  out |= {f"pass@{k}": np.array([pass_at_k(n, c, k) for c in solved]) for k in ks}
  return out | {
    f"maj@{k}": np.array([majority_at_k(row, k) for row in verdicts]) for k in ks if k > 1
  }


def interval(
  values: Mapping[str, np.ndarray], *, seed: int, resamples: int = RESAMPLES, level: float = LEVEL
) -> dict[str, tuple[float, float]]:
  """Bootstrap interval of the mean of each metric over prompts.

  Prompts are drawn with replacement, as many as there are; the interval lies between the quantiles
  (1 - level) / 2 and (1 + level) / 2 of the means. Each metric meets the same draws. It says how the mean
  would vary with other prompts of this kind, with the same number of samples each. Where all prompts agree
  (all unsolved, or only one prompt) it is a point, which claims too much.

  Args:
    values: name -> [M], one a prompt.

  Source: the percentile method of Efron and Tibshirani 1993.
  """
  table = np.stack(list(values.values()), 1)  # [M, metrics]
  rng = np.random.default_rng(seed)
  means = np.stack(
    [table[rng.integers(len(table), size=len(table))].mean(0) for _ in range(resamples)]
  )
  low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
  return {name: (float(low[i]), float(high[i])) for i, name in enumerate(values)}


def summarise(name: str, verdicts: Sequence[Sequence[Verdict]], sources: Sequence[str]):
  """Metrics of one set, for a run's log.

  Args:
    verdicts: for each prompt, the verdicts of its n samples.
    sources: for each prompt, its source.

  Returns:
    eval/<name>/avg@n, pass@1, pass@n and maj@n if n > 1, and eval/<name>/<source>/pass@1: means over the
    prompts of what `per_prompt` says.
  """
  n = len(verdicts[0])
  values = per_prompt(verdicts, sorted({1, n}))
  out = {f"eval/{name}/{metric}": float(value.mean()) for metric, value in values.items()}
  for source in dict.fromkeys(sources):
    mine = np.array([s == source for s in sources])
    out[f"eval/{name}/{source}/pass@1"] = float(values["pass@1"][mine].mean())
  return out


# --------------------------------------------------------------------------------------------------
# Sampling


def stop_rules(strings: Sequence[str], tokenizer: Tokenizer) -> Stops:
  """What ends a response before its limit, beside the end token.

  Raises:
    ValueError: for stop strings where the tokenizer does not say what bytes its tokens are.
  """
  if not strings:
    return Stops()
  token_bytes = getattr(tokenizer, "token_bytes", None)
  if token_bytes is None:
    raise ValueError("stop_strings need a tokenizer with token_bytes; this one has none")
  return stops(strings, token_bytes)


def make_respond(
  policy: Policy,
  table: PromptTable,
  verify: Callable[[Sequence[int], Sequence[str]], list[Verdict]],
  decode_text: Callable[[list[int]], str],
  *,
  samples: int,
  rows: int,
  max_new_tokens: int,
  temperature: float,
  eos_ids,
  seed: int,
  stops: Stops | None = None,
  constrain=lambda rows: rows,
) -> Callable[[Any], Iterator[list[Response]]]:
  """Builds respond(params), which yields the responses to one prompt after the other.

  Rows are decoded some prompts at a time, and verified before the next. A row's randomness is that of
  (seed, prompt, sample) alone: neither `rows` nor the other prompts change what it says, and the prompts
  that fill up the last round are padding. A prompt's tokens are run once for all its samples.

  Args:
    table: the prompts, [M,P].
    verify: (prompt ids, completions) -> verdicts, in order.
    samples: completions of each prompt.
    rows: rows decoded at a time; at least `samples`.
    temperature: of sampling; 0 is greedy, and then one sample is enough.
  """
  if rows < samples:
    raise ValueError(f"{samples} samples of a prompt do not fit {rows} rows")
  num, places = table.tokens.shape
  width = min(rows // samples, num)  # prompts a chunk
  num_places = places + max_new_tokens
  eos_ids = jnp.asarray(eos_ids, jnp.int32)
  group = jnp.repeat(jnp.arange(width, dtype=jnp.int32), samples)
  replica = jnp.tile(jnp.arange(samples, dtype=jnp.int32), width)

  @jax.jit
  def seed_rows(tokens, length, prompt_id, valid):
    key = keys.stream(jax.random.key(seed), "evaluate")
    return constrain(
      rows_lib.fresh(
        tokens,
        length,
        group=group,
        valid=valid[group],
        uid=keys.row_uids(key, 0, prompt_id[group], replica),
        num_places=num_places,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
      )
    )

  def respond(params):
    for first in range(0, num, width):
      index = np.arange(first, first + width)
      at = np.minimum(index, num - 1)
      valid = index < num
      chunk = table.tokens[at], table.length[at], at.astype(np.int32), valid
      out, _ = decode(
        policy,
        params,
        seed_rows(*chunk),
        version=-1,
        eos_ids=eos_ids,
        slots=len(group),
        num_contexts=width,
        prompt_places=places,
        stops=stops,
      )
      rows_index, texts, ids = completions(out, decode_text)
      owners = at[np.asarray(group)[rows_index]].tolist()
      status = hosts.host(out.status)[rows_index]
      verdicts = verify(owners, texts)
      responses = [
        Response(owner, text, len(tokens), STATUS_NAMES[ending], verdict)
        for owner, text, tokens, ending, verdict in zip(
          owners, texts, ids, status, verdicts, strict=True
        )
      ]
      for i in range(0, len(responses), samples):
        yield responses[i : i + samples]

  return respond


def make_evaluate(
  policy: Policy,
  name: str,
  table: PromptTable,
  sources: Sequence[str],
  verify: Callable[[Sequence[int], Sequence[str]], list[Verdict]],
  decode_text: Callable[[list[int]], str],
  **options,
):
  """Builds evaluate(params) -> (metrics, tokens generated).

  The same prompts meet the same random numbers at every call, so that two evaluations differ by the
  policy alone.

  Args:
    table: the held-out prompts, [M,P].
    sources: name of each prompt's source, M of them.
    **options: of `make_respond`.
  """
  respond = make_respond(policy, table, verify, decode_text, **options)

  def evaluate(params):
    responses = list(respond(params))
    verdicts = [[one.verdict for one in row] for row in responses]
    generated = sum(one.num_tokens for row in responses for one in row)
    return summarise(name, verdicts, sources), generated

  return evaluate


# --------------------------------------------------------------------------------------------------
# Reports


def report(
  responses: Sequence[Sequence[Response]], examples: Sequence[Example], *, seed: int
) -> dict[str, Any]:
  """What is known of a set from its responses: of all prompts, of each source, of each difficulty.

  Args:
    responses: of each prompt, its n samples.
    examples: the prompts.
    seed: of the intervals.

  Returns:
    "all" -> part, "source" -> {name -> part}, "difficulty" -> {level -> part}; the last is empty if no
    prompt has a level. A part, as JSON values, holds "prompts", "metrics" (name of `per_prompt` ->
    {"value", "low", "high"}), "length_mean" and "length_max" in tokens, and the shares "truncated_frac" and
    "error_frac" of its responses.
  """
  values = per_prompt([[r.verdict for r in row] for row in responses], powers(len(responses[0])))

  def part(index: Sequence[int]) -> dict[str, Any]:
    mine = {metric: value[index] for metric, value in values.items()}
    bounds = interval(mine, seed=seed)
    flat = [one for i in index for one in responses[i]]
    lengths = [one.num_tokens for one in flat]
    share = lambda ending: sum(one.ending == ending for one in flat) / len(flat)
    return {
      "prompts": len(index),
      "metrics": {
        metric: {"value": float(value.mean()), "low": bounds[metric][0], "high": bounds[metric][1]}
        for metric, value in mine.items()
      },
      "length_mean": sum(lengths) / len(lengths),
      "length_max": max(lengths),
      "truncated_frac": share("length"),
      "error_frac": share("error"),
    }

  def parts(labels: Sequence[Any]) -> dict[str, Any]:
    index = collections.defaultdict(list)
    for i, label in enumerate(labels):
      index[label].append(i)
    return {str(label): part(index[label]) for label in sorted(index)}

  levels = [example.difficulty for example in examples]
  by_level = parts(levels) if any(levels) else {}
  if "0" in by_level:
    by_level["unknown"] = by_level.pop("0")
  return {
    "all": part(range(len(responses))),
    "source": parts([example.source for example in examples]),
    "difficulty": by_level,
  }


def records(name: str, row: Sequence[Response], example: Example) -> list[dict[str, Any]]:
  """One JSON object for each response to a prompt, with all that its verdict rests on."""
  prompt = example.prompt if isinstance(example.prompt, str) else list(example.prompt)
  return [
    {
      "set": name,
      "prompt_id": one.prompt_id,
      "sample": i,
      "source": example.source,
      "difficulty": example.difficulty,
      "prompt": prompt,
      "answer": example.answer,
      "completion": one.text,
      "parsed": one.verdict.parsed,
      "rule": one.verdict.rule,
      "correct": one.verdict.correct,
      "num_tokens": one.num_tokens,
      "ending": one.ending,
    }
    for i, one in enumerate(row)
  ]


def text_tables(name: str, found: Mapping[str, Any]) -> str:
  """A report as two plain-text tables: the metrics of a set, and its parts."""
  whole = found["all"]
  percent = f"{LEVEL:.0%}"
  metrics = [(name, "mean", f"{percent} interval")]
  for metric, one in whole["metrics"].items():
    metrics.append((metric, f"{one['value']:.3f}", f"{one['low']:.3f} - {one['high']:.3f}"))
  last = {metric.partition("@")[0]: metric for metric in whole["metrics"]}  # of the largest k
  shown = [m for m in dict.fromkeys(["pass@1", last["pass"], last.get("maj")]) if m]
  rows = [("part", "prompts", *shown, f"{percent} of pass@1", "tokens", "cut off")]
  named = {"all": whole, **found["source"]}
  named |= {f"difficulty {level}": part for level, part in found["difficulty"].items()}
  for label, part in named.items():
    first = part["metrics"]["pass@1"]
    rows.append(
      (
        label,
        str(part["prompts"]),
        *(f"{part['metrics'][metric]['value']:.3f}" for metric in shown),
        f"{first['low']:.3f} - {first['high']:.3f}",
        f"{part['length_mean']:.1f}",
        f"{part['truncated_frac']:.1%}",
      )
    )
  return f"{_aligned(metrics)}\n\n{_aligned(rows)}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return "\n".join(
    "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))])
    for row in rows
  )
