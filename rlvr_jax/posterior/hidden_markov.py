"""Hidden Markov beliefs: each prompt moves between states of solve rate as the policy learns."""

import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.table import unknown
from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior import emission as emissions
from rlvr_jax.posterior.verdicts import counts


class MarkovState(flax.struct.PyTreeNode):
  # Prompts lie last: sums over K are then sums of long vectors.
  moves: Array  # float32 [K,K,M], counts of moves, [to, from], the prior's included
  prior: Array  # float32 [K,M], belief about the state of the coming step
  last: Array  # float32 [K,M], belief about the state of the last step, its verdicts included


def _apart(k):
  """How many states lie between two, upwards: to - from."""
  return np.arange(k)[:, None] - np.arange(k)[None]


STARTS = {  # name -> (states K) -> counts of moves before any was seen, [K,K]
  "uniform": lambda k: np.ones((k, k)),
  "progress": lambda k: np.where(_apart(k) >= 0, 1.0, 0.5),
  "stability": lambda k: np.where(_apart(k) == 0, 1.0, 0.5),
  "local": lambda k: np.where(abs(_apart(k)) <= 1, 1.0, 0.0),
}


def hidden_markov(
  *, states: int = 3, keep: float = 0.7, start: str = "uniform", emission=None
) -> BeliefModel:
  """A filter over K states for each prompt, which learns how that prompt moves between them.

      moves <- keep moves + (1 - keep) start + xi
      prior <- P last,   P: the columns of moves, divided by their sums

  where xi [to, from] is the probability of the move of this step given its verdicts, 0 for a prompt that
  was not rolled out; such a prompt's belief drifts to what its moves lead to in the long run, by which it
  comes back. Verdicts that moves of no weight lead to (start "local") count no move.

  The mean belief is the mean over the states of their rates (posterior.emission.rates). With three states
  and `exact`, mean (1 - mean) - variance is a quarter of the probability of the middle one.

  Args:
    states: K, at least 3: never solved, K - 2 equal parts of the rates between, always solved.
    keep: in [0, 1], how much of the moves stays from step to step; 1 forgets nothing.
    start: a name of STARTS, the moves believed in before any was seen.
    emission: of posterior.emission, with the same K; default `exact`.

  Source: DPS, arXiv 2603.10887, for three states and `exact`; more states and other emissions are ours.
  """
  if states < 3:
    raise ValueError(f"states must be at least 3, got {states}")
  if not 0 <= keep <= 1:
    raise ValueError(f"keep must lie in [0, 1], got {keep}")
  if start not in STARTS:
    raise unknown("start", start, STARTS)
  likelihood = emission or emissions.exact(states=states)
  moves_0 = STARTS[start](states).astype(np.float32)
  rate = emissions.rates(states)

  def init(table):
    m = len(table.length)
    even = lambda: jnp.full((states, m), 1 / states, jnp.float32)
    moves = jnp.tile(jnp.asarray(moves_0)[:, :, None], (1, 1, m))
    return MarkovState(moves, even(), even())

  def update(state, tally):
    trials, successes = counts(tally)
    seen = trials > 0
    likely = likelihood(trials, successes)
    if likely.shape[0] != states:
      raise ValueError(f"the emission is of {likely.shape[0]} states, the belief of {states}")
    # Verdicts that the prior rules out are believed all the same.
    likely = jnp.where(seen[None], likely, 1.0)
    now = _shares(likely * state.prior, _shares(likely, state.prior))
    share = state.last / _sum(state.moves)  # of each count in a column, what came from there
    total = lambda: _sum(likely * _over_from(state.moves, share))
    # A condition, since what comes out of it is computed once: XLA would fuse it into each use.
    total = jax.lax.cond(seen.any(), total, lambda: jnp.zeros(len(seen), jnp.float32))
    counted = seen & (total > 0)
    likely = jnp.where(counted, 1 / jnp.where(counted, total, 1.0), 0.0)[None] * likely
    xi = state.moves * (likely[:, None] * share[None])
    moves = keep * state.moves + (1 - keep) * moves_0[:, :, None] + xi
    prior = _over_from(moves, now / _sum(moves))
    return MarkovState(moves, prior, now)

  def belief(state, prompt_id):
    # Row by row: gathers of several rows at once are slow on a CPU.
    p = [row[prompt_id] for row in state.prior]
    mean = _sum([q * r for q, r in zip(p, rate)])
    variance = _sum([q * jnp.square(r - mean) for q, r in zip(p, rate)])
    return Belief(
      mean=mean,
      variance=variance,
      evidence=_sum([row[prompt_id] for some in state.moves for row in some]),
    )

  return BeliefModel(init, update, belief)


def _sum(x):
  """Over the first axis, unrolled: XLA's reductions over a short axis are slow on a CPU."""
  return functools.reduce(jnp.add, x)


def _over_from(moves, share):
  """[K,M]: sum over `from` of moves [to,from,M] times share [from,M]."""
  return jnp.stack([_sum(row * share) for row in moves])


def _shares(x, otherwise):
  """[K,M], divided by the sum over K; `otherwise` where that is 0."""
  total = _sum(x)
  return jnp.where((total > 0)[None], x / jnp.where(total > 0, total, 1.0)[None], otherwise)
