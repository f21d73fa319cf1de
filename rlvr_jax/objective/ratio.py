"""Losses from a ratio of policies.

    d = log pi - log anchor     of each token (objective.anchors)
    u = scope(d, mask)          over a token, its prefix or its row (objective.scopes)
    l = mode(u, A, bounds)      PPO, CISPO, GMPO, ... (objective.modes) within an interval (objective.bounds)

loss(stats, rows, advantage, knobs) -> (float32 [N,T], metrics), where a row's loss depends on that row
alone. Everything outside `rows.loss_mask` may hold anything; it is masked before it is used.
"""

import jax
import jax.numpy as jnp

from rlvr_jax.core import masked, traits
from rlvr_jax.core.types import Objective
from rlvr_jax.objective import anchors, modes, scopes
from rlvr_jax.objective import bounds as intervals


def log_ratio(stats, rows):
  """float32 [N,T]: log of policy now / policy at sampling; 0 outside the mask. See anchors.sampled."""
  return anchors.difference(stats.logprobs, rows.full_logprobs, rows.loss_mask)


def surrogate(
  *, scope=None, bounds=None, mode=None, anchor=None, correction=None, veto=None
) -> Objective:
  """The family: one choice for each part.

  Args:
    scope: of objective.scopes; default token().
    bounds: of objective.bounds; default clip().
    mode: of objective.modes; default ppo().
    anchor: of objective.anchors; default sampled().
    correction: None, or anchors.correction(): a weight of each token's loss.
    veto: None, or a function (d, advantage, mask) -> bool [N,T]: the tokens that keep their loss, for
      instance keep.veto.stale_suffix().

  A veto and a correction leave the denominator of the loss as it is.
  """
  scope, mode = scope or scopes.token(), mode or modes.ppo()
  bounds, anchor = bounds or intervals.clip(), anchor or anchors.sampled()
  pieces = [piece for piece in (scope, bounds, mode, anchor, correction, veto) if piece]
  survey_bounds = traits.trait(bounds, "survey")

  def loss(stats, rows, advantage, knobs):
    del knobs
    mask = rows.loss_mask
    a = masked.select(advantage, mask)
    d = anchors.difference(stats.logprobs, anchor(rows), mask)
    u = scope(d, mask)
    low, high = bounds(jax.lax.stop_gradient(u), a, rows)
    terms = modes.Terms(masked.select(stats.logprobs, mask), d, u, a, mask, low, high, scope)
    per_token, bounded = mode(terms)
    metrics = _metrics(log_ratio(stats, rows), jnp.exp(bounded), terms, mode)
    kept = mask
    if correction:
      log_weight = traits.trait(mode, "joins", anchors.each_token)(correction(rows), mask)
      log_weight = jnp.where(mask, log_weight, -jnp.inf)
      per_token, kept = per_token * jnp.exp(log_weight), kept & (log_weight > -jnp.inf)
    if veto:
      kept &= veto(jax.lax.stop_gradient(d), a, mask)
    if correction or veto:
      metrics["policy/vetoed_frac"] = masked.mean(~kept, mask)
    return masked.select(per_token, kept), metrics

  def survey(rows):
    mask = rows.loss_mask
    d = anchors.difference(traits.logprobs_of(rows, "old"), anchor(rows), mask)
    whole = traits.trait(scope, "reads") == "row"
    once = mask & (jnp.cumsum(mask, 1) == 1) if whole else mask
    return survey_bounds(scope(d, mask), once, rows)

  return Objective(
    loss,
    needs_advantage=True,
    reads=traits.widest(pieces),
    needs=traits.needs(*pieces),
    survey=survey if survey_bounds else None,
  )


def _metrics(d, bounded, terms, mode):
  """Of the ratio to the policy that sampled, and of the ratio that the bounds are for."""
  a, mask = terms.advantage, terms.mask
  up, down = (True, True) if traits.trait(mode, "two_sided") else (a > 0, a < 0)
  return {
    "policy/clip_frac_high": masked.mean(up & (bounded > terms.high), mask),
    "policy/clip_frac_low": masked.mean(down & (bounded < terms.low), mask),
    "policy/kl_old": masked.mean(jnp.exp(d) - 1 - d, mask),  # k3, of KL(sampled, now)
    "policy/ratio_max": masked.highest(jnp.exp(d), mask),
  }


def clipped(*, low: float = 0.2, high: float = 0.2, dual: float = 0.0) -> Objective:
  """PPO's clipped surrogate on each token.

      rho = pi / pi_old,    loss = max(-A rho, -A clip(rho, 1 - low, 1 + high))

  Args:
    low: in [0, 1].
    high: at least 0; more than `low` is DAPO's clip-higher.
    dual: see modes.ppo.

  Source: PPO, arXiv 1707.06347; clip-higher: DAPO, arXiv 2503.14476.
  """
  return surrogate(bounds=intervals.clip(low=low, high=high), mode=modes.ppo(dual=dual))
