"""The learning rate of each update by hand, AdamW in plain numpy, and the state before step 0."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core import ledger
from rlvr_jax.core.types import plain_table
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train.config import Config
from rlvr_jax.train.state import init_state, make_optimizer, make_schedule, with_master_weights


@pytest.mark.parametrize(
  ("config", "updates", "expected"),
  [
    ({"steps": 4}, 1, [8, 8, 8, 8]),
    ({"steps": 4, "warmup_steps": 1}, 1, [8, 8, 8, 8]),
    ({"steps": 6, "warmup_steps": 4}, 1, [2, 4, 6, 8, 8, 8]),
    ({"steps": 4, "schedule": "linear"}, 1, [8, 6, 4, 2, 0]),
    ({"steps": 6, "warmup_steps": 2, "schedule": "linear"}, 1, [4, 8, 8, 6, 4, 2]),
    ({"steps": 2, "schedule": "cosine"}, 1, [8, 4, 0]),
    ({"steps": 2, "warmup_steps": 1, "schedule": "linear"}, 2, [4, 8, 8, 4]),  # counts updates
  ],
)
def test_t44_learning_rates_by_hand(config, updates, expected):
  schedule = make_schedule(Config(learning_rate=8.0, **config), updates)
  np.testing.assert_allclose([schedule(i) for i in range(len(expected))], expected, atol=1e-5)


def test_adamw_in_plain_numpy():
  """Three updates with clipping, decay and a warm-up."""
  config = Config(
    steps=3, learning_rate=0.1, warmup_steps=2, weight_decay=0.01, adam_b1=0.8, adam_b2=0.9,
    adam_eps=1e-3, max_grad_norm=1.0,
  )  # fmt: skip
  optimizer = make_optimizer(config, make_schedule(config, 1))
  params = {"w": jnp.asarray([1.0, -2.0])}
  state = optimizer.init(params)
  w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
  for t, (gradient, rate) in enumerate(
    zip([[3.0, 4.0], [0.1, -0.2], [0.0, 1.0]], [0.05, 0.1, 0.1])
  ):
    updates, state = optimizer.update({"w": jnp.asarray(gradient)}, state, params)
    params = optax.apply_updates(params, updates)
    g = np.array(gradient) * min(1.0, 1.0 / np.linalg.norm(gradient))
    m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
    step = (m / (1 - 0.8 ** (t + 1))) / (np.sqrt(v / (1 - 0.9 ** (t + 1))) + 1e-3)
    w = w - rate * (step + 0.01 * w)
    np.testing.assert_allclose(params["w"], w, rtol=1e-5)


def test_master_weights_keep_updates_that_bfloat16_would_lose():
  """A hundred steps of -0.001 from 1, whose neighbour below lies 0.004 away: added to it, none acts."""
  params: Any = {"w": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.float32)}  # mixed kinds
  grads = jax.tree.map(jnp.ones_like, params)
  optimizer = with_master_weights(optax.sgd(0.001))
  state = optimizer.init(params)
  for step in range(1, 101):
    updates, state = optimizer.update(grads, state, params)
    params = optax.apply_updates(params, updates)
    expected = np.full(2, 1 - 0.001 * step, np.float32)
    np.testing.assert_allclose(state.weights["w"], expected, rtol=1e-5)
    np.testing.assert_array_equal(params["w"], state.weights["w"].astype(jnp.bfloat16))
    np.testing.assert_allclose(params["b"], expected, rtol=1e-5)
  assert params["w"].dtype == jnp.bfloat16 and float(params["w"][0]) == 0.8984375  # nearest to 0.9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_optimizer_state_is_float32(dtype):
  """Moments, and master weights where the parameters are not float32 themselves."""
  config = Config(param_dtype=dtype)
  state = make_optimizer(config, make_schedule(config, 1)).init({"w": jnp.ones((3, 5), dtype)})
  arrays = [x for x in jax.tree.leaves(state) if x.shape == (3, 5)]
  assert len(arrays) == (2 if dtype == "float32" else 3)
  assert {x.dtype for x in arrays} == {jnp.dtype("float32")}


def test_the_state_before_step_0():
  params = {"w": jnp.ones(3)}
  one, two = (
    init_state(grpo(), optax.adam(0.1), params, table=plain_table(4), num_places=8, seed=seed)
    for seed in (0, 1)
  )
  np.testing.assert_array_equal(one.learner.params["w"], np.ones(3))
  assert int(one.learner.step) == int(one.learner.skipped) == int(one.collector.epoch) == 0
  assert not one.collector.visited.any() and one.collector.visited.shape == (4,)
  assert set(ledger.totals(one.ledger).values()) == {0}
  assert one.collector.key.tolist() != two.collector.key.tolist()
  assert not any(x.weak_type for x in jax.tree.leaves((one.learner, one.collector)))
