"""Trees against the same leaves grown alone, each by a forward pass over everything once a token."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys, trees
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, KILLED, LENGTH, OPEN, places
from rlvr_jax.decode import tree
from rlvr_jax.decode.decode import decode
from rlvr_jax.decode.stops import stops
from tests import toy
from tests.decode import test_decode as alone

N, T, P, VERSION = 12, 34, 6, 3
NEVER = jnp.full(2, -1, jnp.int32)  # no end token: who forks then depends on uids alone
CHAIN = toy.table_policy(5, T)


@functools.cache
def chain():
  return CHAIN.init(jax.random.key(0))


def fresh(seed=0):
  """Five leaves of one prompt, six of another, and a row of padding."""
  group = jnp.asarray([0] * 5 + [1] * 6 + [0], jnp.int32)
  return rows_lib.fresh(
    alone.PROMPTS[2:], alone.LENGTHS[2:], group=group, valid=jnp.arange(N) < 11,
    uid=keys.row_uids(jax.random.key(seed), 0, group, jnp.arange(N)), num_places=T,
    max_new_tokens=99, temperature=1.3,
  )  # fmt: skip


def options(slots=N, eos_ids=NEVER):
  sizes = {"num_contexts": 2, "prompt_places": P}
  return {"version": VERSION, "eos_ids": eos_ids, "slots": slots, **sizes}


def grow(plan, rows=None, slots=N, seed=0):
  rows = fresh(seed) if rows is None else rows
  return tree.grow(alone.POLICY, alone._params(), rows, plan, **options(slots))


def grow_chain(plan, rows=None, slots=N, end=4, **more):
  """On a Markov chain of five tokens, which compiles at once."""
  rows = fresh() if rows is None else rows
  rows = rows.replace(tokens=rows.tokens % 4)
  return tree.grow(CHAIN, chain(), rows, plan, **options(slots, jnp.asarray([end])) | more)


def never(rows, seen):
  return jnp.zeros((), bool)


def first_of_group(rows, version):
  """One root a prompt; `seen` [N] is the length at which a row last decided."""
  first = jnp.arange(N) == jax.ops.segment_min(jnp.arange(N), rows.group, N)[rows.group]
  return rows, first, jnp.zeros(N, jnp.int32)


def random_plan(*, cut=0.0):
  """At response lengths 4, 9 and 22 rows fork by chance, now or at any earlier place; some are cut off."""

  def due(rows, seen):
    stop = jnp.isin(rows.response_length, jnp.asarray([4, 9, 22]))
    return stop & (rows.status == OPEN) & rows.valid & (seen != rows.length)

  def draw(rows):
    return jax.vmap(lambda u, n: keys.token_uniforms(u[None], n[None] + 1000)[0])(
      rows.uid, rows.length
    )

  def branch(rows, seen):
    here, u = due(rows, seen), draw(rows)
    back = jnp.where(u[:, 1] < 0.5, 1.0, u[:, 0])
    at = rows.response_start + jnp.maximum(
      jnp.ceil(back * rows.response_length).astype(jnp.int32), 1
    )
    at = jnp.where(here & (u[:, 0] < 0.5), at, -1)
    return (
      rows,
      jnp.where(here, rows.length, seen),
      tree.Forks(jnp.stack([at, jnp.where(u[:, 0] < 0.15, at, -1)], 1)),
    )

  def prune(rows, seen):
    return (rows.parent >= 0) & (draw(rows)[:, 1] < cut) & (seen == rows.length)

  return tree.Plan(
    init=first_of_group, pause=lambda rows, seen: due(rows, seen).any(), branch=branch,
    prune=prune if cut else None,
  )  # fmt: skip


RANDOM, CUTTING = random_plan(), random_plan(cut=0.5)


def check_leaves(rows):
  """Each leaf has its parent's tokens before its fork, and goes on as it would alone."""
  out = jax.device_get(rows)
  for n in np.flatnonzero(out.valid & (out.parent >= 0)):
    p, f = out.parent[n], out.fork_at[n]
    assert out.valid[p] and out.group[p] == out.group[n]
    assert out.response_start[n] <= f <= min(out.length[n], out.length[p])
    assert f > out.fork_at[p]
    for name in rows_lib.BY_PLACE:
      np.testing.assert_array_equal(getattr(out, name)[n, :f], getattr(out, name)[p, :f], name)
  begin = jnp.maximum(rows.fork_at, rows.response_start)
  keep = places(rows.tokens) < begin[:, None]
  cut = {
    k: jnp.where(keep, getattr(rows, k), getattr(rows_lib.blank(N, T), k))
    for k in rows_lib.BY_PLACE
  }
  seeds = rows.replace(**cut, length=begin, status=jnp.where(rows.valid, OPEN, KILLED))
  expected = alone._naive(seeds, alone._params(), VERSION, NEVER)
  inside = np.arange(T)[None] < out.length[:, None]  # the prompts' padding is not 0
  alive = np.where(inside, out.tokens, 0)[out.valid]
  np.testing.assert_array_equal(alive, expected["tokens"][out.valid])
  for name in ("length", "status", "version", "response_mask"):
    np.testing.assert_array_equal(getattr(out, name)[out.valid], expected[name][out.valid], name)
  for name in ("full_logprobs", "behavior_logprobs", "entropy"):
    np.testing.assert_allclose(getattr(out, name)[out.valid], expected[name][out.valid], atol=3e-5)


