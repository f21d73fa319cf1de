"""Every option of GRPO reaches the slot it is for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import TokenStats
from rlvr_jax.recipes.grpo import grpo
from tests import toy, toy_run

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({}, [1.50755, -0.90453, -0.90453, 0.30151]),
    ({"ddof": 1}, [1.30558, -0.78335, -0.78335, 0.26112]),
    ({"scale": False}, [0.625, -0.375, -0.375, 0.125]),
  ],
)
def test_advantage(options, expect):
  rows = toy.rows([0] * 4, [1.0, 0.0, 0.0, 0.5])
  np.testing.assert_allclose(grpo(**options).advantage(rows)[:, 1], expect, atol=1e-5)


@pytest.mark.parametrize(
  ("options", "expect"),
  [
    ({}, [-1.2, 0.8]),
    ({"clip_low": 0.1, "clip_high": 0.28}, [-1.28, 0.9]),
  ],
)
def test_clip(options, expect):
  # Ratios 2 and 1/2 of one token each, in the direction their advantage asks for.
  rows = toy.rows(masks=[[True], [True]])
  stats = TokenStats(jnp.log(jnp.array([[1.0, 2.0], [1.0, 0.5]])))
  advantage = jnp.array([[0.0, 1.0], [0.0, -1.0]])
  recipe = grpo(**options)
  loss, _ = recipe.objective.loss(stats, rows, advantage, {})
  np.testing.assert_allclose(loss[:, 1], expect, rtol=1e-5)
  weight = recipe.weigh(jax.random.key(0), rows, advantage, {})
  assert recipe.aggregate(loss, weight, rows)[1] == 2


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 1.0}])
def test_truncation_leaves_the_likeliest_token(options):
  policy = toy.table_policy(5, 4)
  params = policy.init(jax.random.key(0))
  rows = rows_lib.fresh(
    jnp.array([[3]], jnp.int32), jnp.array([1], jnp.int32),
    group=jnp.zeros(4, jnp.int32), valid=jnp.ones(4, bool),
    uid=keys.row_uids(jax.random.key(1), 0, jnp.zeros(4, jnp.int32), jnp.arange(4)),
    num_places=4, max_new_tokens=3, temperature=1.0,
  )  # fmt: skip
  roll = lambda recipe: (
    recipe.rollout(policy, params, rows, 0, jnp.array([-1]), num_contexts=1, prompt_places=1)[
      0
    ].tokens
  )
  greedy = [3]
  for p in range(3):
    greedy.append(int(params["table"][p, greedy[-1]].argmax()))
  np.testing.assert_array_equal(roll(grpo(**options)), [greedy] * 4)
  assert (roll(grpo()) != jnp.array([greedy])).any()


def test_slots_do_not_change_what_is_learned_and_temperature_reaches_the_rows():
  all_at_once, few = (toy_run.run(grpo(slots=s, temperature=0.7), 2) for s in (0, 5))
  np.testing.assert_allclose(
    all_at_once.end.learner.params["table"], few.end.learner.params["table"], atol=1e-6
  )
  first, other = all_at_once.steps[0], few.steps[0]
  assert other.metrics["rollout/ticks"] > first.metrics["rollout/ticks"]
  np.testing.assert_allclose(first.rows.temperature[first.rows.valid], 0.7)
  assert first.metrics["mismatch/logp_diff_max"] < 1e-5  # T23: the learner's at 0.7, too


def test_T11_T41_more_updates_on_a_batch_leave_the_policy_that_sampled_it():
  once, twice = (toy_run.run(grpo(updates=u), 3, rate=0.3) for u in (1, 3))
  assert max(s.metrics["policy/ratio_max"] for s in once.steps) == pytest.approx(1, abs=1e-5)
  assert twice.steps[0].metrics["policy/ratio_max"] > 1.2
  assert max(s.metrics["policy/clip_frac_high"] for s in twice.steps) > 0
  assert max(s.metrics["policy/kl_old"] for s in twice.steps) > 0
  # A step is a batch, however many updates it takes.
  assert int(twice.end.learner.step) == int(once.end.learner.step) == 3
  trained, batched = (toy_run.booked(twice, entry) for entry in ("trained", "batched"))
  assert trained == [3 * n for n in batched]


@pytest.mark.parametrize(
  ("options", "message"),
  [
    ({"temperature": 0.0}, "temperature must be positive"),
    ({"updates": 0}, "updates must be at least 1"),
    ({"clip_low": 2.0}, "low must lie in"),
    ({"clip_high": -1.0}, "high must be at least 0"),
    ({"ddof": 3}, "ddof must be 0 or 1"),
    ({"top_k": -1}, "top_k must be"),
    ({"top_p": 0.0}, "top_p must lie"),
    ({"min_p": 2.0}, "min_p must lie"),
    ({"slots": -1}, "slots must be at least 0"),
  ],
)
def test_errors(options, message):
  with pytest.raises(ValueError, match=message):
    grpo(**options)
