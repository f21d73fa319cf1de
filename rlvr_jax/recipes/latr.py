"""LATR: grow a group as a tree of likely tokens, look ahead, drop branches that come back to their parent.

In the tree phase nothing is drawn: a row takes its likeliest token, and where the second one is nearly as
likely it opens another row that takes that, as long as the prompt has rows left. r tokens later, for each
window r, a branch is compared with the row it left: if the two say nearly the same it is dropped, with all
that grew from it, and its rows may be used again. When the prompts have nearly all their rows and the last
branches have stood their tests, or after `force` tokens, all go on by sampling. A share of the rows, less
and less over training, is in the tree; the others are plain samples. Rewards, credit and loss are those of
GRPO.

Chosen tokens are not draws from the policy, and the loss treats them as if they were, as published.
Differs: where the only row of a prompt ended in the tree phase, the rows left stay unused, instead of being
copies of it. The options of the authors' code that sample inside the tree, or prune by probability, are
left out.
"""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import OPEN, Recipe
from rlvr_jax.decode import logits as law_lib
from rlvr_jax.decode import tree as engine
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.rollout.tree import tree

PAPER = (
  "Lookahead Tree-Based Rollouts for Enhanced Trajectory-Level Exploration in RLVR",
  "arXiv 2510.24302",
)
STAGES = ("generate",)
CHANGES = ("rollout",)
EVIDENCE = "code"

NO_LOGPROB = 1.0

SHARES = ((0, 1.0), (100, 0.75), (200, 0.5), (300, 0.25))  # the authors', for mathematics


def latr(
  *,
  least: float = 0.15,
  gap: float = 0.25,
  windows: tuple[int, ...] = (20, 30, 50),
  edit: float = 0.0,
  suffix: float = 0.2,
  rouge: float = 0.5,
  force: int = 1024,
  decay: float = 0.05,
  shares: Mapping[int, float] | tuple[tuple[int, float], ...] = SHARES,
  slots: int = 0,
  top_k: int = 0,
  top_p: float = 1.0,
  min_p: float = 0.0,
  **options,
) -> Recipe:
  """Look-ahead trees.

  Args:
    least, gap: the second token opens a row if its probability is above `least`, and less than `gap`
      below that of the first; of the policy's softmax at temperature 1. The defaults, here and below, are
      those for mathematics; for Countdown they are 0.25 and 0.15.
    windows: tokens after which a branch is compared with its parent.
    edit: drop if the edit distance is below `edit` of the window; 0: no such test (Countdown: 0.4, alone).
    suffix: drop if the end of one, longer than this share of the window, is anywhere in the other; 1: no
      test.
    rouge: drop if Rouge-L is above; 1: no test.
    force: response tokens after which the tree phase ends at the latest.
    decay: the phase ends once the prompts have 0.98 - decay * (share of the limit) of their rows.
    shares: step -> share of a prompt's rows that are in the tree, from that step on.
    slots, top_k, top_p, min_p: of rollout.tree.tree. Every row needs a slot.
    **options: of `grpo`.
  """
  if not windows or min(windows) < 1 or force < 1:
    raise ValueError(f"windows and force are numbers of tokens, at least 1: {windows}, {force}")
  shares = tuple(sorted(dict(shares).items()))
  if not shares or shares[0][0] > 0 or not all(0 <= x <= 1 for _, x in shares):
    raise ValueError(f"shares must begin at step 0 and lie in [0, 1], got {shares}")
  tests = functools.partial(alike, edit=edit, suffix=suffix, rouge=rouge)
  plan = look_ahead(least, gap, tuple(sorted(windows)), tests, force, decay, shares)
  return grpo(**options)._replace(
    rollout=tree(plan, slots=slots, top_k=top_k, top_p=top_p, min_p=min_p)
  )


