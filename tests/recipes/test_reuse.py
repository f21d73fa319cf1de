"""Recipes that bring tokens back, or stop making them: whole steps, and what they save."""

import numpy as np
import pytest

from rlvr_jax.advantage.group import group_mean
from rlvr_jax.core import ledger
from rlvr_jax.recipes.spec_rl import spec_rl
from rlvr_jax.reward.length import just_enough
from tests import toy, toy_run

EPOCH = toy_run.NUM_PROMPTS // toy_run.PROMPTS  # steps


def test_a_second_epoch_generates_less_than_half():
  run = toy_run.run(spec_rl(coupled=True), 2 * EPOCH, rate=0.05)
  made, reused, drafted, accepted, batched = (
    np.array(toy_run.booked(run, e))
    for e in ("generated", "reused", "drafted", "accepted", "batched")
  )
  assert not drafted[:EPOCH].any()
  assert 0 < made[EPOCH:].sum() * 2 <= made[:EPOCH].sum()
  assert drafted[EPOCH:].sum() == made[:EPOCH].sum()  # every response of the first epoch
  np.testing.assert_array_equal(reused, accepted)
  np.testing.assert_array_equal(made + reused, batched)
  for number, step in enumerate(run.steps):
    assert not ledger.balance(step.ledger).any()
    assert (step.rows.version[step.rows.response_mask] == number).all()
    assert step.metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)


def test_worked_reward_for_just_enough():
  length, form = [2400, 1250, 700, 1900, 400, 2000], [1, 1, 1, 1, 0, 1]
  rows = toy.rows(
    [0] * 6, [1, 1, 0, 1, 0, 1], length=np.array(length) + 1, extras={"reward/format": form}
  )
  out = just_enough(format="format")(rows, {})
  np.testing.assert_allclose(out, [1.05, 2.19, 0.1, 1.5457, 0, 1.4465], atol=5e-5)
  credit = group_mean(ddof=1)(rows.replace(reward=out))[:, 1]
  expected = [-0.0062, 1.3177, -1.1095, 0.5694, -1.2256, 0.4543]
  np.testing.assert_allclose(credit, expected, atol=1e-4)
  # More tokens for all change nothing; without the bonus it is the verdict.
  longer = rows.replace(length=rows.length + 7)
  np.testing.assert_allclose(just_enough(format="format")(longer, {}), out, atol=1e-5)
  np.testing.assert_allclose(just_enough(alpha=0, delta=0, right=1)(rows, {}), rows.correct)
  assert not just_enough()(rows.replace(correct=rows.correct * 0), {}).any()
