"""Beliefs that drift: solve rates as logits on a random walk, and how long a prompt's rollouts are."""

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts

# Gauss-Hermite: E f(x) of a standard normal x is about sum(WEIGHTS f(NODES)), exact for powers up to 9.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(5)
NODES, WEIGHTS = _NODES.astype(np.float32), (_WEIGHTS / _WEIGHTS.sum()).astype(np.float32)
_NEWTON = 8  # steps to the mode; the last ones move by rounding alone
_FEW = 4.0  # prompts that a source borrows from all


class LogitNormalState(flax.struct.PyTreeNode):
  mean: Array  # float32 [M], of the logit; of a prompt never seen, nothing
  variance: Array  # float32 [M], of the logit; 0: never seen
  drawn: Array  # float32 [M], rollouts, discounted
  tokens: Array  # float32 [M], their response tokens
  source: Array  # int32 [M]
  centre: Array  # float32 [sources], of the logits of a source's prompts
  spread: Array  # float32 [sources], their variance
  length: Array  # float32 [sources], response tokens of a rollout; 0: not known


def logit_normal(
  *, walk: float = 0.05, common: float = 0.05, spread: float = 4.0, keep: float = 0.7,
  borrow: float = 4.0,
) -> BeliefModel:  # fmt: skip
  """A state space model of every prompt's solve rate p = sigmoid(x).

      x_i <- x_i + l_s + N(0, walk)  a step,    l_s ~ N(0, common),    verdicts ~ Bernoulli(sigmoid(x_i))

  A step adds `walk` to every variance (no further than the source's spread), moves the prompts that were
  rolled out to the mode of their posterior (Newton), with the curvature there for variance v', and tells the
  others of the source what those have in common:

      e_i = x'_i - x_i,   k_i = 1 - v'_i / v_i,   l_s = sum e_i / v_i / (sum k_i / v_i + 1 / common)

  x_i + e_i + (1 - k_i) l_s is then the posterior given the common move, with k_i = 0 and e_i = 0 where
  nothing was seen. A prompt never seen has the law of its source, N(centre, spread), whose moments are those
  of the prompts that were (the variance of their means plus the mean of their variances), each source
  borrowing from all, and all from N(0, `spread`), the weight of four prompts.

  The response tokens of a rollout are predicted by a mean over the prompt's rollouts, which takes the mean of
  its source for `borrow` rollouts; 1 as long as nothing is known.

  Args:
    walk: variance that a step adds to a logit; at least 0.
    common: variance of a source's common move in a step; positive.
    spread: variance of logits before anything is known; positive.
    keep: in (0, 1]; tokens and rollouts of a prompt are multiplied by it each time it is rolled out.
    borrow: positive.

  Source: the Laplace approximation of a binomial observation in a Kalman filter (West, Harrison and Migon,
  JASA 80 (1985)); the common move and what is borrowed are ours, derived in docs/token_value.md.
  """
  if walk < 0 or common <= 0 or spread <= 0:
    raise ValueError(
      f"walk must be at least 0, common and spread positive: got {walk}, {common} and {spread}"
    )
  if not 0 < keep <= 1 or borrow <= 0:
    raise ValueError(f"keep must lie in (0, 1] and borrow be positive, got {keep} and {borrow}")

  def init(table):
    source = np.asarray(table.source)
    zeros = lambda num: jnp.zeros(num, jnp.float32)
    num, sources = len(source), int(source.max(initial=0)) + 1
    return LogitNormalState(
      mean=zeros(num),
      variance=zeros(num),
      drawn=zeros(num),
      tokens=zeros(num),
      source=jnp.asarray(source, jnp.int32),
      centre=zeros(sources),
      spread=jnp.full(sources, spread, jnp.float32),
      length=zeros(sources),
    )

  def update(state, tally):
    trials, successes = counts(tally)
    by_source = lambda x: jax.ops.segment_sum(x, state.source, len(state.centre))
    seen, visited = state.variance > 0, trials > 0
    mean, variance = _laws(state)
    # No vaguer than a prompt never seen, unless it was so before.
    top = jnp.maximum(variance, state.spread[state.source])
    variance = jnp.where(seen, jnp.minimum(variance + walk, top), variance)
    mode, left = observe(mean, variance, trials, successes)
    moved, known = mode - mean, 1 - left / variance
    both = by_source(jnp.stack([moved / variance, known / variance], 1))
    move = (both[:, 0] / (both[:, 1] + 1 / common))[state.source]
    seen |= visited
    mean = jnp.where(seen, mode + (1 - known) * move, 0.0)
    variance = jnp.where(seen, left, 0.0)
    centre, spread_ = _moments(mean, variance, seen, by_source)
    drawn, tokens, length = _lengths(state, tally, by_source)
    return LogitNormalState(mean, variance, drawn, tokens, state.source, centre, spread_, length)

  def _moments(mean, variance, seen, by_source):
    there = jnp.where(seen, 1.0, 0.0)
    num, first, second = by_source(
      jnp.stack([there, there * mean, there * (mean * mean + variance)], 1)
    ).T

    def pooled(num, first, second, centre, spread):
      """Moments with _FEW more prompts of the given law."""
      n = num + _FEW
      m = (first + _FEW * centre) / n
      return m, (second + _FEW * (spread + centre * centre)) / n - m * m

    whole = pooled(num.sum(), first.sum(), second.sum(), 0.0, spread)
    return pooled(num, first, second, *whole)

  def _lengths(state, tally, by_source):
    left = jnp.where(tally.drawn > 0, keep, 1.0)
    drawn = left * state.drawn + tally.drawn
    tokens = left * state.tokens + tally.tokens
    sums = by_source(jnp.stack([drawn, tokens], 1))
    overall = sums[:, 1].sum() / jnp.maximum(sums[:, 0].sum(), 1e-6)
    length = (sums[:, 1] + borrow * overall) / (sums[:, 0] + borrow)
    return drawn, tokens, length

  def belief(state, prompt_id):
    mine = state.replace(
      mean=state.mean[prompt_id],
      variance=state.variance[prompt_id],
      source=state.source[prompt_id],
    )
    mean, variance = _laws(mine)
    p, spread = rate(mean, variance)
    length = state.length[mine.source]
    drawn, tokens = state.drawn[prompt_id], state.tokens[prompt_id]
    expected = (tokens + borrow * length) / (drawn + borrow)
    return Belief(
      mean=p,
      variance=spread,
      # Rollouts that a Beta law of this mean and variance counts for.
      evidence=jnp.maximum(p * (1 - p) / spread - 1, 1e-3),
      tokens=jnp.where(length > 0, jnp.maximum(expected, 1.0), 1.0),
    )

  return BeliefModel(init, update, belief)