def look_ahead(least, gap, windows, tests, force, decay, shares) -> engine.Plan:
  """The plan; see `latr`. `tests`: (a [N,r], b [N,r]) -> bool [N], drop the branch."""

  def init(rows, version):
    step = jnp.asarray([step for step, _ in shares], jnp.int32)
    share = jnp.asarray([share for _, share in shares], jnp.float32)
    share = share[jnp.searchsorted(step, version, side="right") - 1]
    rank = groups.rank(rows.group, rows.valid)
    size = groups.count(rows.group, rows.valid)[rows.group]
    grown = rows.valid & (rank < jnp.floor(share * size + 0.5))
    seen = {
      "grown": grown,  # rows of the tree
      "greedy": grown,  # in the tree phase
      "room": grown,  # this place may be used by the tree
      "temperature": rows.temperature,
      "second": jnp.full_like(
        rows.length, -1
      ),  # token at the last place, had it been the second one
      "logprob": jnp.zeros_like(rows.temperature),
      "chances": jnp.zeros((len(rank), 2), jnp.float32),
      # Of likeliest tokens, at the row's own temperature; NO_LOGPROB where rows say it already.
      "said": jnp.full_like(rows.full_logprobs, NO_LOGPROB),
      "entropy": jnp.zeros_like(rows.entropy),
      "decided": jnp.zeros_like(rows.length),
    }
    return (
      rows.replace(temperature=jnp.where(grown, 0.0, rows.temperature)),
      ~grown | (rank == 0),
      seen,
    )

  def see(seen, row, place, law, token):
    last = len(seen["greedy"]) - 1
    greedy = seen["greedy"][jnp.minimum(row, last)]
    row = jnp.where(greedy, row, last + 1)  # the others' laws are at their temperatures already
    top, ids = jax.lax.top_k(law, 2)
    z = law_lib.temper(law, seen["temperature"][jnp.minimum(row, last)])
    put = lambda name, x: seen[name].at[row].set(x, mode="drop")
    at_place = lambda name, x: seen[name].at[row, place].set(x, mode="drop")
    return seen | {
      "second": put("second", ids[:, 1].astype(jnp.int32)),
      "logprob": put("logprob", law_lib.logprob(z, ids[:, 1])),
      "chances": put("chances", jnp.exp(top - law_lib.log_normaliser(law)[:, None])),
      "said": at_place("said", law_lib.logprob(z, token)),
      "entropy": at_place("entropy", law_lib.entropy(z)),
    }

  def gate(rows, seen):
    """bool [N]: the last token has a second one to fork into, and nobody looked yet."""
    p = seen["chances"]
    fresh = (
      rows.valid & seen["greedy"] & (rows.response_length > 0) & (seen["decided"] != rows.length)
    )
    return fresh & (p[:, 1] > least) & (p[:, 0] - p[:, 1] < gap)

  def has_room(rows, seen):
    return groups.count(rows.group, seen["room"] & ~rows.valid)[rows.group] > 0

  def tested(rows, seen, window):
    """bool [N]: branches that this window is for, at this length."""
    born = rows.valid & seen["greedy"] & (rows.parent >= 0)
    return born & (rows.length == rows.fork_at + window) & (seen["decided"] != rows.length)

  def over(rows, seen):
    """bool []: the tree phase ends now."""
    mine, is_open = rows.valid & seen["greedy"], rows.status == OPEN
    count = lambda x: groups.count(rows.group, x)
    want, have = count(seen["room"]), count(mine)
    have = jnp.where((have > 0) & (count(mine & is_open) == 0), want, have)
    live = mine & is_open
    last = jnp.where(live, rows.response_length - 1, -1).max()
    most = jnp.where(live, rows.limit - rows.response_start, 1).max()
    enough = have.sum() >= jnp.floor(want.sum() * (0.98 - decay * last / most) + 0.5)
    age = jnp.where(live & (rows.parent >= 0), rows.response_start + last - rows.fork_at, last)
    stood = jnp.where(live, age > max(windows), True).all()
    return live.any() & ((enough & stood) | (last + 1 >= force))

  def to_fill(rows, seen):
    """bool [N]: the open roots of prompts that have rows left once the tree phase is over."""
    root = rows.valid & seen["grown"] & ~seen["greedy"] & (rows.parent < 0) & (rows.status == OPEN)
    return root & has_room(rows, seen) & (seen["decided"] == rows.length)

  def pause(rows, seen):
    wanted = (gate(rows, seen) & has_room(rows, seen)).any() | over(rows, seen)
    for window in windows:
      wanted |= tested(rows, seen, window).any()
    return wanted | to_fill(rows, seen).any()

  def booked(rows, seen):
    """Rows with what was seen of their likeliest tokens, as if these had been drawn."""
    new = seen["said"] < NO_LOGPROB
    rows = rows.replace(
      behavior_logprobs=jnp.where(new, seen["said"], rows.behavior_logprobs),
      full_logprobs=jnp.where(new, seen["said"], rows.full_logprobs),
      entropy=jnp.where(new, seen["entropy"], rows.entropy),
    )
    return rows, seen | {"said": jnp.full_like(seen["said"], NO_LOGPROB)}

  def branch(rows, seen):
    rows, seen = booked(rows, seen)
    ends, opens = over(rows, seen), gate(rows, seen)
    decided = jnp.where(seen["grown"], rows.length, -1)
    seen = seen | {"greedy": seen["greedy"] & ~ends, "decided": decided}
    filling = to_fill(rows, seen) & ~opens
    at = jnp.where(filling, rows.length, jnp.where(opens, rows.length - 1, -1))
    forks = engine.Forks(
      at[:, None],
      token=jnp.where(opens, seen["second"], -1)[:, None],
      logprob=seen["logprob"][:, None],
      entropy=jnp.take_along_axis(rows.entropy, jnp.maximum(rows.length - 1, 0)[:, None], 1),
    )
    temperature = jnp.where(ends & seen["grown"], seen["temperature"], rows.temperature)
    return rows.replace(temperature=temperature), seen, forks

  def prune(rows, seen):
    gone = jnp.zeros_like(rows.valid)
    for window in windows:
      due = rows.valid & seen["grown"] & (rows.parent >= 0) & (rows.length == rows.fork_at + window)
      due &= rows.length[rows.parent] >= rows.length
      at = rows.fork_at[:, None] + jnp.arange(window, dtype=jnp.int32)[None]
      at = jnp.minimum(at, rows.tokens.shape[1] - 1)
      mine = jnp.take_along_axis(rows.tokens, at, 1)
      other = jnp.take_along_axis(rows.tokens[rows.parent], at, 1)
      running = (rows.status == OPEN) & (
        rows.status[rows.parent] == OPEN
      )  # an end token: never dropped
      gone |= due & running & tests(mine, other)
    return gone

  return engine.Plan(init=init, pause=pause, branch=branch, prune=prune, see=see, lockstep=True)


