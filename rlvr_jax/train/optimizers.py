"""Optimizers as optax transformations, each a direction that a recipe may scale coordinate by coordinate.

A direction is a transformation from the gradient to the step before the learning rate and before weight
decay. Recipe.step_scale (update, gradient) -> factor multiplies it, tensor by tensor; decay is not scaled.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

# name -> "module:factory" of the direction.
OPTIMIZERS = {
  "adamw": "rlvr_jax.train.optimizers:adam",
  "lion": "rlvr_jax.train.optimizers:lion",
  "muon": "rlvr_jax.train.optimizers:muon",
}


class Direction(NamedTuple):
  """From gradients to steps, in two parts; what scales the steps compares gradients with the first."""

  transform: optax.GradientTransformation
  # Of each tensor alone: what becomes of the transformed gradient.
  finish: Callable[[jax.Array], jax.Array] = staticmethod(lambda update: update)
  scales: Callable[[Any], bool] = staticmethod(lambda tensor: True)  # which tensors may be scaled


def adam(*, b1: float = 0.9, b2: float = 0.99, eps: float = 1e-8, eps_inside: bool = False):
  """m_hat / (sqrt(v_hat) + eps), with m and v divided by 1 - b^t.

  Args:
    b1, b2: decay of the moments, in [0, 1).
    eps: positive.
    eps_inside: add eps to the root of v before v is divided: m / (sqrt(v) + eps) * sqrt(1 - b2^t) /
      (1 - b1^t), as in the Hugging Face and MGUP code.
  """
  _check_decay(b1=b1, b2=b2)
  if not eps_inside:
    return Direction(optax.scale_by_adam(b1=b1, b2=b2, eps=eps))
  inner = optax.scale_by_adam(b1=b1, b2=b2, eps=0.0)

  def update(updates, state, params=None):
    _, new = inner.update(updates, state, params)
    moments: Any = new
    t = moments.count.astype(jnp.float32)
    rate = jnp.sqrt(1 - b2**t) / (1 - b1**t)
    step = jax.tree.map(lambda m, v: rate * m / (jnp.sqrt(v) + eps), moments.mu, moments.nu)
    return step, new

  return Direction(optax.GradientTransformation(inner.init, update))


def lion(*, b1: float = 0.9, b2: float = 0.99):
  """sign(b1 m + (1 - b1) g), after which m = b2 m + (1 - b2) g.

  Source: Lion, arXiv 2302.06675.
  """
  _check_decay(b1=b1, b2=b2)
  return Direction(optax.scale_by_lion(b1=b1, b2=b2))


def muon(*, momentum: float = 0.95, nesterov: bool = True, ns_steps: int = 5):
  """Momentum made orthogonal, for matrices; Adam (b1 = b2 = 0.95, eps 1e-8) for all other tensors.

      b = momentum b + g,   d = g + momentum b (b itself if not nesterov)
      step = 0.2 sqrt(max(rows, columns)) orthogonalise(d)

  A matrix is a tensor of two axes; stacked matrices count as other tensors.

  Source: Muon, Jordan et al. 2024; the factor: Moonlight, arXiv 2502.16982.
  """
  _check_decay(momentum=momentum)
  if ns_steps < 1:
    raise ValueError(f"ns_steps must be at least 1, got {ns_steps}")
  matrix = lambda x: x.ndim == 2
  label = lambda tree: jax.tree.map(lambda x: "matrix" if matrix(x) else "other", tree)
  transform = optax.multi_transform(
    {
      "matrix": optax.trace(decay=momentum, nesterov=nesterov),
      "other": optax.scale_by_adam(b1=0.95, b2=0.95, eps=1e-8),
    },
    label,
  )

  def finish(d):
    if not matrix(d):
      return d
    return 0.2 * math.sqrt(max(d.shape)) * orthogonalise(d, ns_steps)

  return Direction(transform, finish, matrix)


def orthogonalise(d, steps: int = 5):
  """About U V' of d = U S V': Newton-Schulz iterations with the coefficients of Muon. float32."""
  x = d.astype(jnp.float32)
  tall = x.shape[0] > x.shape[1]
  x = x.T if tall else x
  x = x / (jnp.linalg.norm(x) + 1e-7)
  for _ in range(steps):
    gram = x @ x.T
    x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
  return (x.T if tall else x).astype(d.dtype)


def scaled(direction: Direction, step_scale=None) -> optax.GradientTransformation:
  """The direction as one transformation, each of its tensors times step_scale(update, gradient).

  Its state is that of the direction.
  """
  transform, finish, scales = direction

  def update(updates, state, params=None):
    gradients = updates
    updates, state = transform.update(gradients, state, params)

    def one(u, g):
      step = finish(u)
      return step * step_scale(u, g).astype(step.dtype) if step_scale and scales(u) else step

    return jax.tree.map(one, updates, gradients), state

  return optax.GradientTransformation(transform.init, update)


def with_rate(transform, rate, *, weight_decay: float = 0.0) -> optax.GradientTransformation:
  """p <- p - rate (transform(g) + weight_decay p).

  Args:
    rate: a number, or an optax schedule of updates.
  """
  return optax.chain(
    transform, optax.add_decayed_weights(weight_decay), optax.scale_by_learning_rate(rate)
  )


def _check_decay(**values: float):
  for name, value in values.items():
    if not 0 <= value < 1:
      raise ValueError(f"{name} must lie in [0, 1), got {value}")
