"""Choosing steps of reasoning: weights of 0 for the steps whose credit cannot be trusted."""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits


def step_ids(rows, *, separators=(), think_end: int = -1, max_steps: int = 256):
  """int32 [N,T]: the step of each trained token of the thinking part; -1 elsewhere.

  The thinking part is what comes before the first `think_end`; if there is none, all trained tokens but
  the last. A separator ends a step and belongs to it.

  Args:
    separators: token ids whose text holds a blank line.
    think_end: token id.
    max_steps: later steps are merged into the last one.
  """
  mask = rows.loss_mask
  ended = mask & (rows.tokens == think_end)
  before = jnp.cumsum(ended, 1) == 0
  index, total = jnp.cumsum(mask, 1), mask.sum(1)[:, None]
  thinking = mask & before & (ended.any(1)[:, None] | (index < total))
  ends = thinking & jnp.isin(rows.tokens, jnp.asarray(separators, jnp.int32))
  step = jnp.minimum(jnp.cumsum(ends, 1) - ends, max_steps - 1)
  return jnp.where(thinking, step, -1)


def mean_logprob(key, x, step, num_steps):
  """Confidence of each step: mean log-prob of its tokens. x, step [N,T] -> [N,num_steps]."""
  del key
  return _sums(x, step, num_steps) / jnp.maximum(_sums(jnp.ones_like(x), step, num_steps), 1.0)


def steadiness(key, x, step, num_steps):
  """Confidence of each step: minus the standard deviation of its tokens' log-probs."""
  mean = mean_logprob(key, x, step, num_steps)
  d = x - jnp.take_along_axis(mean, jnp.maximum(step, 0), 1)
  return -jnp.sqrt(mean_logprob(key, d * d, step, num_steps))


def shuffled(key, x, step, num_steps):
  """No confidence but a random order: the ablation."""
  del step
  return jax.random.uniform(key, (len(x), num_steps))


def _sums(x, step, num_steps):
  """float32 [N,num_steps]: sum of x over the tokens of each step."""
  at = jnp.where(step < 0, num_steps, step)
  add = lambda v, i: jnp.zeros(num_steps, jnp.float32).at[i].add(v, mode="drop")
  return jax.vmap(add)(x, at)


def sure_steps(
  *,
  ratio: float = 0.3,
  separators=(),
  think_end: int = -1,
  max_steps: int = 256,
  confidence=mean_logprob,
  right: bool = True,
  wrong: bool = True,
):
  """No credit for the unsure steps of a correct row, nor for the sure steps of a failed one.

  Of the S steps of the thinking part a correct row loses the ceil(ratio S) least confident, a failed one
  the floor(ratio S) most confident; ties go by position, the earlier step counting as less confident. What
  follows the thinking part keeps its weight. The denominator of the loss does not change.

  Args:
    ratio: in [0, 1]; 0 is weigh.all_tokens.
    separators, think_end, max_steps: see step_ids.
    confidence: mean_logprob, steadiness or shuffled, of the log-probs at sampling.
    right, wrong: whether correct and failed rows are treated.

  Source: SAS, arXiv 2604.24003.
  """
  if not 0 <= ratio <= 1:
    raise ValueError(f"ratio must lie in [0, 1], got {ratio}")
  if max_steps < 1:
    raise ValueError(f"max_steps must be at least 1, got {max_steps}")

  def weigh(key, rows, advantage, knobs):
    del advantage, knobs
    most = min(max_steps, rows.tokens.shape[1])
    step = step_ids(rows, separators=separators, think_end=think_end, max_steps=most)
    x = masked.select(rows.full_logprobs, rows.loss_mask)
    total = step.max(1) + 1
    there = jnp.arange(most)[None] < total[:, None]
    sure = jnp.where(there, confidence(key, x, step, most), jnp.inf)
    rank = jnp.argsort(jnp.argsort(sure, 1, stable=True), 1)  # 0: least confident
    cut = jnp.ceil(ratio * total.astype(jnp.float32) * (1 - 2e-7)).astype(jnp.int32)
    keep = jnp.ceil((1 - ratio) * total.astype(jnp.float32) * (1 - 2e-7)).astype(jnp.int32)
    solved = rows.correct[:, None] > 0
    lost = jnp.where(solved, right & (rank < cut[:, None]), wrong & (rank >= keep[:, None])) & there
    gone = jnp.take_along_axis(lost, jnp.maximum(step, 0), 1) & (step >= 0)
    return (rows.loss_mask & ~gone).astype(jnp.float32)

  return traits.declare(weigh, denominator="every")
