"""Value heads against closed forms, the ridge against numpy, and what a critic may and may not move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Spans
from rlvr_jax.models import heads
from tests import toy

f32 = lambda x: jnp.asarray(x, jnp.float32)
Z = f32([[0.2, 1], [0.4, 0.8], [0.9, 0.1], [0.7, 0.3], [0.1, 0.9], [0.8, 0.2]])
Y = f32([0, 0, 1, 1, 0, 1])
NEW = f32([[0.3, 0.7], [0.6, 0.5], [0.95, 0], [0.85, 0.15]])


def test_worked_probe():
  probe = heads.ridge_fit(Z, Y, jnp.ones(6, bool))
  np.testing.assert_allclose(probe.mean, [0.51667, 0.55], atol=1e-5)
  np.testing.assert_allclose(probe.scale, [0.30231, 0.35940], atol=1e-5)
  np.testing.assert_allclose(probe.weight, [-0.09013, -0.57376], atol=2e-4)
  assert probe.bias == 0.5
  out = heads.ridge_predict(probe, NEW)
  np.testing.assert_allclose(out, [0.32513, 0.55498, 1, 1], atol=2e-5)
  stiff = heads.ridge_predict(heads.ridge_fit(Z, Y, jnp.ones(6, bool), alpha=10.0), NEW)
  np.testing.assert_allclose(stiff, [0.35279, 0.55369, 0.88946, 0.79081], atol=1e-5)
  endless = heads.ridge_predict(heads.ridge_fit(Z, Y, jnp.ones(6, bool), alpha=1e9), NEW)
  np.testing.assert_allclose(endless, 0.5, atol=1e-6)


def test_the_probe_leaves_unused_rows_out_and_both_systems_agree_with_numpy():
  rng = np.random.default_rng(0)
  z, y = rng.normal(size=(6, 9)), rng.random(6)
  used = np.array([True, True, False, True, True, True])
  z[:, 4] = 2.0  # a feature that does not vary
  dirty = np.where(used[:, None], z, np.nan)
  probe = heads.ridge_fit(
    f32(dirty), f32(y), jnp.asarray(used), alpha=0.3
  )  # 6 < 9: the dual system
  x = z[used] - z[used].mean(0)
  sd = x.std(0)
  x = x / np.where(sd > 1e-9, sd, 1)
  w = np.linalg.solve(x.T @ x + 0.3 * np.eye(9), x.T @ (y[used] - y[used].mean()))
  np.testing.assert_allclose(probe.weight, w, atol=1e-4)
  assert not heads.ridge_fit(f32(z), f32(y), jnp.zeros(6, bool)).fitted
  assert np.isnan(heads.ridge_predict(heads.unfitted(9), f32(z))).all()


def test_heads_read_and_learn():
  out, old, target = f32([[[0.3]]]), f32([[0.9]]), f32([[1.0]])
  head = heads.scalar()
  assert head.value(out)[0, 0] == pytest.approx(0.3)
  assert head.loss(out, old, target)[0, 0] == pytest.approx(0.245)
  held = heads.scalar(clip=0.2).loss(out, old, target)  # held at 0.7: the worse of both counts
  assert held[0, 0] == pytest.approx(0.245)
  logits, two = f32([[[0.0, 1.0]]]), heads.categorical()
  p = 1 / (1 + np.exp(-1))
  assert two.value(logits)[0, 0] == pytest.approx(p, rel=1e-5)
  assert two.loss(logits, old, target)[0, 0] == pytest.approx(-np.log(p), rel=1e-5)
  many = heads.categorical(low=-1, high=1, atoms=5)
  assert many.value(jnp.zeros((1, 1, 5), jnp.float32))[0, 0] == pytest.approx(0, abs=1e-6)
  quantiles = heads.quantile(num=2)
  theta = f32([[[0.2, 0.6]]])
  assert quantiles.value(theta)[0, 0] == pytest.approx(0.4)
  assert quantiles.loss(theta, old, target)[0, 0] == pytest.approx(0.25 * 0.8 + 0.75 * 0.4)


@pytest.mark.parametrize("own", [False, True])
def test_a_critic_and_the_policy_leave_each_other_alone(own):
  policy = toy.table_policy(3, 4)
  policy_params = policy.init(jax.random.key(0))
  critic = heads.critic(policy, heads.quantile(num=2), own_trunk=own)
  params = critic.init(policy_params)
  assert jax.tree.structure(params) == jax.tree.structure(
    critic.axes, is_leaf=lambda x: isinstance(x, tuple)
  )
  tokens = jnp.array([[0, 2, 1, 0]], jnp.int32)
  place = jnp.arange(4, dtype=jnp.int32)[None]
  args = tokens, place, jnp.ones((1, 4), bool), Spans(jnp.full((1, 4), 4, jnp.int32))
  assert not critic.out(params, policy_params, *args).any()
  params["kernel"] = jnp.ones((3, 2), jnp.float32)
  total = lambda p, q: critic.head.value(critic.out(p, q, *args)).sum()
  mine, others = jax.grad(total, (0, 1))(params, policy_params)
  assert not np.asarray(others["table"]).any()
  # The value after a token is the sum of its row of the table.
  expect = np.asarray(policy_params["table"])[np.arange(4), np.asarray(tokens[0])].sum(1)
  np.testing.assert_allclose(
    critic.head.value(critic.out(params, policy_params, *args))[0], expect, rtol=1e-5
  )
  assert ("trunk" in mine) == own and np.asarray(mine["kernel"]).any()
  if own:
    assert np.asarray(mine["trunk"]["table"]).any()
    held = heads.critic(policy, heads.scalar(), own_trunk=True, frozen=("table",))
    assert held.trained(params) == {"kernel": True, "bias": True, "trunk": {"table": False}}


def test_errors():
  policy = toy.table_policy(3, 4)
  with pytest.raises(ValueError, match="own_trunk=True"):
    heads.critic(policy, heads.scalar(), frozen=("q",))
  critic = heads.critic(policy, heads.scalar(), own_trunk=True, frozen=("q",))
  with pytest.raises(ValueError, match="no leaf of the trunk is called"):
    critic.trained(critic.init(policy.init(jax.random.key(0))))
  for make, args in (
    (heads.scalar, {"clip": -1}),
    (heads.categorical, {"atoms": 1}),
    (heads.quantile, {"num": 0}),
  ):
    with pytest.raises(ValueError, match="at least"):
      make(**args)
