"""Over which tokens a ratio is taken: scope(d, mask) -> [N,T], the log of each token's weight.

`d` [N,T] holds the log ratio of each token, 0 outside `mask`. The three scopes are the geometric mean of
the ratios of one token, of all up to it, and of the whole row.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits


def token():
  """The token's own ratio (PPO, GRPO)."""
  return traits.declare(lambda d, mask: d, reads="token")


def prefix(*, own: bool = False):
  """log w_t = (d_1 + ... + d_t) / t, over the trained tokens of the row up to t.

  Args:
    own: the gradient reaches the token's own log-prob only; else all of the prefix, so that token k gets
      sum_{t >= k} (gradient of t) / t.

  Source: PNPO, arXiv 2608.01418.
  """

  def scope(d, mask):
    mean = jnp.cumsum(d, 1) / jnp.maximum(jnp.cumsum(mask, 1), 1)
    return masked.select(_own(mean, d) if own else mean, mask)

  return traits.declare(scope, reads="prefix")


def sequence(*, own: bool = True):
  """log s = mean of d over the trained tokens of the row, the same on all of them.

  Args:
    own: the gradient reaches the token's own log-prob only. With equal advantages in a row and a mean
      over its tokens both ways have the same gradient.

  Source: GSPO, arXiv 2507.18071; `own`: GSPO-token of the same paper.
  """

  def scope(d, mask):
    mean = masked.mean(d, mask, 1)[:, None] + jnp.zeros_like(d)
    return masked.select(_own(mean, d) if own else mean, mask)

  return traits.declare(scope, reads="row")


def _own(mean, d):
  """The value of `mean` with the gradient of d."""
  return jax.lax.stop_gradient(mean) + d - jax.lax.stop_gradient(d)
