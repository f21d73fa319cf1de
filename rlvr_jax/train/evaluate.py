"""Held-out evaluation: unbiased pass@k and maj@k from n samples of each prompt."""

import collections
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.records import Verdict
from rlvr_jax.core.types import Policy, PromptTable
from rlvr_jax.decode.decode import decode
from rlvr_jax.train.collect import completions


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


def summarise(name: str, verdicts: Sequence[Sequence[Verdict]], sources: Sequence[str]):
  """Metrics of one set.

  Args:
    verdicts: for each prompt, the verdicts of its n samples.
    sources: for each prompt, its source.

  Returns:
    eval/<name>/pass@1, pass@n and maj@n if n > 1, and eval/<name>/<source>/pass@1. A majority is over
    the parsed answers; a tie goes to the answer seen first; what could not be parsed does not vote.
  """
  n = len(verdicts[0])
  solved = np.array([sum(v.correct >= 1.0 for v in row) for row in verdicts])
  rate = np.array([np.mean([v.correct for v in row]) for row in verdicts])
  out = {f"eval/{name}/pass@1": float(rate.mean())}
  if n > 1:
    out[f"eval/{name}/pass@{n}"] = float(np.mean([pass_at_k(n, int(c), n) for c in solved]))
    out[f"eval/{name}/maj@{n}"] = float(np.mean([_majority(row) for row in verdicts]))
  for source in dict.fromkeys(sources):
    mine = np.array([s == source for s in sources])
    out[f"eval/{name}/{source}/pass@1"] = float(rate[mine].mean())
  return out


def _majority(row: Sequence[Verdict]) -> float:
  votes = collections.Counter(v.parsed for v in row if v.parsed is not None)
  if not votes:
    return 0.0
  winner = votes.most_common(1)[0][0]
  return next(v.correct for v in row if v.parsed == winner)


def make_evaluate(
  policy: Policy,
  name: str,
  table: PromptTable,
  sources: Sequence[str],
  verify: Callable[[Sequence[int], Sequence[str]], list[Verdict]],
  decode_text: Callable[[list[int]], str],
  *,
  samples: int,
  rows: int,
  max_new_tokens: int,
  temperature: float,
  eos_ids,
  seed: int,
  constrain=lambda rows: rows,
):
  """Builds evaluate(params) -> (metrics, tokens generated).

  The same prompts meet the same random numbers at every call, so that two evaluations differ by the
  policy alone.

  Args:
    table: the held-out prompts, [M,P].
    sources: name of each prompt's source, M of them.
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

  def evaluate(params):
    texts, owners, generated = [], [], 0
    for first in range(0, num, width):
      index = np.arange(first, first + width)
      at = np.minimum(index, num - 1)
      valid = index < num
      chunk = table.tokens[at], table.length[at], at.astype(np.int32), valid
      out, counts = decode(
        policy,
        params,
        seed_rows(*chunk),
        version=-1,
        eos_ids=eos_ids,
        slots=len(group),
        num_contexts=width,
        prompt_places=places,
      )
      rows_index, some, _ = completions(out, decode_text)
      texts += some
      owners += at[np.asarray(group)[rows_index]].tolist()
      generated += int(counts.generated.sum())
    verdicts = verify(owners, texts)
    by_prompt = [verdicts[i : i + samples] for i in range(0, len(verdicts), samples)]
    return summarise(name, by_prompt, sources), generated

  return evaluate
