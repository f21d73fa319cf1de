"""Controllers that hold entropy, rank prompts and weigh bins, by hand and by the published examples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.control import adversary
from rlvr_jax.control.constant import constant
from rlvr_jax.control.entropy import hold_entropy
from rlvr_jax.control.failure import expected_failure
from rlvr_jax.control.ramp import ramp, stairs
from rlvr_jax.control.ranks import accuracy_rank, ranks
from rlvr_jax.core.types import Feedback, Tally, plain_table
from tests import toy


def feedback(rows=None, *, entropy=1.0, trials=None, successes=None, drawn=None, epoch=0, num=6):
  f = lambda x: jnp.zeros(num) if x is None else jnp.asarray(x, jnp.float32)
  i = jnp.zeros(num, jnp.int32)
  tally = Tally(f(trials), f(successes), i if drawn is None else jnp.asarray(drawn, jnp.int32), i)
  rows = toy.rows([0], [0]) if rows is None else rows
  zero = jnp.zeros((), jnp.int32)
  return Feedback(
    rows, jnp.zeros(rows.tokens.shape), jnp.float32(entropy), tally, jnp.asarray(epoch, jnp.int32), zero
  )  # fmt: skip


def after(control, feedbacks, table=None):
  """The knobs before, and after each of the feedbacks."""
  state = control.init(table or plain_table(6))
  update = jax.jit(control.update)
  out = [control.value(state)]
  for one in feedbacks:
    state = update(state, one)
    out.append(control.value(state))
  return out


# --------------------------------------------------------------------------------------------------
# Entropy: E3-RL4LLMs, arXiv 2505.18573


def temperatures(control, entropies):
  knobs = after(control, [feedback(entropy=h) for h in entropies])
  return [float(k["temperature"]) for k in knobs]


def test_temperature_as_published():
  """A vocabulary of 151936 and a target of 0.30, made from the first update."""
  t = temperatures(hold_entropy(), [0.30, 0.24])
  assert t[:2] == [1, 1] and t[2] == pytest.approx(1.0155, abs=5e-5)
  assert temperatures(hold_entropy(), [0.30, 0.36])[-1] == pytest.approx(0.9873, abs=5e-5)


def test_temperature_stays_at_the_target_and_without_entropy():
  assert temperatures(hold_entropy(), [0.3, 0.3, 0.3]) == [1.0] * 4
  nan = float("nan")
  assert temperatures(hold_entropy(), [0.0, nan, 0.3, 0.0, nan, 0.3]) == [1.0] * 7
  held = temperatures(hold_entropy(vocab=4, low=0.9, high=1.1), [1.0, 0.01, 0.01, 90.0, 90.0, 90.0])
  assert max(held) == pytest.approx(1.1) and min(held) == pytest.approx(0.9)


def test_temperature_reaches_what_gives_the_entropy():
  """A softmax whose entropy at 1.2 is the target, from a temperature of 1."""
  logits = jnp.array([0, 1, 2, 0.5, -1, 1.5])

  def entropy(t):
    p = jnp.exp(logits / t) / jnp.exp(logits / t).sum()
    return -(p * jnp.log(p)).sum()

  control = hold_entropy()
  one = feedback()

  def update(state, _):
    state = control.update(state, one.replace(entropy=entropy(control.value(state)["temperature"])))
    return state, state.temperature

  state = control.update(control.init(None), one.replace(entropy=entropy(1.2)))
  _, t = jax.lax.scan(update, state, length=201)
  np.testing.assert_allclose(t[jnp.array([50, 100, 200])], [1.1262, 1.1737, 1.1968], atol=2e-4)


def test_annealed_target_as_published():
  control = hold_entropy(anneal_steps=480)
  one = feedback(entropy=0.30)

  def update(state, _):
    state = control.update(state, one)
    return state, state.target

  _, target = jax.lax.scan(update, control.init(None), length=480)
  np.testing.assert_allclose(target[jnp.array([287, 383, 479])], [0.30, 0.285, 0.27], atol=1e-6)


# --------------------------------------------------------------------------------------------------
# Plans and records


def test_ramps_and_stairs():
  knob = lambda control, name, n: [float(k[name]) for k in after(control, [feedback()] * n)]
  assert knob(ramp(knob="x", start=1, end=3, steps=4), "x", 6) == [1, 1.5, 2, 2.5, 3, 3, 3]
  assert knob(stairs(knob="x", values=[0, 1, 5], steps=[2, 1]), "x", 4) == [0, 0, 1, 5, 5]
  both = after(ramp(base=constant(temperature=0.5), knob="x"), [feedback()])[1]
  assert float(both["temperature"]) == 0.5 and set(both) == {"temperature", "x"}


def test_failure_of_the_last_steps():
  rows = lambda p: toy.rows([0, 0, 1], [0, 0, 0], prior=[p, p, 0.5], valid=[1, 1, 1])
  knobs = after(expected_failure(window=3), [feedback(rows(p)) for p in (0.1, 0.5, 0.9)])
  # Over prompts, not rows: (0.9 + 0.5) / 2 and so on.
  sums, steps = [[float(k[f"failure_{name}"]) for k in knobs] for name in ("sum", "steps")]
  assert sums == pytest.approx([0, 0.7, 1.2, 0.8]) and steps == [0, 1, 2, 2]


def test_ranks_are_renewed_each_epoch():
  table = plain_table(5)
  visits = feedback(trials=[20, 20, 2, 4, 0], successes=[18, 15, 1, 1, 0], num=5)
  same = visits.replace(epoch=jnp.int32(0))
  later = feedback(num=5, epoch=1)
  first, still, then, on = after(accuracy_rank(), [same, later, later], table)
  assert first["rank"].tolist() == still["rank"].tolist() == [0] * 5
  np.testing.assert_allclose(then["rank"], [0, 0.2, 0.4, 0.6, 0.8])
  assert [float(k["rank_spread"]) for k in (first, still, then, on)] == [0, 0, 2, 2]
  # Never rolled out counts as never solved, behind every prompt that was solved at all.
  np.testing.assert_allclose(
    ranks(jnp.array([0.0, 1.0, 0.0]), jnp.array([9.0, 90.0, 0.0])) * 3, [1, 0, 2]
  )


# --------------------------------------------------------------------------------------------------
# Bins: GDRO, arXiv 2601.19280


def test_bins_have_their_lower_edge_and_some_hysteresis():
  bin_of = functools.partial(adversary.rebinned, edges=adversary.EDGES, margin=0.03)
  x = jnp.array([0, 0.09, 0.1, 0.39, 0.4, 0.9, 1.0])
  assert bin_of(jnp.full(7, -1), x).tolist() == [0, 0, 1, 2, 3, 6, 6]
  stay = lambda old, x: bin_of(jnp.array([old]), jnp.array([x])).item()
  assert [stay(2, x) for x in (0.38, 0.42, 0.38, 0.18)] == [2, 2, 2, 2]
  assert [stay(2, x) for x in (0.43, 0.17, 0.95, 0.0)] == [3, 1, 6, 0]
  assert stay(6, 1.0) == 6 and stay(0, 0.0) == 0


def test_a_bin_is_the_share_of_visits_with_a_success():
  bins = adversary.no_bins(3, 4)
  assert adversary.looked_up(bins).tolist() == [0, 0, 0]
  step = jax.jit(lambda bins, f: adversary.observed(bins, f.tally, adversary.EDGES, 0.03))
  for i in range(6):  # the first two visits are forgotten
    bins = step(bins, feedback(trials=[4, 4, 0], successes=[2 * (i > 1), i % 2, 0], num=3))
  assert bins.history.sum(1).tolist() == [4, 2, 0] and bins.visits.tolist() == [6, 6, 0]
  assert adversary.looked_up(bins).tolist() == [6, 3, 0] and bins.bin.tolist() == [6, 3, -1]


def test_running_loss_as_published():
  new = jnp.array([0.3, -0.1, 0.5, 0.0]) / jnp.array([0.5, 0.25, 0.25, 1.0])
  present = jnp.array([True, True, True, False])
  old, seen = jnp.array([0.2, 0.1, 0.0, 0.0]), jnp.array([True, True, False, False])
  s = adversary._averaged(old, new, seen, present, 0.12)
  np.testing.assert_allclose(s, [0.248, 0.04, 2.0, 0], atol=1e-6)


def test_prompt_adversary_by_hand():
  """Three prompts of bins 0, 0 and 3 before the step, failure rates 1, 0.5 and 0."""
  rows = toy.rows([0, 0, 1, 1, 2], [0, 0, 1, 0, 1], prompt_id=[4, 4, 1, 1, 2])
  for by_share, expected in ((False, [0.75, 0, 0, 0]), (True, [0.75 * 1.5, 0, 0, 0])):
    control = adversary.prompt_weights(by_share=by_share)
    state = control.init(plain_table(6))
    state = state.replace(bins=state.bins.replace(bin=state.bins.bin.at[2].set(3)))
    state = jax.jit(control.update)(state, feedback(rows))
    np.testing.assert_allclose(state.loss[:4], expected, atol=1e-6)
    assert state.seen.tolist() == [True, False, False, True, False, False, False]


def test_rollout_adversary_by_hand():
  rows = toy.rows([0, 0, 1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 1, 1], prompt_id=[4, 4, *[2] * 6])
  control = adversary.rollout_arms(mean=4, low=2, high=8)
  state = control.init(plain_table(6))
  bins = state.bins.replace(bin=state.bins.bin.at[2].set(3))
  state = state.replace(bins=bins, price=jnp.float32(0.1))
  state = state.replace(loss=state.loss.at[0].set(0.75), seen=state.seen.at[0].set(True))
  new = jax.jit(control.update)(state, feedback(rows, drawn=[0, 0, 6, 0, 2, 0]))
  # Bin 0 had 2 rows and lost 1/2, less than before; bin 3 had 6 and lost 2/3, for the first time.
  expected = np.zeros((7, 7))
  expected[0, 0], expected[3, 4] = 0.5 - 0.75 + 0.2, -0.2
  np.testing.assert_allclose(new.score, expected, atol=1e-6)
  np.testing.assert_allclose(new.loss[jnp.array([0, 3])], [0.88 * 0.75 + 0.12 * 0.5, 2 / 3])
  assert float(new.price) == pytest.approx(0.1) and not new.variance.any()
  more = jax.jit(control.update)(state, feedback(rows, drawn=[0, 0, 6, 0, 4, 0]))
  assert float(more.price) == pytest.approx(0.1 + 0.05)


@pytest.mark.parametrize(
  "build",
  [
    lambda: hold_entropy(vocab=2),
    lambda: hold_entropy(temperature=3.0),
    lambda: hold_entropy(collect=0),
    lambda: ramp(steps=0),
    lambda: stairs(values=[1, 2], steps=[]),
    lambda: stairs(values=[1, 2], steps=[0]),
    lambda: accuracy_rank(widen=-1),
    lambda: expected_failure(window=0),
    lambda: adversary.prompt_weights(rate=0),
    lambda: adversary.prompt_weights(edges=(0.5, 0.2)),
    lambda: adversary.rollout_arms(mean=1),
  ],
)
def test_errors(build):
  with pytest.raises(ValueError):
    build()
