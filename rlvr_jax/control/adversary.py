"""Two adversaries over bins of difficulty: one weighs prompts, one shares out rollouts.

A prompt's bin goes by its running pass@k, the share of its last visits with at least one right row. The loss
of a bin is the mean, over its prompts of the step, of the prompt's mean `loss` over rows.

Source: GDRO, arXiv 2601.19280.
"""

from collections.abc import Sequence

import flax.struct
import jax.numpy as jnp

from rlvr_jax.control.joined import joined
from rlvr_jax.core import groups
from rlvr_jax.core.types import Array, Controller

EDGES = (0.1, 0.2, 0.4, 0.6, 0.8, 0.9)


class Bins(flax.struct.PyTreeNode):
  """Where every prompt of the table stands: `window` bytes a prompt."""

  history: Array  # bool [M,H], a ring: whether a visit had a right row
  visits: Array  # int32 [M]
  bin: Array  # int32 [M], -1 before the first visit


def no_bins(num_prompts: int, window: int) -> Bins:
  visits, bin = jnp.zeros(num_prompts, jnp.int32), jnp.full(num_prompts, -1, jnp.int32)
  return Bins(jnp.zeros((num_prompts, window), bool), visits, bin)


def looked_up(bins: Bins):
  """int32 [M]: the bin of each prompt; 0 for one that was never rolled out."""
  return jnp.maximum(bins.bin, 0)


def observed(bins: Bins, tally, edges, margin: float) -> Bins:
  """The bins after a step."""
  window = bins.history.shape[1]
  visited = tally.trials > 0
  now = (jnp.arange(window)[None] == (bins.visits % window)[:, None]) & visited[:, None]
  history = jnp.where(now, (tally.successes > 0)[:, None], bins.history)
  visits = bins.visits + visited
  estimate = history.sum(1) / jnp.clip(visits, 1, window)
  return Bins(
    history, visits, jnp.where(visited, rebinned(bins.bin, estimate, edges, margin), bins.bin)
  )


def rebinned(old, estimate, edges, margin: float):
  """int32: the bin [edge below, edge above) of an estimate, or still the old one unless the estimate is
  `margin` beyond the old one's edge. An old one of -1 is none."""
  edges = jnp.asarray(edges, jnp.float32)
  tolerance = 1e-6  # estimates are fractions: 0.1 must not fall short of itself
  own = jnp.searchsorted(edges, estimate + tolerance, side="right").astype(jnp.int32)
  below = jnp.concatenate([jnp.full(1, -jnp.inf, jnp.float32), edges])[jnp.maximum(old, 0)]
  above = jnp.concatenate([edges, jnp.full(1, jnp.inf, jnp.float32)])[jnp.maximum(old, 0)]
  leaves = (estimate >= above + margin - tolerance) | (estimate <= below - margin + tolerance)
  return jnp.where((old < 0) | leaves, own, old)


def failure(feedback):
  """float32 [N]: 1 - verdict."""
  return 1 - feedback.rows.correct


class BinLosses(flax.struct.PyTreeNode):
  mean: Array  # float32 [bins]
  variance: Array  # float32 [bins], between its prompts
  share: Array  # float32 [bins], of the step's prompts; 0: absent


def bin_losses(feedback, loss, prompt_bin, num: int) -> BinLosses:
  rows = feedback.rows
  there = groups.count(rows.group, rows.valid) > 0
  each = groups.mean(loss(feedback), rows.group, rows.valid)
  prompt = groups.highest(rows.prompt_id.astype(jnp.float32), rows.group, rows.valid)
  bins = prompt_bin[prompt.astype(jnp.int32)]
  mean = groups.mean(each, bins, there, num)
  variance = groups.mean((each - mean[bins]) ** 2, bins, there, num)
  return BinLosses(mean, variance, groups.count(bins, there, num) / jnp.maximum(there.sum(), 1))


def _averaged(old, new, seen, present, rate: float):
  """The running mean of what is present; its first value is taken as it is."""
  return jnp.where(present, jnp.where(seen, (1 - rate) * old + rate * new, new), old)


# --------------------------------------------------------------------------------------------------


class PromptAdversary(flax.struct.PyTreeNode):
  bins: Bins
  loss: Array  # float32 [bins], running
  seen: Array  # bool [bins]


