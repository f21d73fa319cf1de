"""Batches that are collected ahead of the updates that learn from them."""

from rlvr_jax.core.types import Schedule


def bounded_staleness(*, bound: int = 1, ahead: int | None = None) -> Schedule:
  """Updates and rollouts at the same time; no token that is trained is more than `bound` versions old.

  A turn is one update. Its order is what makes it overlap: the update is dispatched, then the host collects,
  with the parameters that were pushed before the update, then the new parameters are pushed, and only then is
  a result of the update read. Whatever reads one earlier makes the two run one after the other.

      fill the queue to `ahead`, at least to one     (only before the first update, or with ahead = 0)
      learn from its first batch
      fill it to `ahead` again
      push

  Batch b is thus collected with version max(b - ahead, 0). Rows that are carried over between batches grow
  older: they may use what `bound` leaves, bound - ahead (see recipes.areal).

  Args:
    bound: at least 0. 0: nothing overlaps, and what is trained is on-policy.
    ahead: batches that lie ready when an update begins, at most `bound`; default 1 where the bound allows.
      One is enough for the host that does both; each further one is a batch of more staleness.
  """
  ahead = min(bound, 1) if ahead is None else ahead
  if bound < 0 or not 0 <= ahead <= bound:
    raise ValueError(f"need 0 <= ahead <= bound, got ahead {ahead} and bound {bound}")

  def turn(queue, collect, learn, push):
    while len(queue) < max(ahead, 1):
      queue.append(collect())
    pending = learn(queue.pop(0))
    while len(queue) < ahead:
      queue.append(collect())
    push()
    return pending

  return Schedule(ahead=ahead, bound=bound, turn=turn)
