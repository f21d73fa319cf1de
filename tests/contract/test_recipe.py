"""What every recipe must do, in whole steps on a toy policy."""

import functools
import importlib

import jax
import numpy as np
import pytest

from rlvr_jax.core import ledger, table
from rlvr_jax.core.types import Recipe, plain_table
from rlvr_jax.recipes import RECIPES
from rlvr_jax.train import metrics as names
from tests import toy, toy_run

pytestmark = pytest.mark.usefixtures("compiled_once")

recipes = pytest.mark.parametrize("name", RECIPES)
# Arguments of recipes that by default read what a reward function of text says: the toy has none. A fifth of
# the tokens of a quarter of its twelve rows would be two tokens.
ALONE = {
  "fapo": {"flaw": ""},
  "sage": {"start": 2, "levels": 1, "places": 1, "ask_places": 2, "most": 1, "updates": 2}
  | {"wording": toy_run.wording},
  "spec_rl": {"log_lenience": 0.0},
  "arrol": {"detect": 1, "warmup": 2, "features": 4, "keep": 0.75, "share": 0.75},
  "jet": {"ratios": (0.5,), "cue": (0,), "tail": 1},
  "sao": {"own_trunk": False, "critic_rate": 0.05},
  "uniqueness": {"strategy": ""},
  "branchgrpo": {"splits": (0.34,)},
  "entropy_tree": {"begin": 0.0},
  "latr": {"windows": (1,), "shares": ((0, 0.5),)},
  "spark": {"stride": 1, "roots": 0.75},
  "april": {"groups": 3},
  "areal": {"groups": 3},
  "copris": {"groups": 3, "slots": 4},
  "aero": {"explore": 3, "extra": 1},
  "ar3po": {"start": 3, "chunk": 1},
  "dars": {"start": 3},
  "e3": {"low": 2},
  "pilot_commit": {"pilot": 3},
  "sgpo": {"buckets": (4,)},
  "token_value": {"rollouts": 4},
  "xrpo": {"start": 2},
  "d3s": {"rows_start": 0.75, "rows_end": 0.75, "tokens_start": 0.75, "tokens_end": 0.75},
}
build = lambda name, **args: table.build("recipe", name, RECIPES, ALONE.get(name, {}) | args)


train = functools.partial(toy_run.run, rate=0.1)


@functools.cache
def trained(name):
  return train(build(name), 20)


@recipes
def test_builds_with_its_defaults(name):
  recipe = build(name)
  assert isinstance(recipe, Recipe)
  assert recipe.refill.rounds >= 1 and recipe.updates >= 1
  assert {"temperature"} <= set(recipe.control.value(recipe.control.init(plain_table(3))))


@recipes
def test_changes_what_its_header_says(name):
  module = importlib.import_module(RECIPES[name].partition(":")[0])
  title, identifier = module.PAPER
  assert title and identifier and module.STAGES
  assert set(module.CHANGES) <= set(Recipe._fields)


@recipes
def test_T8_unknown_arguments_raise(name):
  with pytest.raises(ValueError, match="clip_hihg"):
    build(name, clip_hihg=0.3)


@recipes
def test_every_token_is_accounted_for(name):
  run = trained(name)
  for step in run.steps:
    assert not ledger.balance(step.ledger).any()
  # A recipe that makes nothing would pass everything else.
  for entry in ("prefilled", "generated", "verified", "batched", "trained", "computed"):
    assert sum(toy_run.booked(run, entry)) > 0, entry
  totals = ledger.totals(run.end.ledger)
  seen = totals["verified"] + totals["pruned"] + totals["probed"]
  assert seen == totals["generated"] + totals["accepted"]
  assert totals["trained"] <= totals["batched"] * build(name).updates
  drawn = sum(int(s.tally.tokens.sum()) for s in run.steps)
  assert drawn == totals["generated"]


@recipes
def test_batches(name):
  seen = set()
  for number, step in enumerate(trained(name).steps):
    rows = step.rows
    valid = rows.valid & (rows.wave >= 0)  # the others come from an earlier step
    uids = [tuple(u) for u in rows.uid[valid].tolist()]
    assert len(set(uids)) == len(uids) and not seen & set(uids)
    seen |= set(uids)
    assert (rows.version[rows.response_mask & valid[:, None]] == number).all()
    for g in set(rows.group[valid].tolist()):
      mine = valid & (rows.group == g)
      assert len(set(rows.prompt_id[mine].tolist())) == 1
      # Stamped before anything was dropped.
      assert (rows.trials[mine] >= mine.sum()).all()
      assert (rows.successes[mine] >= rows.correct[mine].sum()).all()
      # The sampler drew no prompt twice in one step: its rows are one group.
      assert not (rows.prompt_id[valid & (rows.group != g)] == rows.prompt_id[mine][0]).any()


@recipes
def test_types_stay_and_nothing_compiles_after_the_first_steps(name):
  run = trained(name)
  assert toy.kinds(run.start.learner) == toy.kinds(run.end.learner)
  assert toy.kinds(run.start.collector) == toy.kinds(run.end.collector)
  assert len({s.compiled for s in run.steps[2:]}) == 1, [s.compiled for s in run.steps]


@recipes
def test_T12_before_the_first_update_sampler_and_learner_agree(name):
  run = trained(name)
  for step, computed in zip(run.steps, toy_run.booked(run, "computed")):
    assert step.metrics["mismatch/logp_diff_max"] < 1e-5
    if build(name).updates == 1 and computed:  # no row has an advantage: none is computed
      assert step.metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
      if "teacher" not in build(name).annotate:  # which a ratio is clipped against from the start
        assert step.metrics["policy/clip_frac_high"] == step.metrics["policy/clip_frac_low"] == 0


@recipes
def test_metrics_are_declared_and_finite(name):
  for step in trained(name).steps:
    for metric, value in step.metrics.items():
      if metric != "finite":
        names.find(metric)
      assert np.isfinite(value), metric


@recipes
def test_learns(name):
  run = trained(name)
  start, end = (toy_run.solve_rate(x.learner.params) for x in (run.start, run.end))
  assert end > start + 0.15


@recipes
def test_T31_the_same_seed_gives_the_same_run(name):
  again = train(build(name), 2)
  for a, b in zip(again.steps, trained(name).steps):
    jax.tree.map(np.testing.assert_array_equal, a.rows, b.rows)
    jax.tree.map(np.testing.assert_array_equal, a.ledger, b.ledger)