def leaves(rows):
  """What was grown, whatever rows it lies in: (group, tokens) of each leaf."""
  rows = jax.device_get(rows)
  return sorted(
    (int(rows.group[n]), tuple(rows.tokens[n, : rows.length[n]].tolist()))
    for n in np.flatnonzero(rows.valid)
  )


@pytest.mark.parametrize("plan, seed", [(RANDOM, 0), (CUTTING, 3), (CUTTING, 9)])
def test_every_leaf_is_what_it_would_be_alone(plan, seed):
  rows, counts, _ = grow(plan, seed=seed)
  check_leaves(rows)
  valid = np.asarray(rows.valid)
  assert valid.sum() > 4 and (rows.parent >= 0).sum() > 2
  uids = {tuple(u) for u in np.asarray(rows.uid)[valid].tolist()}
  assert len(uids) == valid.sum()
  # Every token was drawn once; what is not in a leaf was cut off.
  owned = int((trees.owned(rows) & rows.valid[:, None]).sum())
  assert int(counts.generated.sum()) == owned + int(counts.pruned.sum())
  assert (int(counts.pruned.sum()) > 0) == (plan is CUTTING)
  assert int(counts.prefilled.sum()) == int(alone.LENGTHS[2:].sum())  # each prompt once
  np.testing.assert_array_equal(rows.context, fresh().context)


def test_slots_and_order_change_nothing_but_where_leaves_lie():
  """With two slots children queue, and are caught up with from their tokens."""
  rows, _, suppressed = grow(RANDOM, seed=7)
  few, counts, _ = grow(RANDOM, seed=7, slots=2)
  assert not suppressed.any()  # else who gets the last row would depend on who asks first
  assert leaves(few) == leaves(rows)
  check_leaves(few)
  assert int(counts.replayed.sum()) > 0
  order = np.asarray([6, 0, 5, 3, 11, 4, 1, 9, 2, 8, 10, 7])
  moved = jax.tree.map(lambda x: x[order], fresh(7))
  # Roots must stay the same rows.
  roots = jnp.isin(jnp.asarray(order), jnp.asarray([0, 5]))
  again, _, _ = grow(
    RANDOM._replace(init=lambda rows, version: (rows, roots, jnp.zeros(N, jnp.int32))), moved
  )
  assert leaves(again) == leaves(rows)


def test_without_forks_it_is_the_plain_sampler():
  plan = tree.Plan(
    init=lambda rows, version: (rows, rows.valid, jnp.zeros(N)),
    pause=never,
    branch=lambda rows, seen: (rows, seen, tree.Forks(jnp.full((N, 1), -1, jnp.int32))),
  )
  rows, counts, _ = grow(plan)
  expected, plain = decode(alone.POLICY, alone._params(), fresh(), **options())
  jax.tree.map(np.testing.assert_array_equal, (rows, counts), (expected, plain))


def test_known_tokens_are_fed_many_at_a_time():
  """Rows that come in with 22 tokens of a response go on as before, in about as many ticks as are left."""
  params = alone._params()
  whole, _ = decode(alone.POLICY, params, fresh(), **options())
  have = whole.response_start + 22
  keep = places(whole.tokens) < have[:, None]
  cut = {
    k: jnp.where(keep, getattr(whole, k), getattr(rows_lib.blank(N, T), k))
    for k in rows_lib.BY_PLACE
  }
  came = whole.replace(**cut, length=have, status=jnp.where(whole.valid, OPEN, KILLED))
  again, counts = decode(alone.POLICY, params, came, **options())
  valid = np.asarray(whole.valid)
  np.testing.assert_array_equal(again.tokens[valid], whole.tokens[valid])
  np.testing.assert_allclose(again.full_logprobs[valid], whole.full_logprobs[valid], atol=3e-5)
  left = int((T - have)[valid].max())
  assert int(counts.ticks) == left + 1  # the first one gives rows their slots
  np.testing.assert_array_equal(counts.replayed[valid], 21)