def prompt_weights(
  *,
  base: Controller | None = None,
  loss=failure,
  rate: float = 0.12,
  by_share: bool = True,
  edges: Sequence[float] = EDGES,
  window: int = 100,
  margin: float = 0.03,
) -> Controller:
  """Knobs "prompt_bin" int32 [M] and "bin_loss" float32 [bins], for weights by bin: see recipes.gdro.

  Args:
    base: a controller whose knobs are there too.
    loss: (feedback) -> float32 [N].
    rate: of the running mean, in (0, 1].
    by_share: a bin's loss is divided by its share of the prompts, so that a rare bin is not forgotten.
    edges: between bins, rising.
    window: visits that the pass rate is taken over.
    margin: a prompt leaves its bin only when its pass rate is this far beyond the edge.
  """
  _check(rate, edges, window, margin)
  num = len(edges) + 1

  def init(table):
    bins = no_bins(len(table.length), window)
    return PromptAdversary(bins, jnp.zeros(num, jnp.float32), jnp.zeros(num, bool))

  def update(state, feedback):
    new = bin_losses(feedback, loss, looked_up(state.bins), num)
    present = new.share > 0
    mean = new.mean / jnp.where(present, new.share, 1.0) if by_share else new.mean
    return PromptAdversary(
      observed(state.bins, feedback.tally, edges, margin),
      _averaged(state.loss, mean, state.seen, present, rate),
      state.seen | present,
    )

  value = lambda state: {"prompt_bin": looked_up(state.bins), "bin_loss": state.loss}
  return joined(base, Controller(init, value, update))


class RolloutAdversary(flax.struct.PyTreeNode):
  bins: Bins
  score: Array  # float32 [bins, A]
  price: Array  # float32 [], of one rollout a prompt above the mean
  loss: Array  # float32 [bins], running
  variance: Array  # float32 [bins], running
  seen: Array  # bool [bins]


def rollout_arms(
  *,
  base: Controller | None = None,
  mean: float = 4.0,
  low: int = 2,
  high: int = 12,
  loss=failure,
  rate: float = 0.12,
  price_rate: float = 0.05,
  edges: Sequence[float] = EDGES,
  window: int = 50,
  margin: float = 0.03,
) -> Controller:
  """Knobs "prompt_bin" int32 [M], "bin_loss" and "bin_variance" float32 [bins] and "arm_score" [bins, A]: see
  allocate.bins. Arm a of a bin is low + a rollouts for each of its prompts.

      score_b,n <- score_b,n + loss_b - running loss_b - price (n - mean),    for the n that bin b had
      price <- price + price_rate (realised mean - mean)

  Less the running loss, since a score that can only rise would keep every bin at the arm it began with.

  Args:
    base: a controller whose knobs are there too.
    mean: rollouts a prompt that the budget allows.
    low, high: of allocate.bins.binned.
    loss, rate, edges, window, margin: of `prompt_weights`; losses are not divided by shares.
    price_rate: at least 0.
  """
  _check(rate, edges, window, margin)
  if not 1 <= low <= mean <= high:
    raise ValueError(f"need 1 <= low <= mean <= high, got {low}, {mean} and {high}")
  num, arms = len(edges) + 1, high - low + 1

  def init(table):
    zeros = lambda: jnp.zeros(num, jnp.float32)  # each its own: the state is donated
    scores = jnp.zeros((num, arms), jnp.float32)
    bins = no_bins(len(table.length), window)
    price, unseen = jnp.zeros((), jnp.float32), jnp.zeros(num, bool)
    return RolloutAdversary(bins, scores, price, zeros(), zeros(), unseen)

  def update(state, feedback):
    bin, drawn = looked_up(state.bins), feedback.tally.drawn.astype(jnp.float32)
    new = bin_losses(feedback, loss, bin, num)
    present = new.share > 0
    had = groups.highest(drawn, bin, drawn > 0, num)
    arm = jnp.clip(had - low, 0, arms - 1).astype(jnp.int32)
    surprise = jnp.where(state.seen, new.mean - state.loss, 0.0)
    gain = jnp.where(present, surprise - state.price * (had - mean), 0.0)
    realised = drawn.sum() / jnp.maximum((drawn > 0).sum(), 1)
    return RolloutAdversary(
      observed(state.bins, feedback.tally, edges, margin),
      state.score.at[jnp.arange(num), arm].add(gain),
      state.price + price_rate * (realised - mean),
      _averaged(state.loss, new.mean, state.seen, present, rate),
      _averaged(state.variance, new.variance, state.seen, present, rate),
      state.seen | present,
    )

  def value(state):
    return {
      "prompt_bin": looked_up(state.bins),
      "arm_score": state.score,
      "bin_loss": state.loss,
      "bin_variance": state.variance,
    }

  return joined(base, Controller(init, value, update))


def _check(rate, edges, window, margin):
  if not 0 < rate <= 1 or window < 1 or margin < 0:
    raise ValueError(
      f"need rate in (0, 1], window >= 1 and margin >= 0, got {rate}, {window} and {margin}"
    )
  if not edges or list(edges) != sorted(set(edges)):
    raise ValueError(f"edges must rise, got {tuple(edges)}")