# --------------------------------------------------------------------------------------------------
# How alike two texts of r tokens are; a, b int32 [N,r]


def alike(a, b, *, edit: float, suffix: float, rouge: float):
  """bool [N]: any of the tests says that the two say the same."""
  r = a.shape[1]
  same = jnp.zeros(len(a), bool)
  if edit > 0:
    same |= edit_distance(a, b) / r < edit
  if suffix < 1:
    same |= common_suffix(a, b) / r > suffix
  if rouge < 1:
    same |= (
      common_subsequence(a, b) / r > rouge
    )  # precision, recall and F are equal at equal lengths
  return same


def edit_distance(a, b):
  """int32 [N]: Levenshtein, unit costs."""
  r = a.shape[1]
  column = jnp.arange(r + 1, dtype=jnp.int32)[None]

  def row(i, above):
    swap = above[:, :-1] + (a[:, i, None] != b)
    new = jnp.concatenate(
      [jnp.full((len(a), 1), i + 1, jnp.int32), jnp.minimum(above[:, 1:] + 1, swap)], 1
    )
    return column + jax.lax.cummin(new - column, axis=1)

  start = jnp.broadcast_to(column, (len(a), r + 1))
  return jax.lax.fori_loop(0, r, row, start)[:, -1]


def common_subsequence(a, b):
  """int32 [N]: length of the longest one."""

  def row(i, above):
    new = jnp.maximum(above[:, 1:], above[:, :-1] + (a[:, i, None] == b))
    return jnp.pad(jax.lax.cummax(new, axis=1), ((0, 0), (1, 0)))

  r = a.shape[1]
  return jax.lax.fori_loop(0, r, row, jnp.zeros((len(a), r + 1), jnp.int32))[:, -1]


def common_suffix(a, b):
  """int32 [N]: the longest end of one that is anywhere in the other."""

  def one_way(a, b):
    r = a.shape[1]
    back = jnp.arange(r, dtype=jnp.int32)
    at = back[None, :] - back[:, None]  # [i,e]: the place in b, i before its place e
    equal = (a[:, ::-1][:, :, None] == b[:, jnp.maximum(at, 0)]) & (at >= 0)[None]
    return jnp.cumprod(equal.astype(jnp.int32), axis=1).sum(1).max(1)

  return jnp.maximum(one_way(a, b), one_way(b, a))
