"""MGUP: coordinates whose step agrees most with the fresh gradient step further, all others less, none not.

    f = update * gradient, tensor by tensor;   factor alpha on the int(ratio size) largest f, gamma elsewhere

`cautious` asks for agreement alone (f >= 0) and needs no ranking. Works around any optimizer of
train.optimizers; weight decay is not scaled. The defaults are those of the release, whose README advises
alpha in [1, 1.5] and gamma in [0.5, 1] for a learning rate that is already tuned. Differs: tensors smaller
than min_size are left alone, and eps is added where optax adds it unless optimizer_args.eps_inside is set.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core.types import Recipe
from rlvr_jax.recipes.grpo import grpo

PAPER = (
  "MGUP: A Momentum-Gradient Greedy Alignment Update Policy for Stochastic Optimization",
  "NeurIPS 2025",
)
STAGES = ("optimise",)
CHANGES = ("step_scale",)
EVIDENCE = "code"


def mgup(
  *,
  ratio: float = 0.5,
  alpha: float = 2.0,
  gamma: float = 0.1,
  cautious: bool = False,
  min_size: int = 2,
  **options,
) -> Recipe:
  """Greedy alignment of steps with gradients.

  Args:
    ratio: share of the coordinates that step further, in [0, 1].
    alpha, gamma: their factor and that of the others, positive.
    cautious: choose by sign instead of by rank.
    min_size: tensors with fewer coordinates keep a factor of 1.
    **options: of `grpo`.
  """
  scale = alignment(ratio=ratio, alpha=alpha, gamma=gamma, cautious=cautious, min_size=min_size)
  return grpo(**options)._replace(step_scale=scale)


def alignment(
  *,
  ratio: float = 0.5,
  alpha: float = 2.0,
  gamma: float = 0.1,
  cautious: bool = False,
  min_size: int = 2,
):
  """step_scale(update, gradient) -> float32 like them; the arguments are those of `mgup`."""
  if not 0 <= ratio <= 1:
    raise ValueError(f"ratio must lie in [0, 1], got {ratio}")
  if alpha <= 0 or gamma <= 0:
    raise ValueError(f"alpha and gamma must be positive, got {alpha} and {gamma}")

  def step_scale(update, gradient):
    if update.size < min_size:
      return jnp.ones(update.shape, jnp.float32)
    agreement = update.astype(jnp.float32) * gradient.astype(jnp.float32)
    far = agreement >= 0 if cautious else largest(agreement, int(ratio * update.size))
    return jnp.where(far, jnp.float32(alpha), jnp.float32(gamma))

  return step_scale


def largest(x, k: int):
  """bool like x (float32): exactly the k largest entries; of equal ones those of lowest flat index.

  The threshold is found bit by bit in 32 counts over x: no sort, and sums are all that devices exchange
  where x is sharded.
  """
  bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)  # one zero, not two
  # Unsigned integers in the order of the floats.
  order = jnp.where(bits < 0, ~bits, bits ^ jnp.int32(-(2**31)))
  order = jax.lax.bitcast_convert_type(order, jnp.uint32)

  def narrow(i, threshold):
    higher = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
    return jnp.where((order >= higher).sum() >= k, higher, threshold)

  threshold = jax.lax.fori_loop(0, 32, narrow, jnp.uint32(0))
  above, equal = order > threshold, order == threshold
  rank = jnp.cumsum(equal.reshape(-1)).reshape(x.shape)
  return above | (equal & (rank <= k - above.sum()))