def once(at, token=None, **changes):
  """Forks once, when every root has ended: root rows 0 and 5 at places `at`."""

  def branch(rows, seen):
    column = lambda x, empty: (
      jnp.full((N, 1), empty, jnp.int32).at[jnp.asarray([0, 5]), 0].set(jnp.asarray(x))
    )
    forks = tree.Forks(jnp.where((seen == 0)[:, None], column(at, -1), -1))
    if token is not None:
      zero = jnp.full((N, 1), -0.5, jnp.float32)
      forks = forks.replace(token=column(token, -1), logprob=zero, entropy=-zero)
    return rows, seen + 1, forks

  return tree.Plan(init=first_of_group, pause=never, branch=branch, **changes)


def test_a_chosen_first_token_is_in_the_row_as_if_drawn():
  rows, counts, _ = grow_chain(once([7, 6], [3, 4]), end=4)
  rows = jax.device_get(rows)
  one, two = (int(np.flatnonzero((rows.parent == p) & rows.valid)[0]) for p in (0, 5))
  assert rows.tokens[one, 7] == 3 and rows.full_logprobs[one, 7] == -0.5 == -rows.entropy[one, 7]
  assert rows.response_mask[one, 7] and rows.version[one, 7] == VERSION
  assert rows.status[two] == EOS and rows.length[two] == 7
  assert rows.length[one] > 8 and rows.status[one] in (EOS, LENGTH)
  assert counts.generated[two] == 1 and counts.generated[one] == rows.length[one] - 7


def test_a_branch_that_was_cut_off_does_not_come_back():
  """Roots fork twice at one place, lose the first child, and fork there again."""
  at = jnp.zeros(N, jnp.int32).at[jnp.asarray([0, 5])].set(jnp.asarray([8, 6]))
  root = lambda rows: rows.valid & (rows.parent < 0)
  due = lambda rows, seen: root(rows) & (rows.response_length == 4 * (seen + 1)) & (seen < 2)

  def branch(rows, seen):
    here = jnp.where(due(rows, seen), at, -1)
    forks = tree.Forks(jnp.stack([here, jnp.where(seen == 0, here, -1)], 1))
    return rows, seen + due(rows, seen), forks

  def prune(rows, seen):
    return jnp.isin(jnp.arange(N), jnp.asarray([1, 6])) & (rows.parent >= 0) & (seen == 1)

  plan = tree.Plan(
    init=first_of_group, pause=lambda rows, seen: due(rows, seen).any(), branch=branch, prune=prune
  )
  rows, _, _ = grow_chain(plan, end=-1)
  assert rows.valid[jnp.asarray([0, 1, 2, 5, 6, 7])].all() and rows.valid.sum() == 6
  assert len(set(leaves(rows))) == 6  # the second child and the third are not twins


def test_errors_say_what_to_do():
  error = lambda match: pytest.raises(ValueError, match=match)
  with error("1 forks lie outside the response"):
    grow_chain(once([5, 6]), end=-1)  # the first prompt has six tokens
  with error("1 forks lie outside"):
    grow_chain(once([8, T]), end=-1)  # past what has ended
  with error("1 prompts lost their last branch"):
    grow_chain(once([8, 6], prune=lambda rows, seen: rows.group == 1), end=-1)
  with error("same pause again"):
    grow_chain(once([-1, -1])._replace(pause=lambda rows, seen: rows.length[0] > 7), end=-1)
  rows = fresh()
  lonely = rows.replace(valid=rows.valid & (rows.group == 1) | (jnp.arange(N) == 0))
  with error(r"1 forks found none\. Give each prompt more rows"):
    grow_chain(once([8, 6], spare=False), lonely, end=-1)
  with error("a slot for each of the 12 rows"):
    grow_chain(once([8, 6], lockstep=True), slots=4)
  with error("must not leave off"):
    grow_chain(RANDOM, stops=stops(groups=1))


def test_a_look_ahead_is_what_another_row_would_say():
  rows, _, _ = grow_chain(RANDOM)
  at = jnp.where(rows.valid & (rows.parent < 0), rows.response_start + 2, -1)
  ahead, counts = tree.probe(CHAIN, chain(), rows, at, num_tokens=3, **options())
  asked = np.flatnonzero(np.asarray(at) >= 0)
  np.testing.assert_array_equal(np.flatnonzero(ahead.valid), asked)
  for n in asked:
    assert int(ahead.fork_at[n]) == at[n] and int(ahead.parent[n]) == -1
    assert at[n] < int(ahead.length[n]) <= at[n] + 3
    assert ahead.tokens[n, : at[n]].tolist() == rows.tokens[n, : at[n]].tolist()
    assert ahead.uid[n].tolist() != rows.uid[n].tolist()
  np.testing.assert_array_equal(counts.probed, counts.generated)
  np.testing.assert_array_equal(counts.probed[asked], (ahead.length - at)[asked])
  with pytest.raises(ValueError, match="inside the response"):
    tree.probe(CHAIN, chain(), rows, rows.response_start - 1, num_tokens=3, **options())
