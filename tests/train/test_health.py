"""Warnings: severities worked by hand, when they come and clear, and what they read."""

import math

import pytest

from rlvr_jax.recipes import RECIPES
from rlvr_jax.train import health
from rlvr_jax.train.health import INDEX, RULES, Watch, derive, diagnose, severity
from rlvr_jax.train.metrics import METRICS, find

EXAMPLE = {
  "group/frac_all_1": 0.1, "group/frac_all_0": 0.45, "group/frac_zero_std": 0.6,
  "completion/length_mean": 900.0, "mismatch/kl_k3": 0.0005, "policy/entropy_ratio": 0.2,
  "completion/truncated_frac": 0.05, "completion/tail_ratio": 9.6, "rollout/waste_frac": 0.2,
  "time/rollout_share": 0.78, "tokens/reused_frac": 0.0,
}  # fmt: skip


def _rule(name):
  return next(rule for rule in RULES if rule.name == name)


def test_severities_and_their_order():
  found, unchecked = diagnose(EXAMPLE, INDEX, step=7)
  assert [(one.rule.name, f"{one.severity:.4f}", one.step) for one in found] == [
    ("recompute", "99.0000", 7),
    ("collapse", "2.5000", 7),  # 0.5 / 0.2
    ("long_tail", "2.4000", 7),  # 9.6 / 4
    ("dead_weight", "2.0000", 7),
    ("unsolved", "1.5000", 7),
    ("slow_rollout", "1.3000", 7),
  ]  # waste is exactly at its threshold: not found
  assert [rule.name for rule in unchecked] == [
    "noisy_baseline", "bad_reward", "env_cost", "curriculum", "search_waste", "footprint"
  ]  # fmt: skip


def test_remedies():
  rule = _rule("long_tail")
  assert rule.modules == ("rollout/partial", "schedule", "decode")
  assert rule.methods == ("april", "copris", "seer", "roll_flash", "far")


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf")])
def test_what_is_not_finite_is_named_and_never_healthy(missing):
  found, unchecked = diagnose({**EXAMPLE, "group/frac_all_0": missing}, INDEX)
  assert "unsolved" not in [one.rule.name for one in found]
  assert "unsolved" in [rule.name for rule in unchecked]
  assert len(found) == 5  # removing a metric removes its line alone


def test_scaling_metrics_and_thresholds_together_changes_nothing():
  above = [rule for rule in INDEX if rule.above]
  scaled = [rule._replace(threshold=8 * rule.threshold) for rule in above]
  old, _ = diagnose(EXAMPLE, above)
  new, _ = diagnose({name: 8 * value for name, value in EXAMPLE.items()}, scaled)
  assert [(a.rule.name, a.severity) for a in old] == [(b.rule.name, b.severity) for b in new]


def test_severity_is_capped():
  above, below = _rule("unsolved"), _rule("collapse")
  assert severity(above, 0.6) == pytest.approx(2.0)
  assert severity(above, 1e6) == 99.0
  assert severity(below, 0.1) == pytest.approx(5.0)
  assert severity(below, 0.0) == severity(below, -1.0) == 99.0
  assert severity(_rule("not_finite"), 1.0) == 99.0  # a threshold of 0


def test_derived_numbers_by_hand():
  out = derive(
    {
      "completion/length_mean": 50.0, "completion/length_max": 300,
      "time/step_seconds": 10.0, "time/rollout_seconds": 7.0, "time/verify_seconds": 2.0,
      "tokens/reused": 25, "tokens/generated": 75,
      "reward/mean": 0.75, "reward/add/mean": 0.9, "reward/sub/mean": 0.2, "reward/brief/mean": -5.0,
      "eval/a/pass@1": 0.3, "eval/b/pass@1": 0.5, "eval/a/gcd/pass@1": 0.0,
      "eval/a/pass@4": 0.7, "eval/a/maj@4": 0.4, "eval/a/pass@8": 0.9, "eval/b/maj@4": 0.1,
      "policy/loss": None,
    },
    functions=["brief"],
  )  # fmt: skip
  assert out == pytest.approx(
    {
      "completion/tail_ratio": 6.0, "time/rollout_share": 0.7, "time/env_share": 0.2,
      "tokens/reused_frac": 0.25, "reward/eval_gap": 0.75 - 0.4, "reward/source_spread": 0.7,
      "eval/pass_gap": 0.7 - 0.4,
    }
  )  # fmt: skip
  assert derive({}) == {}


def _names(found):
  return [one.rule.name for one in found]


def test_a_warning_comes_once_until_it_has_cleared():
  watch, told = Watch(), []
  # Above for 3 steps, away for fewer than 20, back: silent; away for 20 and back: told again.
  for step, bad in enumerate([1] * 3 + [0] * 19 + [1] + [0] * 20 + [1]):
    told += [(step, name) for name in _names(watch.look(step, {"policy/ratio_max": 1 + 99 * bad}))]
  assert told == [(0, "ratio_extreme"), (43, "ratio_extreme")]
  assert _names(watch.active) == ["ratio_extreme"]


