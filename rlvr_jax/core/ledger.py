"""The token ledger: where every token came from and what became of it.

One host array of int64 an entry, with one place for each prompt of the table and a last one for tokens
that belong to no prompt of it (evaluation). int64 because a run passes 2**31 tokens; on the host because
int64 does not survive a jitted function with JAX's defaults.

A response token that is generated, or brought back from an earlier step, is disposed of exactly once:

    generated + reused = batched + rejected + surplus + banked + pruned + probed

(`balance` is the difference). A token that several rows share is booked once, with the row that owns it.
"""

from collections.abc import Mapping

import numpy as np

from rlvr_jax.core import table

ENTRIES = {
  "prefilled": "prompt tokens computed by the sampler (once a prompt, not once a row)",
  "generated": "response tokens sampled",
  "reused": "response tokens brought back from an earlier step",
  "drafted": "response tokens of earlier steps that the policy was asked about",
  "accepted": "of the reused, drafted tokens that the policy kept",
  "verified": "response tokens shown to the verifier",
  "batched": "response tokens that entered the learner's batch",
  "rejected": "response tokens of rows that the recipe chose not to train on",
  "surplus": "response tokens of chosen rows that found no room in the batch",
  "banked": "response tokens of rows kept for a later step",
  "pruned": "response tokens of branches that were cut off while they grew",
  "probed": "response tokens sampled to look ahead, and dropped",
  "hinted": "tokens of hints that the policy wrote for its own prompts; not among the generated",
  "trained": "response tokens with a non-zero weight in the loss, once for each update",
  "computed": "distinct tokens the learner ran the model on, once for each update",
  "evaluated": "response tokens sampled in evaluations",
}

Ledger = dict[str, np.ndarray]


def new(num_prompts: int) -> Ledger:
  return {entry: np.zeros(num_prompts + 1, np.int64) for entry in ENTRIES}


def book(ledger: Ledger, entries: Mapping[str, object]) -> Ledger:
  """The ledger with entries added.

  Args:
    entries: name -> tokens of each prompt, [M]; or a plain number, which belongs to no prompt.

  Raises:
    ValueError: for an unknown entry, a negative amount, or one of the wrong shape.
  """
  out = dict(ledger)
  for name, value in entries.items():
    if name not in ledger:
      raise table.unknown("ledger entry", name, ledger)
    amount = np.asarray(value).astype(np.int64)
    if (amount < 0).any():
      raise ValueError(f"ledger entry {name!r} would shrink: {amount.min()}")
    have = ledger[name]
    if amount.ndim == 0:
      amount = np.concatenate([np.zeros(len(have) - 1, np.int64), amount[None]])
    elif amount.shape == (len(have) - 1,):
      amount = np.concatenate([amount, np.zeros(1, np.int64)])
    else:
      raise ValueError(f"ledger entry {name!r}: shape {amount.shape}, table of {len(have) - 1}")
    out[name] = have + amount
  return out


def totals(ledger: Ledger) -> dict[str, int]:
  return {entry: int(tokens.sum()) for entry, tokens in ledger.items()}


def balance(ledger: Ledger) -> np.ndarray:
  """int64 [M+1]: tokens that came in and were not disposed of; 0 everywhere when the books are right."""
  came = ledger["generated"] + ledger["reused"]
  went = ("batched", "rejected", "surplus", "banked", "pruned", "probed")
  return came - sum(ledger[entry] for entry in went)
