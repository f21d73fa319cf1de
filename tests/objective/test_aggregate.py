"""The token mean: its denominator, and that the split of a batch does not matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlvr_jax.objective import aggregate
from tests import toy

token_mean = aggregate.token_mean()


def mean(loss, weight, rows):
  numerator, denominator = token_mean(loss, weight, rows)
  return numerator / denominator


def ones(rows):
  return rows.loss_mask.astype(jnp.float32)


N, T = 4, 4
grid = lambda elements: st.lists(
  st.lists(elements, min_size=T - 1, max_size=T - 1), min_size=N, max_size=N
)


@given(
  grid(st.booleans()),
  grid(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
  st.lists(st.booleans(), min_size=N, max_size=N),
)
def test_equals_plain_python(mask, weight, valid):
  loss = np.arange(1.0, 1 + N * (T - 1)).reshape(N, T - 1)
  top, tokens = 0.0, 0
  for n in range(N):
    mine = [t for t in range(T - 1) if mask[n][t] and valid[n]]
    top += sum(loss[n, t] * weight[n][t] for t in mine)
    tokens += len(mine) if any(weight[n][t] for t in mine) else 0
  rows = toy.rows(masks=mask, valid=valid)
  pad = lambda x: jnp.pad(jnp.asarray(x, jnp.float32), ((0, 0), (1, 0)), constant_values=7)
  numerator, denominator = token_mean(pad(loss), pad(weight), rows)
  assert float(numerator) == pytest.approx(top, rel=1e-6)
  assert float(denominator) == tokens


def test_T3_a_row_dropped_on_purpose_leaves_the_denominator():
  mask = [[True, True, False], [True, True, True]]
  rows = toy.rows(masks=mask)
  loss = jnp.array([[9.0, 1.0, 3.0, 9.0], [9.0, 50.0, 60.0, 70.0]])
  dropped = ones(rows).at[1].set(0.0)
  alone = jax.tree.map(lambda x: x[:1], rows)
  assert mean(loss, dropped, rows) == mean(loss[:1], ones(alone), alone) == 2.0
  padding = rows.replace(valid=jnp.array([True, False]))
  assert mean(loss, ones(rows), padding) == 2.0


def test_tokens_dropped_at_random_stay_in_the_denominator():
  # Each token kept with chance 1/2 and weight 2: the mean over the 4 draws is the full loss.
  rows = toy.rows(masks=[[True, True], [True, True]])
  loss = jnp.array([[0.0, 1.0, 5.0], [0.0, 2.0, 2.0]])
  draws = [jnp.array([[0, a, b], [0, 1.0, 1.0]]) for a in (0.0, 2.0) for b in (0.0, 2.0)]
  numerators, denominators = zip(*(token_mean(loss, w, rows) for w in draws))
  full, tokens = token_mean(loss, ones(rows), rows)
  assert sum(numerators) / 4 == full == 10 and tokens == 4
  assert denominators[1:] == (4, 4, 4)  # none of a row's tokens kept: the row is dropped


def test_T1_T2_the_split_into_micro_batches_does_not_matter():
  lengths = np.array([1, 64, 3, 60, 2, 5, 40, 8])
  mask = np.arange(64) < lengths[:, None]
  rows = toy.rows(masks=mask)
  rng = np.random.default_rng(0)
  features = jnp.asarray(rng.normal(size=(8, 65, 3)), jnp.float32)
  theta = jnp.array([0.3, -0.2, 0.5])
  loss = lambda theta, f: jnp.tanh((f * theta[None, None]).sum(2))

  whole = jax.grad(lambda p: mean(loss(p, features), ones(rows), rows))(theta)
  tokens = token_mean(jnp.zeros((8, 65)), ones(rows), rows)[1]
  assert tokens == lengths.sum()
  for size in (1, 2, 4):
    total = jnp.zeros(3)
    for i in range(0, 8, size):
      part = jax.tree.map(lambda x: x[i : i + size], rows)  # noqa: B023
      f = lambda p: token_mean(loss(p, features[i : i + size]), ones(part), part)[0]  # noqa: B023
      total += jax.grad(f)(theta) / tokens
    np.testing.assert_allclose(total, whole, atol=1e-6)


def test_T4_padding_does_not_matter():
  mask = np.arange(5) < np.array([[2], [5]])
  loss = np.arange(10.0).reshape(2, 5)
  out = []
  for width in (5, 64, 128):
    rows = toy.rows(masks=np.pad(mask, ((0, 0), (0, width - 5))))
    wide = jnp.asarray(np.pad(loss, ((0, 0), (1, width - 5)), constant_values=99), jnp.float32)
    out.append((mean(wide, ones(rows), rows), jax.grad(mean)(wide, ones(rows), rows)[:, 1:6]))
  for other in out[1:]:
    jax.tree.map(np.testing.assert_array_equal, other, out[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_T5_T6_masked_losses_and_weights_are_never_seen(bad):
  rows = toy.rows(masks=[[True, False], [True, True]], valid=[True, False])
  mask = rows.loss_mask
  loss, weight = jnp.where(mask, 3.0, bad), jnp.where(mask, 2.0, bad)
  numerator, denominator = token_mean(loss, weight, rows)
  assert (numerator, denominator) == (6, 1)
  g = jax.grad(lambda x: token_mean(x, weight, rows)[0])(loss)
  np.testing.assert_array_equal(g, jnp.where(mask, 2.0, 0.0))


def test_T7_nothing_to_train():
  rows = toy.rows(masks=[[False], [True]], valid=[True, False])
  assert token_mean(jnp.full((2, 2), jnp.nan), jnp.ones((2, 2)), rows) == (0, 0)
