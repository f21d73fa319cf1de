"""Rows that come in with a draft keep the prefix that the policy accepts; the rest is drawn."""

import math

from rlvr_jax.decode import logits
from rlvr_jax.decode import speculative as drafts
from rlvr_jax.rollout.linear import linear


def speculative(
  *, log_lenience: float = 0.5, coupled: bool = False, slots: int = 0, top_k: int = 0,
  top_p: float = 1.0, min_p: float = 0.0,
):  # fmt: skip
  """Verifies drafts, cuts each at the first token that is rejected, and rolls out what is left.

  Args:
    log_lenience: see decode.speculative.verify; infinite: all is kept.
    coupled: keep what the policy would draw itself; log_lenience then has no say. The rows come out as they
      would without drafts, given their uids.
    slots, top_k, top_p, min_p: see rollout.linear.

  Returns:
    rollout, as rollout.linear has it. Without any draft it is that.
  """
  if math.isnan(log_lenience):
    raise ValueError("log_lenience must be a number")
  grow = linear(slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)
  rule = logits.truncation(top_k=top_k, top_p=top_p, min_p=min_p)

  def rollout(policy, params, rows, version, eos_ids, **sizes):
    rows, seen = drafts.verify(
      policy,
      params,
      rows,
      version=version,
      eos_ids=eos_ids,
      log_lenience=None if coupled else log_lenience,
      rule=rule,
    )
    rows, counts = grow(policy, params, rows, version, eos_ids, **sizes)
    return rows, counts.replace(
      prefilled=counts.prefilled + seen.computed, drafted=seen.drafted, accepted=seen.accepted
    )

  return rollout
