"""One straight continuation a row."""

from rlvr_jax.decode import decode, logits


def linear(*, slots: int = 0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0):
  """Rolls every open row out to its end.

  Args:
    slots: rows decoded at a time; 0 means all of them. Fewer need less cache memory, and refill as rows
      finish.
    top_k, top_p, min_p: what may be sampled, see decode.logits. The defaults leave the law whole, which
      is what a policy gradient assumes.

  Returns:
    rollout(policy, params, rows, version, eos_ids, *, num_contexts, prompt_places, stops=None) ->
    (rows, counts), with the arguments of decode.decode.
  """
  rule = logits.truncation(top_k=top_k, top_p=top_p, min_p=min_p)
  if slots < 0:
    raise ValueError(f"slots must be at least 0 (0: one for every row), got {slots}")

  def rollout(policy, params, rows, version, eos_ids, *, num_contexts, prompt_places, stops=None):
    return decode.decode(
      policy,
      params,
      rows,
      version=version,
      eos_ids=eos_ids,
      slots=slots or len(rows.length),
      num_contexts=num_contexts,
      prompt_places=prompt_places,
      rule=rule,
      stops=stops,
    )

  return rollout
