"""Warnings: what ails a run by its metrics, and what helps.

A rule compares one number with a threshold. INDEX names the pathologies of rollouts and the methods that
answer each, as a diagnostic index from pathology to module and method; ALARMS watch for what is broken
rather than wasteful. A rule holds strictly above (or below) its threshold, by

    severity = value / threshold      where the rule is "above"
               threshold / value      where it is "below"; 99 if value <= 0

at most 99. A metric that is missing or not finite is named as unchecked: it is never called healthy.

Source: the idea of the index is of "Generate, Filter, Control, Replay: A Comprehensive Survey of Rollout
Strategies for LLM Reinforcement Learning" (arXiv 2605.02913); its rules, thresholds and remedies here are
ours.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

WINDOW = (
  20  # steps that a mean is taken over, and that a warning must be absent for to have cleared
)
FIRST = 5  # steps that a "ratio" compares with, and that means wait for


class Rule(NamedTuple):
  """One pathology."""

  name: str
  metric: str  # of the step, or of `derive`
  above: bool  # True: bad above the threshold
  threshold: float
  advice: str  # what to try first
  modules: tuple[str, ...] = ()  # where remedies live
  methods: tuple[str, ...] = ()  # published ones, the most direct first
  window: int = WINDOW  # steps that the value is the mean of
  live: bool = True  # False: said by a diagnosis only, since no run is broken by it


def _rule(name, test, advice, modules="", methods="", **options) -> Rule:
  metric, sign, threshold = test.split()
  places = tuple(modules.split())
  return Rule(
    name, metric, sign == ">", float(threshold), advice, places, tuple(methods.split()), **options
  )


INDEX = (
  _rule(
    "saturated", "group/frac_all_1 > 0.3",
    "many prompts are always solved: skip them, or use harder ones",
    "posterior select allocate", "greso vade dps pilot_commit dapo",
  ),
  _rule(
    "unsolved", "group/frac_all_0 > 0.3",
    "many prompts are never solved: more rollouts or hints for them, or easier ones first",
    "allocate replay/success condition rollout/tree", "dars ar3po far xrpo sage scope adhint brorl",
  ),
  _rule(
    "dead_weight", "group/frac_zero_std > 0.3",
    "groups without differences teach nothing: refill the batch or stop such groups early",
    "keep rollout/prune", "d3s nat arrol aero",
  ),
  _rule(
    "noisy_baseline", "group/size_mean < 5",
    "few rows a group make a poor mean: use a baseline that knows more, or larger groups",
    "advantage heads", "mc_grpo gapo v0_5 poise mssr pvpo distributional_critic", live=False,
  ),
  _rule(
    "coarse_credit", "completion/length_mean > 2000",
    "one reward for thousands of tokens: give credit to parts of a response",
    "advantage/tree advantage/blockwise keep/steps heads",
    "elpo c3po_tree_credit sas blockwise distributional_critic", live=False,
  ),
  _rule(
    "stale", "mismatch/kl_k3 > 0.001",
    "sampler and learner differ: fresher rollouts, equal precision, or a bounded ratio",
    "objective/ratio schedule", "copris areal sat pnpo ppo_ewma ais r3",
  ),
  _rule(
    "collapse", "policy/entropy_ratio < 0.5",
    "entropy has halved: raise clip_high, reward diversity, or lower learning_rate",
    "control reward/diversity condition objective",
    "e3 nudgerl uniqueness meds latr dapo",
  ),
  _rule(
    "overlong", "completion/truncated_frac > 0.1",
    "responses are cut off: raise max_new_tokens, or reward brevity",
    "reward/length rollout/horizon", "soft_compression jet step_grpo shortopd turn_control",
  ),
  _rule(
    "bad_reward", "reward/eval_gap > 0.2",
    "training reward is far above held-out accuracy: read completions, look for a reward that is gamed",
    "reward tasks", "fapo grpo_roc rtv_pdr dare",
  ),
  _rule(
    "long_tail", "completion/tail_ratio > 4",
    "a few long responses hold up the rest: leave off early and resume them later",
    "rollout/partial schedule decode", "april copris seer roll_flash far",
  ),
  _rule(
    "discard", "rollout/waste_frac > 0.2",
    "generated tokens are thrown away: keep them for the next step, or allocate less",
    "replay/partials allocate", "april copris far",
  ),
  _rule(
    "slow_rollout", "time/rollout_share > 0.6",
    "most of the time is sampling: quantise it, draft, or overlap it with learning",
    "decode decode/speculative quant schedule",
    "decode_engine spec_rl efficient_rollout nemo_spec_decoding fp8_rl areal flexmarl", live=False,
  ),
  _rule(
    "recompute", "tokens/reused_frac < 0.05",
    "nothing is reused from step to step",
    "replay rollout/tree", "spec_rl tree_rollout octopus dots_rr trace", live=False,
  ),
  _rule(
    "env_cost", "time/env_share > 0.3",
    "verifiers or environments take much of the step: more verifier_workers, or overlap them",
    "schedule rollout/horizon tasks",
    "webgym prorl_agent turn_control libra rollarc multi_turn",
  ),
  _rule(
    "curriculum", "reward/source_spread > 0.5",
    "some sources are solved and others are not: weigh the sources",
    "select/bandit control/dual", "dump gdro sgpo depo insight",
  ),
  _rule(
    "search_waste", "eval/pass_gap > 0.15",
    "right answers are found and not chosen: better choice among samples",
    "test-time", "agent_test_time rtv_pdr sevra dora rse",
  ),
  _rule(
    "footprint", "memory/peak_frac > 0.9",
    "memory is nearly full: smaller bin_tokens, remat, int8 caches or weights",
    "quant optimizer", "fp8_rl id3",
  ),
)  # fmt: skip

ALARMS = (
  _rule(
    "not_finite", "train/skipped > 0",
    "an update was left out: lower learning_rate or max_grad_norm, or dtype=float32", window=1,
  ),
  # e**0.05: probabilities that differ by 5 % are held to be a bug by NeMo-RL's documentation.
  _rule(
    "mismatch", "mismatch/logp_diff_mean > 0.05",
    "sampler and learner disagree on most tokens: same dtype, cache_dtype and rollout_quant for both",
    "objective/ratio quant", "fp8_rl sat pnpo", window=1,
  ),
  _rule(
    "mismatch_max", "mismatch/logp_diff_max > 3",
    "sampler and learner disagree much on some token: cap or drop such ratios",
    "objective/ratio", "pnpo sat cispo", window=1,
  ),
  _rule(
    "few_effective", "mismatch/ess < 0.8",
    "few tokens carry the importance weights: fresher rollouts, or bounded ratios",
    "objective/ratio schedule", "cispo sat gspo", window=1,
  ),
  _rule(
    "ratio_extreme", "policy/ratio_max > 10",
    "a token's probability grew tenfold within a batch: fewer updates a batch, lower learning_rate",
    "objective/ratio", "cispo gmpo gspo", window=1,
  ),
  _rule(
    "kl_old", "policy/kl_old > 0.1",
    "an update moves far: lower learning_rate, tighter clipping, fewer updates a batch",
    "objective", "gspo gmpo sat", window=1,
  ),
  _rule(
    "kl_ref", "policy/kl_ref > 0.5",
    "the policy is far from its reference: raise the KL coefficient, or renew the reference",
    "objective/kl control",
  ),
  _rule(
    "length_blowup", "completion/length_ratio > 2",
    "responses have doubled: check what the reward says of length, reward brevity",
    "reward/length aggregate", "soft_compression dr_grpo dapo",
  ),
  _rule(
    "verifier_timeouts", "verifier/timeout_frac > 0.01",
    "verifiers run out of time, and such answers count as wrong: raise verifier_seconds",
    "tasks",
  ),
  _rule(
    "verifier_failures", "verifier/failed_frac > 0.01",
    "verifiers crash or raise, and such answers count as wrong: look at the verdicts' rules",
    "tasks",
  ),
  _rule(
    "idle_slots", "rollout/slot_use < 0.5",
    "half of what the sampler computes is not used: more rows than slots, or leave off sooner",
    "rollout decode", "april copris", live=False,
  ),
)  # fmt: skip

RULES = (*INDEX, *ALARMS)


class Finding(NamedTuple):
  """A rule that holds."""

  rule: Rule
  step: int
  value: float
  severity: float

  def text(self) -> str:
    """One line: name, number, threshold, what to try."""
    rule = self.rule
    mean = f" (mean of up to {rule.window} steps)" if rule.window > 1 else ""
    sign = ">" if rule.above else "<"
    return (
      f"{rule.name} at step {self.step}: {rule.metric} {self.value:.4g} {sign} {rule.threshold:g}{mean}; "
      f"{rule.advice}"
    )


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
  return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def diagnose(
  metrics: Mapping[str, Any], rules: Sequence[Rule] = RULES, *, step: int = 0
) -> tuple[list[Finding], list[Rule]]:
  """(the rules that hold, most severe first and ties as in `rules`; those that could not be checked).

  Args:
    metrics: name -> value, those of `derive` included; None is missing.
    rules: which to check.
    step: said of what is found.
  """
  known = _finite(metrics)
  unchecked = [rule for rule in rules if rule.metric not in known]
  found = []
  for rule in rules:
    value = known.get(rule.metric, rule.threshold)
    if value > rule.threshold if rule.above else value < rule.threshold:
      found.append(Finding(rule, step, value, severity(rule, value)))
  return sorted(found, key=lambda one: -one.severity), unchecked


def severity(rule: Rule, value: float) -> float:
  """How many times the threshold, at most 99."""
  over, under = (value, rule.threshold) if rule.above else (rule.threshold, value)
  return min(over / under, 99.0) if under > 0 else 99.0


def derive(metrics: Mapping[str, Any], functions: Collection[str] = ()) -> dict[str, float]:
  """Numbers that rules read and that follow from one step's metrics; only those that there is all for.

    completion/tail_ratio   longest over mean length
    time/rollout_share      seconds of sampling over those of the step
    time/env_share          seconds of verifiers and environments over those of the step
    tokens/reused_frac      reused of reused and generated tokens
    reward/eval_gap         mean reward minus mean pass@1 of the held-out sets
    reward/source_spread    largest minus smallest mean reward of a data source
    eval/pass_gap           pass@k minus maj@k, k as large as there is, mean over the sets

  Args:
    functions: names of reward functions: their reward/<name>/mean is of no source.
  """
  known, out = _finite(metrics), {}

  def ratio(name: str, over: str, *parts: str):
    have = [known[part] for part in parts if part in known]
    if have and known.get(over, 0.0) > 0:
      out[name] = sum(have) / known[over]

  ratio("completion/tail_ratio", "completion/length_mean", "completion/length_max")
  ratio("time/rollout_share", "time/step_seconds", "time/rollout_seconds")
  ratio("time/env_share", "time/step_seconds", "time/verify_seconds", "time/env_seconds")
  if {"tokens/reused", "tokens/generated"} <= known.keys():
    came = known["tokens/reused"] + known["tokens/generated"]
    out["tokens/reused_frac"] = known["tokens/reused"] / max(came, 1.0)
  sets: dict[str, dict[str, dict[int, float]]] = {}
  for name, value in known.items():
    match name.split("/"):
      case ["eval", held, metric] if metric.startswith(("pass@", "maj@")):
        kind, k = metric.split("@")
        sets.setdefault(held, {}).setdefault(kind, {})[int(k)] = value
  first = [kinds["pass"][1] for kinds in sets.values() if 1 in kinds.get("pass", {})]
  if first and "reward/mean" in known:
    out["reward/eval_gap"] = known["reward/mean"] - sum(first) / len(first)
  gaps = []
  for kinds in sets.values():
    if common := kinds.get("pass", {}).keys() & kinds.get("maj", {}).keys() - {1}:
      gaps.append(kinds["pass"][max(common)] - kinds["maj"][max(common)])
  if gaps:
    out["eval/pass_gap"] = sum(gaps) / len(gaps)
  sources = [
    value
    for name, value in known.items()
    if len(parts := name.split("/")) == 3
    and (parts[0], parts[2]) == ("reward", "mean")
    and parts[1] not in functions
  ]
  if len(sources) > 1:
    out["reward/source_spread"] = max(sources) - min(sources)
  return out


class Watch:
  """Looks at each step's metrics and tells what is new: a warning comes once until it has cleared.

  Means are over the last WINDOW steps, from step FIRST on. A warning has cleared when its rule did not hold
  for WINDOW steps. Besides `derive` rules may read policy/entropy_ratio and completion/length_ratio, now
  over their mean in the first FIRST steps, and train/skipped, the updates left out in this step.

  What is said depends on the metrics alone: a resumed run looks at the rows it has, and goes on.

  Args:
    thresholds: rule -> another threshold, or None to switch it off.
    functions: names of reward functions, see `derive`.

  Raises:
    ValueError: for the name of no rule.
  """

  def __init__(
    self,
    thresholds: Mapping[str, float | None] | None = None,
    *,
    functions: Collection[str] = (),
  ):
    thresholds, names = dict(thresholds or {}), [rule.name for rule in RULES]
    for name in thresholds:
      if name not in names:
        raise ValueError(f"unknown warning {name!r}; there are {', '.join(names)}")
    changed = (
      r._replace(threshold=t) if (t := thresholds.get(r.name)) is not None else r for r in RULES
    )
    self.rules = tuple(r for r in changed if thresholds.get(r.name, 0.0) is not None)
    self._functions = functions
    self._steps = 0
    self._rows: deque[dict[str, float]] = deque(maxlen=WINDOW)
    self._first: dict[str, list[float]] = {"policy/entropy": [], "completion/length_mean": []}
    self._evals: dict[str, float] = {}  # the latest evaluation stands until the next
    self._skipped = 0.0
    self._raised: dict[str, tuple[Finding, int]] = {}  # name -> (the latest, steps since it held)

  def look(self, step: int, metrics: Mapping[str, Any]) -> list[Finding]:
    """The warnings that are new at this step, of the live rules; most severe first."""
    self._rows.append(self._row(metrics))
    self._steps += 1
    quick = [rule for rule in self.rules if rule.live and rule.window == 1]
    slow = [rule for rule in self.rules if rule.live and rule.window > 1]
    found, _ = diagnose(self._rows[-1], quick, step=step)
    if self._steps >= FIRST:
      found += diagnose(self._means(), slow, step=step)[0]
    new = [one for one in found if one.rule.name not in self._raised]
    ages = {name: (one, age + 1) for name, (one, age) in self._raised.items() if age + 1 < WINDOW}
    self._raised = ages | {one.rule.name: (one, 0) for one in found}
    return sorted(new, key=lambda one: -one.severity)

  @property
  def active(self) -> list[Finding]:
    """Warnings that were raised and have not cleared, as they last held."""
    return sorted((one for one, _ in self._raised.values()), key=lambda one: -one.severity)

  def diagnosis(self, step: int) -> tuple[list[Finding], list[Rule]]:
    """`diagnose` of the last steps by all rules, those that no run is interrupted for included.

    A value of a single step is here the worst of the last WINDOW steps.
    """
    means = self._means()
    for rule in self.rules:
      if rule.window == 1 and (values := [r[rule.metric] for r in self._rows if rule.metric in r]):
        means[rule.metric] = max(values) if rule.above else min(values)
    return diagnose(means, self.rules, step=step)

  def _row(self, metrics: Mapping[str, Any]) -> dict[str, float]:
    row = _finite(metrics)
    evals = {name: value for name, value in row.items() if name.startswith("eval/")}
    self._evals |= evals
    row |= derive(row | self._evals, self._functions)
    if not evals:  # reward has grown since: the gap would be what was learned
      row.pop("reward/eval_gap", None)
    for name, values in self._first.items():
      if name in row:
        if len(values) < FIRST:
          values.append(row[name])
        if (base := sum(values) / len(values)) > 0:
          row[name.removesuffix("_mean") + "_ratio"] = row[name] / base
    if "train/skipped_steps" in row:
      row["train/skipped"] = row["train/skipped_steps"] - self._skipped
      self._skipped = row["train/skipped_steps"]
    return row

  def _means(self) -> dict[str, float]:
    values: dict[str, list[float]] = {rule.metric: [] for rule in self.rules}
    for row in self._rows:
      for name, some in values.items():
        if name in row:
          some.append(row[name])
    return {name: sum(some) / len(some) for name, some in values.items() if some}
