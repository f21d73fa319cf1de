"""Blockwise advantages on the worked example, and what conditioning on the outcome is for."""

import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.advantage.blockwise import blockwise
from rlvr_jax.advantage.group import group_mean
from tests import toy

C = np.array([1, 1, 1, 0, 0, 0], np.float32)
Q = np.array([0.9, 0.6, 0.8, 0.7, 0.2, 0.1], np.float32)
BRIER = -((Q - C) ** 2)


def rows(second=BRIER, block=((0, 0, 1),) * 6, groups=(0,) * 6):
  extras = {
    "block": jnp.pad(jnp.array(block, jnp.int32), ((0, 0), (1, 0)), constant_values=-1),
    "block_rewards": jnp.stack([jnp.asarray(C), jnp.asarray(second, jnp.float32)], 1),
    "block_outcomes": jnp.stack([jnp.zeros(6, jnp.int32), jnp.asarray(C, jnp.int32)], 1),
  }
  return toy.rows(list(groups), C, [[True] * 3] * 6, extras=extras)


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({"baseline": "group"}, [0.115, -0.035, 0.085, -0.365, 0.085, 0.115]),
    ({}, [0.06, -0.09, 0.03, -0.31, 0.14, 0.17]),
    ({"shrink": 2.0}, [0.082, -0.068, 0.052, -0.332, 0.118, 0.148]),
    ({"baseline": "none"}, BRIER),
    ({"scale": True}, np.array([0.06, -0.09, 0.03, -0.31, 0.14, 0.17]) / BRIER.std(ddof=1)),
  ],
)
def test_worked_example(options, expect):
  out = np.asarray(blockwise(**options)(rows()))
  first = C if options.get("baseline") == "none" else C - 0.5
  if options.get("scale"):
    first = first / C.std(ddof=1)
  np.testing.assert_allclose(out[:, 1:], np.stack([first, first, expect], 1), atol=2e-5)


def test_batch_and_group_differ_with_several_prompts():
  two = rows(groups=(0, 0, 0, 4, 4, 4))
  out = np.asarray(blockwise(baseline="batch")(two))
  np.testing.assert_allclose(out[:, 3], BRIER - BRIER.mean(), atol=1e-6)
  own = np.asarray(blockwise(baseline="group")(two))
  np.testing.assert_allclose(own[:3, 3], BRIER[:3] - BRIER[:3].mean(), atol=1e-6)
  # Here the outcome is the prompt: conditioning adds nothing.
  np.testing.assert_allclose(blockwise()(two), own, atol=1e-6)


def test_a_constant_for_one_outcome_changes_nothing_but_the_group_mean():
  shifted = rows(second=BRIER + 3 * C)
  np.testing.assert_allclose(blockwise()(shifted), blockwise()(rows()), atol=1e-6)
  group = blockwise(baseline="group")
  assert np.abs(group(shifted) - group(rows())).max() > 1
  # And never a token of the first block.
  np.testing.assert_array_equal(group(shifted)[:, :3], group(rows())[:, :3])


def test_blocks_that_are_missing_empty_or_no_blocks():
  second = np.where(np.arange(6) == 3, np.nan, BRIER)
  block = [[0, 1, 1], [0, 0, 1], [0, 7, 1], [0, 0, 0], [-1, -1, 1], [1, 1, 1]]
  out = np.asarray(blockwise()(rows(second, block)))[:, 1:]
  expect = [0.06, -0.09, 0.03, np.nan, 0.015, -0.015 + 0.03]
  wrong = BRIER[[4, 5]] - BRIER[[4, 5]].mean()  # row 3 is in no mean
  expect[4:] = wrong
  for n in range(6):
    for t in range(3):
      want = {0: C[n] - 0.5, 1: expect[n]}.get(block[n][t], 0.0)
      assert out[n, t] == pytest.approx(want, abs=1e-6), (n, t)


def test_one_block_is_dr_grpo():
  whole = rows()
  extras = {
    "block": jnp.zeros((6, 4), jnp.int32),
    "block_rewards": whole.reward[:, None],
    "block_outcomes": jnp.zeros((6, 1), jnp.int32),
  }
  out = blockwise()(whole.replace(extras=extras))
  np.testing.assert_array_equal(out, group_mean(scale=False)(whole))


def test_errors():
  with pytest.raises(ValueError, match="unknown baseline 'outcom'; did you mean outcome"):
    blockwise(baseline="outcom")
  with pytest.raises(ValueError, match="shrink"):
    blockwise(shrink=-1)