def test_means_wait_for_five_steps_and_look_back_twenty():
  watch = Watch()
  values = [1.0] * 4 + [0.0] * 20
  told = [step for step, v in enumerate(values) if watch.look(step, {"group/frac_all_0": v})]
  assert told == [4]  # the mean of five steps is 0.8
  found, _ = watch.diagnosis(23)
  assert "unsolved" not in _names(found)  # the last twenty are all 0


def test_ratios_are_to_the_first_five_steps():
  watch, told = Watch(), {}
  for step in range(40):
    row = {
      "policy/entropy": 2.0 if step < 5 else 0.5,
      "completion/length_mean": 10.0 + (step > 4) * 20,
    }
    for one in watch.look(step, row):
      told[one.rule.name] = one
  # After n >= 5 steps with k new: mean of the last 20 of 1 (old) and 1/4 or 3 (new).
  first = next(n for n in range(5, 41) if (5 + (n - 5) / 4) / n < 0.5 and n <= 20)
  assert told["collapse"].step == first - 1
  assert told["collapse"].value == pytest.approx((5 + (first - 5) / 4) / first)
  first = next(n for n in range(5, 41) if (5 + 3 * (n - 5)) / n > 2)
  assert told["length_blowup"].step == first - 1


def test_updates_that_were_left_out_are_told_of_their_step():
  watch = Watch()
  told = [s for s, n in enumerate([0, 0, 1, 1, 1]) if watch.look(s, {"train/skipped_steps": n})]
  assert told == [2]


def test_a_resumed_watch_says_what_an_uninterrupted_one_does():
  rows = [{"policy/entropy": 2.0 / (1 + s), "mismatch/ess": 0.5 + (s % 9) / 9} for s in range(50)]
  whole, cut = Watch(), Watch()
  said = [whole.look(step, row) for step, row in enumerate(rows)]
  for step, row in enumerate(rows[:23]):
    cut.look(step, row)
  assert [cut.look(step, rows[step]) for step in range(23, 50)] == said[23:]
  assert any(said[23:]) or any(said[:23])


def test_rewards_are_compared_with_the_evaluation_of_their_own_step():
  """Not with an older one: the gap would be what was learned since."""
  watch, told = Watch(), []
  for step in range(60):
    row = {"reward/mean": 0.6 if step < 30 else 0.9}
    told += watch.look(step, row | ({"eval/test/pass@1": 0.5} if step in (0, 40) else {}))
  assert [(one.rule.name, one.step) for one in told] == [("bad_reward", 40)]
  assert told[0].value == pytest.approx(0.4)


def test_thresholds_can_be_moved_and_warnings_switched_off():
  row = {"mismatch/kl_k3": 0.01, "policy/kl_old": 0.05}
  watch = Watch({"stale": None, "kl_old": 0.01})
  assert _names([one for step in range(6) for one in watch.look(step, row)]) == ["kl_old"]
  with pytest.raises(ValueError, match="unknown warning 'stail'"):
    Watch({"stail": 1.0})


def test_a_worst_step_shows_in_the_diagnosis():
  watch = Watch()
  for step in range(30):
    watch.look(
      step, {"mismatch/ess": 0.4 if step == 20 else 1.0, "policy/ratio_max": 20.0 * (step == 5)}
    )
  found, unchecked = watch.diagnosis(29)
  assert [(one.rule.name, one.value) for one in found] == [("few_effective", 0.4)]
  assert "ratio_extreme" not in [rule.name for rule in unchecked]  # 24 steps ago: over


def test_rules_read_metrics_that_there_are():
  derived = {
    "completion/tail_ratio", "completion/length_ratio", "policy/entropy_ratio", "time/rollout_share",
    "time/env_share", "tokens/reused_frac", "reward/eval_gap", "reward/source_spread", "eval/pass_gap",
    "train/skipped",
  }  # fmt: skip
  for rule in RULES:
    if rule.metric not in derived:
      assert find(rule.metric) in METRICS
  assert len({rule.name for rule in RULES}) == len(RULES)
  assert all(rule.advice and math.isfinite(rule.threshold) for rule in RULES)
  assert health.WINDOW >= health.FIRST


def test_methods_are_spelt_as_recipes_are():
  known = {name.replace("_", "") for name in RECIPES}
  for method in {method for rule in RULES for method in rule.methods}:
    if method.replace("_", "") in known:
      assert method in RECIPES


def test_the_text_says_everything():
  (one,) = Watch().look(3, {"policy/ratio_max": 25.0})
  assert one.text() == (
    "ratio_extreme at step 3: policy/ratio_max 25 > 10; a token's probability grew tenfold within a "
    "batch: fewer updates a batch, lower learning_rate"
  )
