"""Group advantages against worked numbers and ten lines of plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.advantage.group import group_mean
from tests import toy

N = 7  # one shape: one compilation
flat = lambda elements: st.lists(elements, min_size=N, max_size=N)
KINDS = [{"scale": False}, {"ddof": 0}, {"ddof": 1}]


def per_row(rows, **options):
  """[N]: the advantage on the first trained token of each row; checks that all of them agree."""
  out = np.asarray(group_mean(**options)(rows))
  mask = np.asarray(rows.loss_mask)
  assert np.all(out[~mask] == 0)
  first = np.where(mask.any(1), out[np.arange(len(out)), mask.argmax(1)], 0)
  np.testing.assert_array_equal(out, np.where(mask, first[:, None], 0))
  return first


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({"ddof": 1}, [1.30558, -0.78335, -0.78335, 0.26112]),
    ({"ddof": 0}, [1.50755, -0.90453, -0.90453, 0.30151]),
    ({}, [1.50755, -0.90453, -0.90453, 0.30151]),
    ({"scale": False}, [0.625, -0.375, -0.375, 0.125]),
  ],
)
def test_worked_example(options, expect):
  rows = toy.rows([0] * 4, [1.0, 0.0, 0.0, 0.5])
  np.testing.assert_allclose(per_row(rows, **options), expect, atol=1e-5)


@pytest.mark.parametrize("k", range(1, 8))
def test_k_of_eight_right(k):
  a = per_row(toy.rows([0] * 8, [1.0] * k + [0.0] * (8 - k)))
  np.testing.assert_allclose(a[:k], ((8 - k) / k) ** 0.5, rtol=1e-4)
  np.testing.assert_allclose(a[k:], -((k / (8 - k)) ** 0.5), rtol=1e-4)


def test_epsilon_is_added_to_the_deviation():
  rows = toy.rows([0, 0], [1.0, 0.0])
  np.testing.assert_allclose(per_row(rows, epsilon=0.5), [0.5, -0.5], rtol=1e-6)


def simple(reward, group, valid, scale, ddof):
  out = []
  for r, g, v in zip(reward, group, valid):
    mine = [s for s, h, w in zip(reward, group, valid) if h == g and w]
    if not v or len(set(mine)) < 2:
      out.append(0.0)
      continue
    mean = sum(mine) / len(mine)
    std = (sum((s - mean) ** 2 for s in mine) / (len(mine) - ddof)) ** 0.5
    out.append((r - mean) / (std + 1e-6) if scale else r - mean)
  return out


@given(
  flat(st.integers(-8, 8).map(lambda x: x / 4)),
  flat(st.integers(0, N - 1)),
  flat(st.booleans()),
  st.booleans(),
  st.sampled_from([0, 1]),
)
def test_equals_plain_python(reward, group, valid, scale, ddof):
  rows = toy.rows(group, reward, valid=valid)
  expect = simple(reward, group, valid, scale, ddof)
  np.testing.assert_allclose(per_row(rows, scale=scale, ddof=ddof), expect, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize(
  ("reward", "size"), [(1000.1, 6), (1000.1, 7), (1000.1, 8), (1000.1, 10), (0.7, 7), (0.1, 3)]
)
def test_T14_equal_rewards_give_exactly_zero(options, reward, size):
  np.testing.assert_array_equal(per_row(toy.rows([0] * size, [reward] * size), **options), 0)


@pytest.mark.parametrize("options", KINDS)
def test_T15_a_lone_row_gets_zero(options):
  np.testing.assert_array_equal(per_row(toy.rows([0, 1], [5.0, -3.0]), **options), 0)
  valid = [True] + [False] * 7
  np.testing.assert_array_equal(per_row(toy.rows([0] * 8, [5.0] * 8, valid=valid), **options), 0)


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("bad", [100.0, np.nan, np.inf])
def test_T16_a_rejected_sibling_moves_nothing(options, bad):
  group, valid = [0, 0, 0, 0], [True, True, False, True]
  with_it = per_row(toy.rows(group, [1.0, 0.0, bad, 0.5], valid=valid), **options)
  without = per_row(toy.rows([0] * 3, [1.0, 0.0, 0.5]), **options)
  np.testing.assert_allclose(with_it[[0, 1, 3]], without, rtol=1e-6)
  assert with_it[2] == 0


def test_T17_zero_is_a_reward_and_whole_numbers_will_do():
  rows = toy.rows([0, 0, 0], [0.0, 0.0, 1.0])
  whole = rows.replace(reward=jnp.array([0, 0, 1], jnp.int32))
  np.testing.assert_array_equal(per_row(whole), per_row(rows))
  np.testing.assert_allclose(per_row(rows, scale=False), [-1 / 3, -1 / 3, 2 / 3], rtol=1e-6)


@pytest.mark.parametrize("options", KINDS)
def test_T18_groups_do_not_mix_in_any_order(options):
  group, reward = np.array([0, 0, 0, 4, 4]), np.array([10.0, 11.0, 15.0, -1.0, 0.5])
  together = per_row(toy.rows(group, reward), **options)
  for g in (0, 4):  # zero mean for each prompt
    assert np.sum(together[group == g]) == pytest.approx(0, abs=1e-5)
  order = np.array([3, 0, 4, 2, 1])
  shuffled = per_row(toy.rows(group[order], reward[order]), **options)
  np.testing.assert_allclose(shuffled, together[order], rtol=1e-5)
  other = per_row(toy.rows(group, reward + 100 * (group == 4)), **options)
  np.testing.assert_array_equal(other[:3], together[:3])


@pytest.mark.parametrize("options", KINDS)
def test_a_constant_added_to_a_group_changes_nothing(options):
  reward = np.array([1.0, 0.0, 0.25, 0.5])
  a, b = (per_row(toy.rows([0] * 4, reward + c), **options) for c in (0.0, 8.0))
  np.testing.assert_allclose(a, b, atol=1e-5)


def test_T7_rows_and_groups_without_trained_tokens():
  masks = [[True, False], [False, False], [False, False], [False, False]]
  rows = toy.rows([0, 0, 1, 1], [1.0, 0.0, 1.0, 0.0], masks)
  # An empty response is still a rollout of its prompt: it counts in the statistics.
  np.testing.assert_allclose(per_row(rows, scale=False), [0.5, 0, 0, 0])


def test_under_jit():
  f = jax.jit(group_mean())
  rows = toy.rows([0, 0, 1, 1], [1.0, 1.0, 0.0, 1.0])
  np.testing.assert_allclose(f(rows)[:, 1], [0, 0, -1, 1], rtol=1e-5)


@pytest.mark.parametrize(
  ("args", "message"), [({"ddof": 2}, "ddof must be 0 or 1"), ({"epsilon": 0}, "epsilon must be")]
)
def test_errors(args, message):
  with pytest.raises(ValueError, match=message):
    group_mean(**args)
