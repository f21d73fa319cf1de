"""Recipes that share out rollouts: published examples, limits that are GRPO, and whole steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.types import Belief, Candidates, Feedback, Tally, plain_table
from rlvr_jax.keep import choose
from rlvr_jax.posterior.latest import latest
from rlvr_jax.recipes import aero, ar3po, cures, gdro, pilot_commit, sgpo, xrpo
from rlvr_jax.recipes.grpo import grpo
from tests import toy, toy_run
from tests.allocate.rounds import a_round, counts

KEY = jax.random.key(0)
pytestmark = pytest.mark.usefixtures("compiled_once")


def per_row(recipe, rows):
  return np.asarray(recipe.advantage(rows)[:, -1])


# --------------------------------------------------------------------------------------------------
# AERO, arXiv 2602.14338


def curated(verdicts, **options):
  """What is kept of one group, and its advantages."""
  n = len(verdicts)
  rows = toy.rows([0] * n, verdicts, trials=[n] * n, successes=[sum(verdicts)] * n)
  recipe = aero.aero(**options)
  kept = recipe.choose(KEY, rows, {})
  return np.asarray(kept), per_row(recipe, rows.replace(valid=kept))


def test_aero_as_published():
  kept, a = curated([0] * 11 + [1])
  assert kept.sum() == 2 and kept[11] and a[11] == pytest.approx(0.999998, abs=1e-6)
  assert sorted(a[kept]) == pytest.approx([-0.999998, 0.999998], abs=1e-6)
  kept, a = curated([0] * 16)
  np.testing.assert_allclose(a[kept], [-0.242536] * 4, atol=1e-6)
  kept, a = curated([1] * 8)
  np.testing.assert_allclose(a[kept], [0.333333] * 4, atol=1e-6)
  kept, a = curated([0, 1, 0, 0, 0, 1, 0, 0])
  assert kept.sum() == 4 and kept[1] and kept[5]
  np.testing.assert_allclose(np.sort(a[kept]), [-0.999998] * 2 + [0.999998] * 2, atol=1e-6)
  kept, a = curated([1, 1, 0, 1, 1, 1, 0, 1])
  assert kept.all()
  np.testing.assert_allclose(a[:3], [0.577349, 0.577349, -1.732047], atol=3e-6)
  assert not curated([0] * 8, uniform=0)[0].any()
  assert curated([0] * 7 + [1], ratio=float("inf"))[0].all()


def test_aero_draws_wrong_rows_evenly():
  rows = toy.rows([0] * 8, [0, 1, 0, 0, 0, 1, 0, 0])
  pick = choose.balanced()
  kept = jax.vmap(lambda key: pick(key, rows, {}))(jax.random.split(KEY, 3000)).sum(0)
  assert kept[1] == kept[5] == 3000
  wrong = np.delete(np.asarray(kept), [1, 5])
  assert (np.abs(wrong - 1000) < 4 * np.sqrt(3000 * 2 / 9)).all()


# --------------------------------------------------------------------------------------------------
# AR3PO, arXiv 2509.25808


def test_ar3po_borrowed_row_shifts_the_others():
  """Seven wrong ones and a borrowed right one: -0.3536 each, and nothing for the borrowed one."""
  rows = toy.rows([0] * 9, [0] * 8 + [1], wave=[0] * 8 + [-1])
  recipe = ar3po.ar3po()
  kept = recipe.choose(KEY, rows, {})
  assert kept.tolist() == [True] * 7 + [False, True]
  a = recipe.advantage(rows.replace(valid=kept))
  np.testing.assert_allclose(a[:, -1], [-0.3536] * 7 + [0, 2.4749], atol=1e-4)
  weigh = lambda r: r.weigh(KEY, rows.replace(valid=kept), a, {})[:, -1].tolist()
  assert weigh(recipe) == [1] * 7 + [0, 0]
  assert weigh(ar3po.ar3po(borrowed="renewed")) == [1] * 7 + [0, 1]
  assert ar3po.ar3po(borrowed="renewed").annotate == ("old",) and not recipe.annotate
  # A solved group gives nothing away.
  assert choose.exchanged()(KEY, toy.rows([0, 0, 1], [0, 1, 0]), {}).all()


def test_ar3po_in_whole_steps():
  """The first visit solves every prompt, later ones none: groups borrow, and the books balance."""
  seen = set()

  def verify(ids, texts):
    out = [toy_run.Verdict(float(i not in seen)) for i in ids]
    seen.update(ids)
    return out

  run = toy_run.run(ar3po.ar3po(start=2, chunk=1), 6, verify=verify)
  for number, step in enumerate(run.steps):
    rows = step.rows
    assert not ledger.balance(step.ledger).any()
    lent = rows.valid & (rows.wave < 0)
    assert lent.sum() == (3 if number >= 2 else 0)
    for g in rows.group[lent]:
      mine = rows.valid & (rows.group == g)
      assert (
        mine.sum() == 4 and rows.correct[mine].sum() == 1 and len(set(rows.prompt_id[mine])) == 1
      )
    assert rows.response_mask[rows.valid].any()
  assert ledger.totals(run.end.ledger)["reused"] > 0


# --------------------------------------------------------------------------------------------------


def test_two_waves_are_the_rows_of_one():
  """Two rows and two more of a prompt without a success are the four that it would get at once."""
  rows = [
    toy_run.run(recipe, 1, verify=toy_run.always_wrong).steps[0].rows
    for recipe in (grpo(), ar3po.ar3po(start=2, chunk=2))
  ]
  one, two = (
    {tuple(r.uid[i]): r.tokens[i, : r.length[i]].tolist() for i in np.flatnonzero(r.valid)}
    for r in rows
  )
  assert one == two and len(one) == toy_run.BUDGET
  assert sorted(rows[1].wave[rows[1].valid].tolist()) == [0] * 6 + [1] * 6


def test_xrpo_sharpens_as_published():
  logprobs = np.array([-0.2, -0.6, -0.3, -0.5])
  rows = toy.rows([0] * 4, [1, 1, 0, 0], behavior_logprobs=np.stack([0 * logprobs, logprobs], 1))
  a = per_row(xrpo.xrpo(), rows)
  np.testing.assert_allclose(a, [0.8660, 1.2990, -0.8660, -0.8660], atol=1e-4)
  base = per_row(grpo(ddof=1), rows)
  np.testing.assert_array_equal(a[2:], base[2:])
  for off in ({"kappa": 0.0}, {"novelty": 0.0}):
    np.testing.assert_array_equal(per_row(xrpo.xrpo(**off), rows), base)
  moved = rows.replace(behavior_logprobs=rows.behavior_logprobs - 3)
  np.testing.assert_allclose(per_row(xrpo.xrpo(), moved), a, atol=1e-5)


def test_cures_draws_as_published():
  p = jnp.array([1, 2, 3, 5]) / jnp.array([6, 6, 6, 6])
  score = cures.deviation(KEY, Belief(p, p, p), {})
  np.testing.assert_allclose(
    jax.nn.softmax(score / 0.1), [0.121121, 0.325074, 0.432684, 0.121121], atol=1e-6
  )


def test_pilots_that_stay_are_half_right_if_they_can():
  for right, wrong, expected in (
    (6, 2, (2, 2)),
    (1, 7, (1, 3)),
    (4, 4, (2, 2)),
    (0, 8, (0, 4)),
    (8, 0, (4, 0)),
  ):
    rows = toy.rows([0] * 10, [1] * right + [0] * wrong + [1, 0], wave=[0] * 8 + [1, 1])
    kept = np.asarray(choose.committed(pilots=4)(KEY, rows, {}))
    assert kept[8:].all()
    assert (kept[:right].sum(), kept[right:8].sum()) == expected
  rows = toy.rows([0, 0, 1, 1, 1], [1, 0, 1, 0, 0], wave=[0, 0, 0, 0, 1])
  assert choose.committed()(KEY, rows, {}).tolist() == [False, False, True, True, True]
  joined = toy.rows([0] * 16, [1] * 3 + [0] * 13)
  a = per_row(pilot_commit.pilot_commit(), joined)
  np.testing.assert_allclose(a[[0, 15]], [2.0156, -0.4651], atol=1e-4)


def candidates(score, **fields):
  n = len(score)
  x = jnp.zeros(n)
  none = jnp.zeros(n, bool)
  made = Candidates(
    jnp.arange(n),
    jnp.asarray(score, jnp.float32),
    jnp.zeros(n, jnp.int32),
    Belief(x, x, x),
    none,
    none,
  )
  return made.replace(**fields)


def test_solved_prompts_are_not_piloted_again_while_there_are_others():
  select = pilot_commit.pilot_commit().select
  seen = lambda *mean: Belief(jnp.array(mean, jnp.float32), jnp.zeros(5), jnp.ones(5))
  out = select(KEY, candidates([1] * 5, belief=seen(0.5, 1, 0, 1, 0.2)), 3, {})
  assert out.valid.all() and sorted(out.index.tolist()) == [0, 2, 4]
  assert select(KEY, candidates([1] * 5, belief=seen(1, 1, 0, 1, 1)), 3, {}).valid.all()
  model = latest()
  state = model.init(plain_table(3))
  tally = Tally(
    jnp.array([4.0, 8, 0]), jnp.array([4.0, 2, 0]), jnp.zeros(3, jnp.int32), jnp.zeros(3, jnp.int32)
  )
  for _ in range(2):
    state = model.update(state, tally)
  assert model.belief(state, jnp.arange(3)).mean.tolist() == [1, 0.25, 0.5]


# --------------------------------------------------------------------------------------------------
# GDRO, arXiv 2601.19280


def test_gdro_weights_as_published():
  loss, bin = jnp.array([0.248, 0.04, 2.0, 0]), jnp.array([0, 0, 1, 2, 3])
  valid = jnp.array([True] * 4 + [False])
  w = gdro.bin_weights(loss, bin, valid, eta=0.65, gamma=0.01)
  np.testing.assert_allclose(w, [0.670744, 0.670744, 0.587326, 2.071186, 0], atol=2e-6)
  np.testing.assert_allclose(
    gdro.bin_weights(loss, bin, valid, eta=0.0, gamma=0.01)[:4], [1] * 4, atol=1e-6
  )
  assert not gdro.bin_weights(loss, bin, ~valid & valid, eta=0.65, gamma=0.01).any()


def deals(law, verdict):
  """What gdro_rollout gives four prompts in each of eight steps."""
  recipe = gdro.gdro_rollout(law=law)
  state, update = recipe.control.init(plain_table(4)), jax.jit(recipe.control.update)
  round, zeros, dealt = a_round([0.5] * 4), jnp.zeros(4, jnp.int32), []
  deal = jax.jit(lambda state: recipe.allocate.next((), round, 16, recipe.control.value(state))[0])
  for step in range(8):
    dealt.append(deal(state).tolist())
    prompt = np.repeat(np.arange(4), dealt[-1])
    right = verdict(prompt)
    rows = toy.rows(prompt, right, prompt_id=prompt)
    told = [jnp.asarray(np.bincount(prompt, x), jnp.float32) for x in (np.ones(16), right)]
    tally = Tally(*told, jnp.asarray(dealt[-1], jnp.int32), zeros)
    nothing = jnp.zeros(rows.tokens.shape), jnp.float32(1)
    state = update(state, Feedback(rows, *nothing, tally, jnp.int32(0), jnp.int32(step)))
  return dealt


def test_gdro_deals_by_the_losses_of_the_bins():
  dealt = deals("exponential", lambda prompt: prompt < 2)
  # All are in one bin; then the losses are 0.5 and 0, so that the weights are as 1.38 to 1, and grow to 1.7.
  assert dealt[0] == [4] * 4 and dealt[1:] == [[3, 3, 5, 5]] * 7
  rng = np.random.default_rng(0)
  noisy = deals("bandit", lambda prompt: rng.random(len(prompt)) < np.where(prompt < 2, 0.9, 0.2))
  assert dealt[0] == [4] * 4 and any(max(one) > min(one) for one in noisy)
  assert all(sum(one) == 16 for one in noisy)


def test_gdro_budget_must_fit_its_mean():
  with pytest.raises(ValueError, match=r"mean=4\.0 rollouts a prompt, but a budget of 64 for 8"):
    gdro.gdro_rollout().allocate.plan(8, 64)


# --------------------------------------------------------------------------------------------------
# sGPO, arXiv 2606.08854

BUCKETS = (2, 4, 8)


def test_sgpo_classes_as_published():
  kind, size = sgpo.classes(np.arange(9), np.full(9, 8), trivial=0.75, buckets=BUCKETS)
  assert kind.tolist() == [sgpo.UNSOLVED] + [sgpo.LEARNABLE] * 6 + [sgpo.TRIVIAL] * 2
  assert size.tolist() == [0, 8, 4, 4, 2, 2, 2, 0, 0]
  kind, size = sgpo.classes(
    np.array([3, 12, 0]), np.array([16, 16, 0]), trivial=0.75, buckets=BUCKETS
  )
  assert kind.tolist() == [sgpo.LEARNABLE] * 3 and size.tolist() == [8, 2, 8]
  chance = [1 - (1 - k / 8) ** g for k, g in zip(range(1, 7), (8, 4, 4, 2, 2, 2))]
  np.testing.assert_allclose(
    chance, [0.656391, 0.683594, 0.847412, 0.75, 0.859375, 0.9375], atol=1e-6
  )


def test_sgpo_pool_has_its_share_of_the_unsolved():
  kind = np.array([sgpo.UNSOLVED] * 30 + [sgpo.LEARNABLE] * 4)
  size = np.array([0] * 30 + [2, 4, 4, 8])
  a, b = (sgpo.pool(kind, size, 4, 0.1, 0) for _ in range(2))
  np.testing.assert_array_equal(a, b)
  assert a[:30].sum() == 3 and a[30:].tolist() == [False, True, True, False]
  assert (sgpo.pool(kind, size, 8, 0.1, 0)[:30] != a[:30]).any()


def test_sgpo_phases(tmp_path):
  """Two phases, of pairs and of eights: rollouts of a step stay."""
  path = tmp_path / "profile.npz"
  np.savez(path, successes=[4, 5, 6, 4, 1, 1, 8, 0], trials=[8] * 8)
  recipe = sgpo.sgpo(profile=str(path), phase_steps=2, unsolved=0.0)
  assert recipe.allocate.plan(4, 8) == (8,)
  state = recipe.control.init(plain_table(8))
  pools, spent = [], []
  for _ in range(3):
    knobs = recipe.control.value(state)
    out = recipe.select(KEY, candidates([1] * 8), 4, knobs)
    pools.append(sorted(out.index[out.valid].tolist()))
    round = a_round([0.5] * 4, valid=np.asarray(out.valid))
    spent.append(sorted(counts(recipe.allocate, round, 8, knobs)))
    state = recipe.control.update(state, None)
  assert pools == [[0, 1, 2, 3]] * 2 + [[4, 5]]
  assert spent == [[2, 2, 2, 2]] * 2 + [[0, 0, 0, 8]]
  with pytest.raises(ValueError, match="has 8 prompts, the table 5"):
    recipe.select(KEY, candidates([1] * 5), 4, knobs)
  with pytest.raises(ValueError, match="a budget of 7 rows"):
    recipe.allocate.plan(4, 7)
  np.savez(path, successes=[8, 8], trials=[8, 8])
  with pytest.raises(ValueError, match="leaves no prompt"):
    sgpo.sgpo(profile=str(path))
  np.savez(path, successes=[9], trials=[8])
  with pytest.raises(ValueError, match="between 0 and trials"):
    sgpo.sgpo(profile=str(path))


def test_pilots_that_leave_nothing_to_commit_are_refused():
  with pytest.raises(ValueError, match="leaves nothing to commit"):
    pilot_commit.pilot_commit(pilot=4).allocate.plan(3, 12)
  assert sum(pilot_commit.pilot_commit(pilot=4).allocate.plan(3, 13)) == 13
