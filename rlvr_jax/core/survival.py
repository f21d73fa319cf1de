"""Which rows of a group go on when some have to stop: a quality head, its calibration, balanced survival.

Source: ARRoL, arXiv 2603.24840, for the parts and their purpose; the formulas are ours.
"""

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import groups
from rlvr_jax.core.types import Array

BOUND = 50.0  # of theta: beyond it the highest, or lowest, survive almost surely
STEPS = 60  # of each bisection


class Head(flax.struct.PyTreeNode):
  """A small network from features to the logit of success."""

  w1: Array  # float32 [F,H]
  b1: Array  # float32 [H]
  w2: Array  # float32 [H]
  b2: Array  # float32 []


class Quality(flax.struct.PyTreeNode):
  """What is known of how a half-written response ends."""

  head: Head
  right: Array  # float32 [bins], weight of right rows of each score
  seen: Array  # float32 [bins], of all
  acts: Array  # int32 [], 0 while there is too little of it

  def knobs(self) -> dict[str, Array]:
    """As knobs, each an array."""
    head = {name: getattr(self.head, name) for name in ("w1", "b1", "w2", "b2")}
    rest = {"right": self.right, "seen": self.seen, "acts": self.acts}
    return {f"quality/{name}": value for name, value in (head | rest).items()}

  @classmethod
  def of_knobs(cls, knobs) -> "Quality":
    of = lambda name: knobs[f"quality/{name}"]
    head = Head(of("w1"), of("b1"), of("w2"), of("b2"))
    return cls(head, of("right"), of("seen"), of("acts"))


def new_head(key, features: int, width: int) -> Head:
  zeros = lambda *shape: jnp.zeros(shape, jnp.float32)
  w1 = jax.random.normal(key, (features, width), jnp.float32) / features**0.5
  return Head(w1, zeros(width), zeros(width), zeros())


def logit(head: Head, features) -> Array:
  """float32 [N] for features [N,F]."""
  return jax.nn.gelu(features @ head.w1 + head.b1[None]) @ head.w2 + head.b2


def project(hidden, size: int) -> Array:
  """float32 [N,size]: hidden states [N,E] of unit scale, through a random matrix that is always the same."""
  width = hidden.shape[1]
  hidden = hidden / jnp.sqrt((hidden * hidden).mean(1, keepdims=True) + 1e-6)
  matrix = jax.random.normal(jax.random.key(0), (width, size), jnp.float32) / width**0.5
  return hidden @ matrix


def bin_of(score, num: int) -> Array:
  """int32 [N]: the bin of scores in [0, 1]."""
  return jnp.minimum((num * score).astype(jnp.int32), num - 1)


def posterior(right, seen, score) -> Array:
  """float32 [N]: probability of success of rows of these scores, by the mean of a Beta(1, 1) of their bin."""
  b = bin_of(score, len(seen))
  return (right[b] + 1) / (seen[b] + 2)


def tilted(p, group, active, places, share) -> Array:
  """float32 [N]: probability that each active row survives.

      s_n = min(1, c exp(theta (p_n - mean p)))

  with c such that the s of a group sum to its `places`, and theta such that the expected share of right rows
  among the survivors, sum p s / sum s, is `share`, or as near as it gets.

  Args:
    p: float32 [N].
    group, active: [N]; places, share: float32, one a group [N].
  """
  size = groups.count(group, active)
  all_stay, none = places >= size, places <= 0
  mean = groups.mean(p, group, active)
  lean = jnp.where(active, p - mean[group], 0.0)
  total = lambda x: groups.total(x, group, active)

  def survive(theta):
    power = theta[group] * lean

    def halve(_, bounds):
      low, high = bounds
      c = (low + high) / 2
      much = total(jnp.exp(jnp.minimum(c[group] + power, 0.0))) > places
      return jnp.where(much, low, c), jnp.where(much, c, high)

    start = jnp.full_like(mean, -2 * BOUND - 20), jnp.full_like(mean, 2 * BOUND)
    low, high = jax.lax.fori_loop(0, STEPS, halve, start)
    return jnp.exp(jnp.minimum(((low + high) / 2)[group] + power, 0.0))

  def halve(_, bounds):
    low, high = bounds
    theta = (low + high) / 2
    s = survive(theta)
    much = total(p * s) > share * total(s)
    return jnp.where(much, low, theta), jnp.where(much, theta, high)

  start = jnp.full_like(mean, -BOUND), jnp.full_like(mean, BOUND)
  low, high = jax.lax.fori_loop(0, STEPS, halve, start)
  s = survive((low + high) / 2)
  s = jnp.where(all_stay[group], 1.0, jnp.where(none[group], 0.0, s))
  return jnp.where(active, s, 0.0)


def systematic(s, group, active, u) -> Array:
  """bool [N]: a draw of so many rows of each group as its s sum to, row n with probability s_n.

  Args:
    u: float32 [N] in [0, 1), equal within a group.
  """
  rank = groups.rank(group, active)
  upto = (group[:, None] == group[None]) & active[None] & (rank[None] <= rank[:, None])
  c = _whole(jnp.where(upto, s[None], 0.0).sum(1))
  before = _whole(jnp.where(upto & (rank[None] < rank[:, None]), s[None], 0.0).sum(1))
  return active & (jnp.ceil(c - u) > jnp.ceil(before - u))


def _whole(x):
  """x, and the whole number where rounding alone keeps it from one."""
  near = jnp.round(x)
  return jnp.where(jnp.abs(x - near) < 1e-4, near, x)
