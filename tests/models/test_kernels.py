"""Kernels of accelerators: when they are taken, and that what they are given means what the plain form means.

cuDNN runs on a GPU alone; the same call with XLA's implementation checks heads, mask and scale anywhere.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core.types import Spans
from rlvr_jax.models import attention, kernels

N, T, K, G, D = 2, 12, 2, 3, 8
STOP = np.array(
  [[12, 5, 5, 12, 5, 12, 9, 9, 9, 10, 11, 12], [4, 4, 4, 4, 12, 12, 7, 12, 9, 12, 12, 12]]
)


@pytest.mark.parametrize(
  ("backend", "dtype", "size", "length", "softcap", "kernel"),
  [
    ("gpu", jnp.bfloat16, 64, 256, None, "cudnn"),
    ("gpu", jnp.float16, 128, 2, None, "cudnn"),
    ("gpu", jnp.float32, 64, 256, None, None),
    ("gpu", jnp.bfloat16, 60, 256, None, None),
    ("gpu", jnp.bfloat16, 256, 256, None, None),
    ("gpu", jnp.bfloat16, 64, 255, None, None),
    ("gpu", jnp.bfloat16, 64, 256, 30.0, None),
    ("tpu", jnp.bfloat16, 64, 256, None, None),
    ("cpu", jnp.bfloat16, 64, 256, None, None),
  ],
)
def test_the_platform_and_the_shapes_choose(
  monkeypatch, backend, dtype, size, length, softcap, kernel
):
  monkeypatch.setattr(jax, "default_backend", lambda: backend)
  assert kernels.choose(dtype, size, length, softcap) == kernel


@pytest.mark.parametrize("window", [None, 3])
def test_equals_the_plain_form_with_gradients(monkeypatch, window):
  rng = np.random.default_rng(0)
  q, k, v = (rng.normal(size=(N, T, h, D)).astype(np.float32) for h in (K * G, K, K))
  to_y = rng.normal(size=(N, T, K * G * D)).astype(np.float32)
  positions = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (N, T))
  everywhere = jnp.ones((N, T), bool)

  def run(q, k, v):
    view = Spans(jnp.asarray(STOP, jnp.int32))
    y, _ = attention.attend(view, 0, q, k, v, positions, everywhere, scale=0.4, window=window)
    return y, (y * to_y).sum()

  def with_gradients():
    of_loss = jax.jit(jax.grad(lambda *x: run(*x)[1], (0, 1, 2)))
    return run(q, k, v)[0], *of_loss(q, k, v)

  plain = with_gradients()
  called = []
  monkeypatch.setattr(kernels, "choose", lambda *shapes: called.append(shapes) or "xla")
  for a, b in zip(with_gradients(), plain, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  assert called
