"""Value heads: what hidden states say of the return, as a number or as a law; and critics that end in one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import returns as maths
from rlvr_jax.core.types import Array, Policy, Spans


class Head(NamedTuple):
  """Outputs [...,K] of a linear layer, read as a law of the return."""

  size: int  # K
  value: Callable  # (out [...,K]) -> float32 [...], its mean
  loss: Callable  # (out [...,K], old value [...], return [...]) -> float32 [...]


def scalar(*, clip: float = 0.0) -> Head:
  """One number, trained on the squared error.

  Args:
    clip: PPO's value clip: distance from the old value at which a better fit no longer pays; 0: none.
  """
  if clip < 0:
    raise ValueError(f"clip must be at least 0 (0: none), got {clip}")

  def loss(out, old, target):
    value = out[..., 0]
    if clip:
      return maths.clipped_squared(value, old, target, clip=clip)
    return maths.squared(value, target)

  return Head(1, lambda out: out[..., 0], loss)


def categorical(*, low: float = 0.0, high: float = 1.0, atoms: int = 2) -> Head:
  """Probabilities of evenly spaced returns, trained on the cross-entropy to the return's two neighbours.

  Two atoms on 0 and 1 are logistic regression of success. Returns outside the range count as its ends.

  Source: C51, arXiv 1707.06887 (51 atoms).
  """
  if not low < high or atoms < 2:
    raise ValueError(f"want low < high and at least 2 atoms, got {low}, {high} and {atoms}")
  grid = low + (high - low) * jnp.arange(atoms, dtype=jnp.float32) / (atoms - 1)

  def loss(out, old, target):
    del old
    one = jnp.ones((*target.shape, 1), jnp.float32)
    return maths.cross_entropy(out, maths.project(target[..., None], one, grid))

  return Head(atoms, lambda out: jax.nn.softmax(out) @ grid, loss)


def quantile(*, num: int = 32, kappa: float = 0.0) -> Head:
  """Quantiles of the return at the levels (k + 0.5) / num.

  Args:
    num: positive.
    kappa: Huber's width; for returns in [0, 1] anything but a small one learns expectiles.

  Source: QR-DQN, arXiv 1710.10044 (200 quantiles, kappa 1).
  """
  if num < 1 or kappa < 0:
    raise ValueError(f"want num at least 1 and kappa at least 0, got {num} and {kappa}")

  def loss(out, old, target):
    del old
    return maths.quantile_loss(out, target[..., None], kappa=kappa)

  return Head(num, lambda out: out.mean(-1), loss)


class Critic(NamedTuple):
  """A value model beside a policy."""

  init: Callable  # (policy params) -> params
  # (params, policy params, tokens [N,T], positions, valid, view) -> float32 [N,T,K], of what follows a token
  out: Callable
  head: Head
  trained: Callable  # (params) -> the same pytree of bools
  axes: Any  # like params, logical axis names


def critic(
  policy: Policy, head: Head, *, own_trunk: bool = False, frozen: Sequence[str] = ()
) -> Critic:
  """A head on the policy's trunk, or on a trunk of its own.

  On the policy's trunk only the head learns: no gradient reaches the policy. Its own trunk starts as a copy
  of the policy's. The head starts at 0.

  Args:
    own_trunk: whether the critic has a trunk of its own, as large as the policy.
    frozen: names of the leaves of its trunk that do not learn, such as ("q", "k", "v", "o") for attention.

  Raises:
    ValueError: for `frozen` without a trunk of its own; in `trained`, for a name that no leaf has.
  """
  if frozen and not own_trunk:
    raise ValueError("frozen names leaves of the critic's own trunk: set own_trunk=True")

  def init(policy_params):
    one = jnp.zeros((1, 1), jnp.int32)
    hidden = lambda p: policy.hidden(p, one, one, one == 0, Spans(one))[0]
    width = jax.eval_shape(hidden, policy_params).shape[-1]
    params = {
      "kernel": jnp.zeros((width, head.size), jnp.float32),
      "bias": jnp.zeros(head.size, jnp.float32),
    }
    return params | ({"trunk": jax.tree.map(jnp.copy, policy_params)} if own_trunk else {})

  def out(params, policy_params, tokens, positions, valid, view):
    trunk = params["trunk"] if own_trunk else jax.lax.stop_gradient(policy_params)
    hidden, _ = policy.hidden(trunk, tokens, positions, valid, view)
    return hidden.astype(jnp.float32) @ params["kernel"] + params["bias"][None, None]

  def trained(params):
    seen = set()

    def learns(path, _):
      name = path[-1].key
      seen.add(name)
      return not (path[0].key == "trunk" and name in frozen)

    mask = jax.tree_util.tree_map_with_path(learns, params)
    if absent := set(frozen) - seen:
      raise ValueError(f"no leaf of the trunk is called {sorted(absent)}; there are {sorted(seen)}")
    return mask

  axes = {"kernel": ("embed", None), "bias": (None,)}
  return Critic(init, out, head, trained, axes | ({"trunk": policy.axes} if own_trunk else {}))


class Ridge(flax.struct.PyTreeNode):
  """A linear probe; never fitted while `fitted` is False, and then predicts NaN."""

  mean: Array  # float32 [F], of the features it was fitted on
  scale: Array  # float32 [F]
  weight: Array  # float32 [F]
  bias: Array  # float32 []
  fitted: Array  # bool []


def ridge_fit(features, target, used, *, alpha: float = 0.01) -> Ridge:
  """Ridge regression on standardised features, with a free intercept.

      w = (Z'Z + alpha I)^-1 Z'(y - mean y) = Z'(ZZ' + alpha I)^-1 (y - mean y)

  whichever of the two systems is smaller. A feature that does not vary is left as it is.

  Args:
    features: float32 [n,F]; target: float32 [n]; used: bool [n], the rows that count.
    alpha: positive.
  """
  w = used.astype(jnp.float32)
  num = jnp.maximum(w.sum(), 1.0)
  z, y = jnp.where(used[:, None], features, 0.0), jnp.where(used, target, 0.0)
  mean = z.sum(0) / num
  centred = jnp.where(used[:, None], z - mean[None], 0.0)
  std = jnp.sqrt((centred * centred).sum(0) / num)
  scale = jnp.where(std > 0, std, 1.0)
  z, bias = centred / scale[None], y.sum() / num
  y = jnp.where(used, y - bias, 0.0)
  n, f = z.shape
  solve = lambda a, b: jax.scipy.linalg.solve(a, b, assume_a="pos")
  if n < f:
    weight = z.T @ solve(z @ z.T + alpha * jnp.eye(n, dtype=jnp.float32), y)
  else:
    weight = solve(z.T @ z + alpha * jnp.eye(f, dtype=jnp.float32), z.T @ y)
  return Ridge(mean, scale, weight, bias, used.any())


def ridge_predict(probe: Ridge, features):
  """float32 [n] in [0, 1]: predictions for features [n,F]; NaN before there was anything to fit."""
  z = (features - probe.mean[None]) / probe.scale[None]
  return jnp.where(probe.fitted, jnp.clip(z @ probe.weight + probe.bias, 0.0, 1.0), jnp.nan)


def unfitted(size: int) -> Ridge:
  """A probe of `size` features that has seen nothing."""
  zeros = jnp.zeros(size, jnp.float32)
  return Ridge(zeros, jnp.ones(size, jnp.float32), zeros, jnp.zeros(()), jnp.zeros((), bool))
