"""Hierarchical beliefs: a prompt borrows from the prompts of its source and difficulty."""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.core.types import Array, Belief, BeliefModel
from rlvr_jax.posterior.verdicts import counts


class HierarchicalState(flax.struct.PyTreeNode):
  successes: Array  # float32 [M], discounted
  failures: Array  # float32 [M], discounted
  cell: Array  # int32 [M], the source and difficulty of each prompt
  source: Array  # int32 [cells]
  mean: Array  # float32 [cells], of the solve rates of the cell's prompts
  strength: Array  # float32 [cells], rollouts that this mean counts for


class _Law(NamedTuple):
  """Of the solve rates of many prompts: their mean, and the correlation of two rollouts of one prompt."""

  mean: Array
  correlation: Array


def hierarchical(
  *, keep: float = 0.9, borrow: float = 8.0, least: float = 0.5, most: float = 32.0
) -> BeliefModel:
  """Beta beliefs whose prior is learned from the other prompts: empirical Bayes by the method of moments.

  Prompt i of cell c (a source and a difficulty) has the prior Beta(s_c mu_c, s_c (1 - mu_c)). After each
  step mu and s are estimated anew, from n_i rollouts and k_i successes of each prompt, for all prompts
  together, then for each source, then for each cell. With sums over the C prompts that were rolled out,
  N = sum n, m = sum k / N, q = N - sum n^2 / N,

      S = sum n (k/n - m)^2,     E S = m (1 - m) ((1 - rho)(C - 1) + rho q)
      rho = (S / m (1 - m) - (C - 1) + borrow rho_above) / (q - (C - 1) + borrow)
      mu = (N' m + borrow mu_above) / (N' + borrow),     N' = N / (1 + (sum n^2 / N - 1) rho_above)
      s = 1 / rho - 1, held within [least, most]

  rho is the correlation of two rollouts of one prompt, N' what N rollouts are worth, so correlated.
  What has few rollouts thus takes the numbers of what it is part of; above all is the uniform law.

  Args:
    keep: in (0, 1]; a prompt's counts are multiplied by it each time it is rolled out.
    borrow: rollouts that the numbers from above count for; positive.
    least, most: bounds of s, positive.

  Source: moments of beta-binomial counts of unequal sizes, Kleinman, JASA 68 (1973); the design effect in
  N' is Kish's.
  """
  if not 0 < keep <= 1:
    raise ValueError(f"keep must lie in (0, 1], got {keep}")
  if borrow <= 0:
    raise ValueError(f"borrow must be positive, got {borrow}")
  if not 0 < least <= most:
    raise ValueError(f"0 < least <= most must hold, got {least} and {most}")

  def fit(sums: Array, above: _Law) -> _Law:
    """The law of each of several sets of prompts, of which `sums` [5,...] are known."""
    prompts, n, k, n_squared, k_squared = sums
    some = jnp.maximum(n, 1e-6)
    size = n_squared / some
    worth = n / (1 + jnp.maximum(size - 1, 0.0) * above.correlation)
    mean = (worth * k / some + borrow * above.mean) / (worth + borrow)
    free = jnp.maximum(prompts - 1, 0.0)
    m = k / some
    spread = jnp.maximum(k_squared - n * m * m, 0.0)
    unit = m * (1 - m)
    excess = jnp.where(unit > 1e-6, spread / jnp.maximum(unit, 1e-6), free) - free
    room = jnp.maximum(n - size - free, 0.0)
    rho = (excess + borrow * above.correlation) / (room + borrow)
    return _Law(mean, jnp.clip(rho, 1 / (most + 1), 1 / (least + 1)))

  def init(table):
    source = np.asarray(table.source)
    level = np.zeros_like(source) if table.difficulty is None else np.asarray(table.difficulty)
    levels = int(level.max()) + 1
    num = (int(source.max()) + 1) * levels
    zeros = lambda: jnp.zeros(len(source), jnp.float32)
    return HierarchicalState(
      successes=zeros(),
      failures=zeros(),
      cell=jnp.asarray(source * levels + level, jnp.int32),
      source=jnp.arange(num, dtype=jnp.int32) // levels,
      mean=jnp.full(num, 0.5, jnp.float32),
      strength=jnp.full(num, min(max(2.0, least), most), jnp.float32),
    )

  def update(state, tally):
    trials, right = counts(tally)
    left = jnp.where(trials > 0, keep, 1.0)
    successes = left * state.successes + right
    failures = left * state.failures + (trials - right)
    n, k = successes + failures, successes
    each = jnp.stack([(n > 0).astype(n.dtype), n, k, n * n, k * k / jnp.maximum(n, 1e-6)], 1)
    cells = len(state.source)
    by_cell = jax.ops.segment_sum(each, state.cell, cells).T
    by_source = jax.ops.segment_sum(by_cell.T, state.source, cells).T
    law = fit(by_source.sum(1), _Law(jnp.float32(1 / 2), jnp.float32(1 / 3)))
    law = fit(by_source, law)
    law = fit(by_cell, jax.tree.map(lambda x: x[state.source], law))
    return state.replace(
      successes=successes, failures=failures, mean=law.mean, strength=1 / law.correlation - 1
    )

  def belief(state, prompt_id):
    cell = state.cell[prompt_id]
    mean, strength = state.mean[cell], state.strength[cell]
    a = strength * mean + state.successes[prompt_id]
    b = strength * (1 - mean) + state.failures[prompt_id]
    n = a + b
    return Belief(mean=a / n, variance=a * b / (n * n * (n + 1)), evidence=n)

  return BeliefModel(init, update, belief)