def _laws(state: LogitNormalState):
  """Mean and variance of every logit; those of its source for a prompt never seen."""
  seen = state.variance > 0
  mean = jnp.where(seen, state.mean, state.centre[state.source])
  return mean, jnp.where(seen, state.variance, state.spread[state.source])


def observe(mean: Array, variance: Array, trials: Array, successes: Array):
  """Mode x and variance 1 / (n p (1 - p) + 1 / v) of N(x; mean, v) p^successes (1 - p)^(n - successes)."""

  def curvature(x):
    p = jax.nn.sigmoid(x)
    return p, trials * p * (1 - p) + 1 / variance

  def newton(_, x):
    p, curve = curvature(x)
    step = (successes - trials * p - (x - mean) / variance) / curve
    return x + jnp.clip(step, -2.0, 2.0)  # far from the mode a whole step would overshoot

  mode = jax.lax.fori_loop(0, _NEWTON, newton, mean)
  return mode, 1 / curvature(mode)[1]


def rate(mean: Array, variance: Array) -> tuple[Array, Array]:
  """Mean and variance of sigmoid(x), x ~ N(mean, variance), by Gauss-Hermite quadrature with five nodes."""
  p = jax.nn.sigmoid(mean[:, None] + jnp.sqrt(variance)[:, None] * NODES[None])
  m = p @ WEIGHTS
  return m, jnp.maximum(jnp.square(p - m[:, None]) @ WEIGHTS, 1e-9)
