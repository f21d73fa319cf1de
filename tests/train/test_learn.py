"""The update against a plain dense [N,T,V] computation, and by enumeration on a toy policy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import Learner, Objective, Rows, Spans, Tally, plain_table
from rlvr_jax.decode.decode import decode
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.recipes.grpo import grpo
from rlvr_jax.train import pack
from rlvr_jax.train.learn import make_learn, read
from rlvr_jax.train.metrics import CompileCounter
from tests import toy

VOCAB, N, T = 12, 11, 10
LOW, HIGH = 0.2, 0.28
POLICY = decoder(tiny(VOCAB, num_layers=1, embed_dim=32, mlp_dim=64))
RECIPE = grpo(clip_low=LOW, clip_high=HIGH)
PROMPTS = 5  # of the table

# An optimizer that moves nothing and keeps the gradient as its state.
KEEP = optax.GradientTransformation(
  init=lambda params: jax.tree.map(jnp.zeros_like, params),
  update=lambda grads, state, params: (jax.tree.map(jnp.zeros_like, grads), grads),
)
ADAM = optax.adamw(1e-2)


@functools.lru_cache
def _params():
  params = POLICY.init(jax.random.key(0))
  return {**params, "embedding": 12 * params["embedding"]}


_BUILT = {}  # compiled once for all tests that want the same


def _learn(
  policy=POLICY, recipe=RECIPE, optimizer=KEEP, bin_tokens=0, lanes=1, places=T, num_rows=N,
  read_tokens=256,
):  # fmt: skip
  key = (id(policy), id(recipe), id(optimizer), bin_tokens, lanes, places, num_rows, read_tokens)
  if key not in _BUILT:
    learn = make_learn(
      policy, recipe, optimizer, num_rows=num_rows, num_places=places, num_prompts=PROMPTS,
      bin_tokens=bin_tokens, lanes=lanes, read_tokens=read_tokens,
    )  # fmt: skip
    _BUILT[key] = learn, (policy, recipe, optimizer)  # what is held keeps its id
  return _BUILT[key][0]


def _learner(optimizer=KEEP, params=None, step=0):
  params = jax.tree.map(lambda p: jnp.array(p, copy=True), _params() if params is None else params)
  return Learner(
    params=params,
    opt_state=optimizer.init(params),
    control=RECIPE.control.init(plain_table(PROMPTS)),
    step=jnp.asarray(step, jnp.int32),
    skipped=jnp.zeros((), jnp.int32),
  )


def _update(rows, learner=None, params=None, **options):
  """(learner, metrics, booked) after one call of learn."""
  tally = Tally(*(jnp.zeros(PROMPTS, d) for d in (jnp.float32, jnp.float32, jnp.int32, jnp.int32)))
  learner = learner or _learner(options.get("optimizer", KEEP), params)
  return _learn(**options)(learner, rows, tally, jnp.int32(0), jax.random.key(9))


def _logits(params, tokens):
  """float32 [N,T,V]: each row by itself."""
  n, t = tokens.shape
  position = jnp.broadcast_to(jnp.arange(t)[None], (n, t))
  view = Spans(jnp.full((n, t), t, jnp.int32))
  hidden, _ = POLICY.hidden(params, tokens, position, position >= 0, view)
  return POLICY.logits(params, hidden)


@jax.jit
def _logprobs(params, tokens, temperature):
  """float32 [N,T]: each row by itself, with all its logits."""
  z = jax.nn.log_softmax(_logits(params, tokens) / temperature[:, None, None])
  return jnp.pad(jnp.take_along_axis(z[:, :-1], tokens[:, 1:, None], 2)[..., 0], ((0, 0), (1, 0)))


def _rows(seed=0, full=True) -> Rows:
  """Uneven groups of 4, 3, 2 and 1 rows and one row of padding.

  Responses of 1 to 7 tokens; row 1 has none at all; group 1 has equal rewards and so no advantage;
  row 0 and row 2 share most of their response; the sampler's log-probs are off by enough to clip.
  """
  rng = np.random.default_rng(seed)
  group = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
  valid = np.arange(N) < 10
  start = np.array([3, 1, 2, 1])[group]
  new = rng.integers(1, 8, N)
  new[:4] = 7, 0, 7, 1
  tokens = rng.integers(0, VOCAB, (4, T))[group]
  place = np.arange(T)[None]
  response = (place >= start[:, None]) & (place < (start + new)[:, None])
  tokens = np.where(response, rng.integers(0, VOCAB, (N, T)), tokens)
  tokens[2, :7] = tokens[0, :7]
  reward = rng.integers(0, 2, N).astype(np.float32)
  reward[:10] = [1, 0, 0.5, 0, 1, 1, 1, 0, 1, 1]
  temperature = np.array([1.0, 0.5, 1.0, 2.0])[group]
  rows = rows_lib.blank(N, T).replace(
    tokens=jnp.asarray(tokens, jnp.int32),
    response_mask=jnp.asarray(response & valid[:, None]),
    length=jnp.asarray(np.where(valid, start + new, 0), jnp.int32),
    response_start=jnp.asarray(start, jnp.int32),
    group=jnp.asarray(group, jnp.int32),
    context=jnp.asarray(group, jnp.int32),
    prompt_id=jnp.asarray(group, jnp.int32),
    reward=jnp.asarray(reward),
    correct=jnp.asarray(reward),
    temperature=jnp.asarray(temperature, jnp.float32),
    entropy=jnp.asarray(rng.random((N, T)), jnp.float32),
    valid=jnp.asarray(valid),
  )
  if not full:
    return rows
  noise = rng.normal(size=(N, T)).astype(np.float32) * 0.3
  sampled = _logprobs(_params(), rows.tokens, rows.temperature) + noise
  return rows.replace(full_logprobs=jnp.where(rows.response_mask, sampled, 0.0))


def _advantage(rows):
  """[N] by plain Python: reward against its group, in standard deviations."""
  out = np.zeros(len(rows.group))
  for n in range(len(out)):
    mates = [m for m in range(len(out)) if rows.group[m] == rows.group[n] and rows.valid[m]]
    r = np.array([float(rows.reward[m]) for m in mates])
    if rows.valid[n] and r.std() > 0:
      out[n] = (float(rows.reward[n]) - r.mean()) / (r.std() + 1e-6)
  return out


@functools.partial(jax.jit, static_argnums=0)
def _dense_grad(low_high, params, tokens, temperature, full, mask, advantage):
  def loss(params):
    ratio = jnp.exp(jnp.where(mask, _logprobs(params, tokens, temperature) - full, 0.0))
    clipped = jnp.clip(ratio, 1 - low_high[0], 1 + low_high[1])
    a = advantage[:, None]
    return (jnp.where(mask, jnp.maximum(-a * ratio, -a * clipped), 0.0)).sum() / mask.sum()

  return jax.value_and_grad(loss)(params)


def _dense(rows, params=None):
  """Loss and gradient of GRPO with nothing packed: the mean over all trained tokens."""
  mask = rows.response_mask & rows.valid[:, None]
  advantage = jnp.asarray(_advantage(rows), jnp.float32)
  return _dense_grad(
    (LOW, HIGH), _params() if params is None else params, rows.tokens, rows.temperature,
    jnp.where(mask, rows.full_logprobs, 0.0), mask, advantage,
  )  # fmt: skip


def _close(grads, expected, rtol=1e-5):
  """Every leaf within rtol of the largest entry of the whole gradient."""
  scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected))
  assert scale > 0
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=rtol * scale), grads, expected
  )


@pytest.fixture(scope="module")
def rows():
  return _rows()


# --------------------------------------------------------------------------------------------------
# Equals the dense computation


@pytest.mark.parametrize(
  ("bin_tokens", "lanes", "read_tokens"), [(9, 1, 256), (24, 2, 5), (0, 1, 256)],
  ids=["row-a-bin", "two-lanes-in-chunks", "one-bin"],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 1])
def test_t1_t2_equals_the_dense_computation(bin_tokens, lanes, read_tokens, seed):
  """Responses of length 1 and 7, split over any bins, lanes and chunks: one denominator for all."""
  rows = _rows(seed)
  loss, grads = _dense(rows)
  learner, metrics, _ = _update(rows, bin_tokens=bin_tokens, lanes=lanes, read_tokens=read_tokens)
  np.testing.assert_allclose(metrics["policy/loss"], loss, rtol=1e-5, atol=1e-7)
  _close(learner.opt_state, grads)
  np.testing.assert_allclose(metrics["policy/grad_norm"], optax.tree.norm(grads), rtol=1e-5)
  jax.tree.map(np.testing.assert_array_equal, learner.params, _params())
  assert int(learner.step) == 1 and metrics["finite"]


def test_an_objective_that_asks_for_the_entropy(rows):
  """Its value and its gradient, against the entropies of a plain [N,T,V] softmax."""

  def bonus(stats, rows, advantage, knobs):
    return -(stats.entropy + 0.5 * stats.logprobs), {}

  def dense(params):
    z = jax.nn.log_softmax(_logits(params, rows.tokens) / rows.temperature[:, None, None])[:, :-1]
    entropy = -(jnp.exp(z) * z).sum(2)
    logprobs = jnp.take_along_axis(z, rows.tokens[:, 1:, None], 2)[..., 0]
    mask = rows.loss_mask[:, 1:]
    return -jnp.where(mask, entropy + 0.5 * logprobs, 0.0).sum() / mask.sum()

  objective = Objective(bonus, needs_advantage=False, needs_entropy=True)
  learner, metrics, _ = _update(rows, recipe=RECIPE._replace(objective=objective), bin_tokens=24)
  loss, grads = jax.jit(jax.value_and_grad(dense))(_params())
  np.testing.assert_allclose(metrics["policy/loss"], loss, rtol=1e-5)
  _close(learner.opt_state, grads)


@pytest.mark.parametrize("num_reads", [0, 5, 13])
def test_reads_in_chunks_equal_all_at_once(num_reads):
  """Log-probs, entropies and their gradients; a soft-cap, an id that cannot be, temperatures."""
  lanes, reads, vocab = 2, 13, 20
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
  hidden, head, to = draw(lanes, reads, 8), draw(8, vocab), draw(2, lanes, reads)
  target = jnp.asarray(rng.integers(0, vocab - 1, (lanes, reads)), jnp.int32)
  temperature = jnp.asarray(rng.choice([0.5, 1.0, 2.0], (lanes, reads)), jnp.float32)
  last = (jnp.arange(vocab) == vocab - 1)[None, None]
  logits = lambda head, hidden: jnp.where(last, -1e30, 5 * jnp.tanh(hidden @ head / 5))

  def chunked(hidden, head):
    stats = read(
      functools.partial(logits, head), hidden, target, temperature, jnp.int32(num_reads),
      entropy=True, chunk=4,
    )  # fmt: skip
    return (_first(stats.logprobs) * to[0] + _first(stats.entropy) * to[1]).sum()

  def plain(hidden, head):
    z = jax.nn.log_softmax(logits(head, hidden)[..., :-1] / temperature[..., None])
    logprobs = jnp.take_along_axis(z, target[..., None], 2)[..., 0]
    return (_first(logprobs) * to[0] - _first((jnp.exp(z) * z).sum(2)) * to[1]).sum()

  def _first(x):
    return jnp.where((jnp.arange(reads) < num_reads)[None], x, 0.0)

  value, grads = jax.jit(jax.value_and_grad(chunked, (0, 1)))(hidden, head)
  expected, expected_grads = jax.jit(jax.value_and_grad(plain, (0, 1)))(hidden, head)
  np.testing.assert_allclose(value, expected, atol=1e-5)
  for a, b in zip(grads, expected_grads):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_metrics_by_hand(rows):
  """Over the rows that have an advantage: those the model is run for."""
  _, metrics, booked = _update(rows)
  advantage = _advantage(rows)
  mask = np.asarray(rows.loss_mask)
  seen = mask & (advantage != 0)[:, None]
  now = np.asarray(_logprobs(_params(), rows.tokens, rows.temperature), np.float64)
  d = (now - np.asarray(rows.full_logprobs))[seen]
  a = np.broadcast_to(advantage[:, None], mask.shape)[seen]
  ratio = np.exp(d)
  expected = {
    "policy/clip_frac_high": ((a > 0) & (ratio > 1 + HIGH)).mean(),
    "policy/clip_frac_low": ((a < 0) & (ratio < 1 - LOW)).mean(),
    "policy/kl_old": (ratio - 1 - d).mean(),
    "policy/ratio_max": ratio.max(),
    "mismatch/logp_diff_mean": np.abs(d).mean(),
    "mismatch/logp_diff_max": np.abs(d).max(),
    "mismatch/kl_k3": (ratio - 1 - d).mean(),
    "mismatch/ess": ratio.sum() ** 2 / (ratio**2).sum() / len(d),
    "policy/entropy": np.asarray(rows.entropy)[mask].mean(),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
  assert metrics["policy/clip_frac_high"] > 0 and metrics["policy/clip_frac_low"] > 0
  np.testing.assert_array_equal(booked["trained"], [
    mask[np.asarray(rows.prompt_id) == m].sum() for m in range(PROMPTS)
  ])  # fmt: skip
  assert booked["trained"].dtype == np.int64
  inputs = {  # distinct prefixes of what the model is run on
    (float(rows.temperature[n]), tuple(rows.tokens[n, : t + 1].tolist()))
    for n in range(N)
    for t in range(np.flatnonzero(seen[n])[-1] if seen[n].any() else 0)
  }
  assert booked["computed"] == len(inputs)
  ends = [np.flatnonzero(s)[-1] for s in seen if s.any()]
  np.testing.assert_allclose(metrics["perf/sharing"], sum(ends) / len(inputs))


def test_rows_without_an_advantage_are_left_out_and_change_nothing(rows):
  """needs_advantage: fewer tokens are computed, the gradient is the same."""
  everything = RECIPE._replace(objective=RECIPE.objective._replace(needs_advantage=False))
  some, _, fewer = _update(rows)
  all_, _, more = _update(rows, recipe=everything)
  assert fewer["computed"] < more["computed"]
  np.testing.assert_array_equal(fewer["trained"], more["trained"])
  _close(some.opt_state, all_.opt_state, rtol=1e-6)


def test_all_rows_dead(rows):
  """Equal rewards everywhere: nothing is computed, the gradient is 0, and the step goes on."""
  learner, metrics, booked = _update(rows.replace(reward=jnp.ones(N)))
  assert booked["computed"] == 0
  assert metrics["policy/loss"] == metrics["policy/grad_norm"] == 0.0
  assert all(np.isfinite(v) for v in metrics.values())
  assert int(learner.step) == 1 and int(learner.skipped) == 0
  assert not any(np.asarray(g).any() for g in jax.tree.leaves(learner.opt_state))


def test_a_batch_of_padding(rows):
  learner, metrics, booked = _update(rows.replace(valid=jnp.zeros(N, bool)))
  assert all(np.isfinite(v) for v in metrics.values())
  assert booked["computed"] == booked["trained"].sum() == 0
  assert not any(np.asarray(g).any() for g in jax.tree.leaves(learner.opt_state))


# --------------------------------------------------------------------------------------------------
# Masks


def test_t3_a_masked_row_leaves_the_denominator():
  """A truncated row with nothing to train next to a normal one: the loss of the normal one alone."""
  base = _rows()
  masked = base.replace(response_mask=base.response_mask.at[0].set(False))
  expected, grads = _dense(masked)  # its denominator counts trained tokens only
  learner, metrics, _ = _update(masked)
  np.testing.assert_allclose(metrics["policy/loss"], expected, rtol=1e-5)
  _close(learner.opt_state, grads)
  assert metrics["policy/loss"] != _update(base)[1]["policy/loss"]


def test_t4_more_padding_changes_nothing(rows):
  longer = jax.tree.map(
    lambda x: jnp.pad(x, ((0, 0), (0, 6))) if x.ndim == 2 and x.shape[1] == T else x, rows
  )
  short, metrics, _ = _update(rows)
  long, more, _ = _update(longer, places=T + 6)
  np.testing.assert_allclose(more["policy/loss"], metrics["policy/loss"], rtol=1e-6)
  _close(long.opt_state, short.opt_state, rtol=2e-6)


@pytest.mark.parametrize("garbage", [np.nan, np.inf, -np.inf, 200.0, -200.0])
def test_t5_t6_what_masked_places_hold_does_not_matter(rows, garbage):
  """Loss, gradient and metrics are finite, and the same bit for bit."""
  put = lambda x: jnp.where(rows.loss_mask, x, garbage)
  hostile = rows.replace(
    full_logprobs=put(rows.full_logprobs),
    behavior_logprobs=put(rows.behavior_logprobs),
    entropy=put(rows.entropy),
    reward=jnp.where(rows.valid, rows.reward, garbage),
    correct=jnp.where(rows.valid, rows.correct, garbage),
    tokens=jnp.where(rows.valid[:, None], rows.tokens, -7),
    temperature=jnp.where(rows.valid, rows.temperature, garbage),
  )
  clean, expected, _ = _update(rows)
  learner, metrics, _ = _update(hostile)
  assert metrics == expected
  jax.tree.map(np.testing.assert_array_equal, learner.opt_state, clean.opt_state)


@pytest.mark.parametrize("shift", [200.0, -200.0])
def test_t5_log_ratios_far_out_stay_finite(rows, shift):
  """In trained places: exp(200) overflows float32 unless it is bounded first."""
  learner, metrics, _ = _update(rows.replace(full_logprobs=rows.full_logprobs - shift))
  assert metrics["finite"]
  assert all(np.isfinite(v) for v in metrics.values())
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(learner.opt_state))


def test_t7_a_group_entirely_masked(rows):
  """It contributes nothing, and neither does a row without a response."""
  mask = rows.response_mask & (rows.group != 0)[:, None]
  gone = rows.replace(response_mask=mask)
  learner, metrics, booked = _update(gone)
  loss, grads = _dense(gone)
  np.testing.assert_allclose(metrics["policy/loss"], loss, rtol=1e-5)
  _close(learner.opt_state, grads)
  assert booked["trained"][0] == 0


def test_t9_a_response_of_one_token_is_trained():
  """Its log-prob has a gradient, and it is that of a plain forward pass."""
  base = _rows()
  only = base.replace(valid=base.valid & (base.group == 0) & (jnp.arange(N) >= 2))
  short = only.replace(response_mask=only.response_mask & (jnp.arange(N) == 3)[:, None])
  assert int(short.loss_mask.sum()) == 1
  on_policy = _logprobs(_params(), short.tokens, short.temperature)
  short = short.replace(full_logprobs=on_policy)  # nothing is clipped
  learner, _, booked = _update(short)
  _close(learner.opt_state, _dense(short)[1])
  assert booked["trained"].sum() == 1


def test_order_of_rows_does_not_matter(rows):
  order = np.random.default_rng(0).permutation(N)
  _close(
    _update(jax.tree.map(lambda x: x[order], rows))[0].opt_state, _update(rows)[0].opt_state, 2e-6
  )


# --------------------------------------------------------------------------------------------------
# Ratio, sampler and learner


@pytest.fixture(scope="module")
def sampled():
  """Rows that the policy itself sampled, at temperatures from 0.5 to 2, with rewards."""
  base = _rows(full=False)
  seeds = rows_lib.fresh(
    base.tokens[:4, :3], jnp.asarray([3, 1, 2, 1], jnp.int32), group=base.group, valid=base.valid,
    uid=keys.row_uids(jax.random.key(3), 0, base.group, jnp.arange(N)), num_places=T,
    max_new_tokens=T, temperature=jnp.asarray([0.5, 1.0, 2.0, 0.7])[base.group],
  )  # fmt: skip
  rolled, _ = decode(
    POLICY, _params(), seeds, version=0, eos_ids=jnp.asarray([4]), slots=3, num_contexts=4,
    prompt_places=3,
  )  # fmt: skip
  return rolled.replace(reward=base.reward, prompt_id=base.group)


def test_t12_t23_sampler_and_learner_agree(sampled):
  """On policy the ratio is 1: the same temperature, the same law, whatever the bins."""
  for options in ({"bin_tokens": 9}, {"bin_tokens": 24, "lanes": 2}, {}):
    _, metrics, _ = _update(sampled, **options)
    assert metrics["mismatch/logp_diff_max"] < 1e-5
    assert abs(metrics["policy/ratio_max"] - 1) < 1e-5
    assert abs(metrics["mismatch/ess"] - 1) < 1e-5
    assert metrics["policy/clip_frac_high"] == metrics["policy/clip_frac_low"] == 0


def test_t11_the_clip_acts_in_the_second_update(sampled):
  """Two updates a batch: the second meets a policy that has moved, the schedule counts both."""
  optimizer, recipe = optax.sgd(3.0), RECIPE._replace(updates=2)
  learner, metrics, booked = _update(sampled, optimizer=optimizer, recipe=recipe)
  assert abs(metrics["policy/ratio_max"] - 1) > 0.01
  assert metrics["policy/clip_frac_high"] > 0
  assert metrics["mismatch/logp_diff_max"] < 1e-5  # from before the first
  assert int(learner.step) == 1
  # By hand: one dense step, then another with the sampler's log-probs still those of the start.
  params = _params()
  for _ in range(2):
    grads = _dense(sampled, params)[1]
    params = jax.tree.map(lambda p, g: p - 3.0 * g, params, grads)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=3e-5), learner.params, params)
  once = _update(sampled)[2]
  assert booked["computed"] == 2 * once["computed"]
  np.testing.assert_array_equal(booked["trained"], 2 * once["trained"])


# --------------------------------------------------------------------------------------------------
# What is not finite is not applied


# The reward itself is the advantage: what is not finite in it reaches the loss.
BARE = RECIPE._replace(advantage=lambda rows: jnp.where(rows.loss_mask, rows.reward[:, None], 0.0))


def _sqrt_of_zero(stats, rows, advantage, knobs):
  """A finite loss whose gradient is not."""
  return jnp.sqrt(jnp.maximum(0.0 * stats.logprobs, 0.0)), {}


@pytest.mark.parametrize("reward", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_skipped(rows, reward):
  options = {"optimizer": ADAM, "recipe": BARE}
  learner, _, _ = _update(rows, **options)  # one good step, so that the moments hold something
  before = jax.device_get(learner)
  bad = rows.replace(reward=rows.reward.at[0].set(reward))
  learner, metrics, _ = _update(bad, learner, **options)
  assert not metrics["finite"]
  jax.tree.map(np.testing.assert_array_equal, learner.params, before.params)
  jax.tree.map(np.testing.assert_array_equal, learner.opt_state, before.opt_state)
  assert int(learner.skipped) == 1 and int(learner.step) == 2
  learner, metrics, _ = _update(rows, learner, **options)  # and the next one is applied
  assert metrics["finite"] and int(learner.skipped) == 1 and int(learner.step) == 3
  assert all(np.isfinite(p).all() for p in jax.tree.leaves(learner.params))


def test_a_gradient_that_is_not_finite_under_a_finite_loss(rows):
  recipe = RECIPE._replace(objective=Objective(_sqrt_of_zero, needs_advantage=False))
  learner, metrics, _ = _update(rows, recipe=recipe)
  assert metrics["policy/loss"] == 0.0 and not np.isfinite(metrics["policy/grad_norm"])
  assert not metrics["finite"] and int(learner.skipped) == 1
  assert not any(np.asarray(g).any() for g in jax.tree.leaves(learner.opt_state))


# --------------------------------------------------------------------------------------------------
# Compilation, types, enumeration


# --------------------------------------------------------------------------------------------------
# Memory, from what the compiler plans


def _planned(function, *shapes):
  """Bytes of temporary memory of a function of float32 and int32 arrays."""
  return jax.jit(function).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_t63_memory_of_the_head_grows_with_the_chunk_and_not_with_tokens_times_vocabulary():
  """V = 32k and T = 2k: all logits are 268 MB, for the forward pass alone."""
  vocab, embed = 32768, 4

  def planned(reads, chunk):
    def loss(head, hidden, target):
      ones = jnp.ones((1, reads), jnp.float32)
      count = target.max()  # a run-time number
      logits = lambda h: h @ head
      return read(logits, hidden, target, ones, count, entropy=True, chunk=chunk).entropy.sum()

    return _planned(
      jax.grad(loss, (0, 1)), jax.ShapeDtypeStruct((embed, vocab), jnp.float32),
      jax.ShapeDtypeStruct((1, reads, embed), jnp.float32),
      jax.ShapeDtypeStruct((1, reads), jnp.int32),
    )  # fmt: skip

  small, large, longer = planned(2048, 64), planned(2048, 256), planned(8192, 64)
  logits = 64 * vocab * 4  # of the small chunk
  assert small < 4 * logits <= 2048 * vocab * 4 / 8
  assert 2 * logits < large - small < 3 * 4 * logits
  assert longer - small < logits / 4


def _memory(policy, bin_tokens=0):
  """(what the compiler plans for an update, bytes of the parameters)."""
  learn = _learn(policy, optimizer=ADAM, bin_tokens=bin_tokens)
  rows, count = _rows(full=False), jnp.zeros((), jnp.int32)
  params = jax.eval_shape(policy.init, jax.random.key(0))
  state = jax.eval_shape(ADAM.init, params)
  learner = Learner(params, state, RECIPE.control.init(plain_table(PROMPTS)), count, count)
  prepared = jax.eval_shape(learn.parts["prepare"], learner, rows, jax.random.key(0))
  packed, _ = pack.pack(rows.tokens, np.zeros((N, T), bool), rows.temperature, learn.sizes)
  tally = Tally(*[jnp.zeros(PROMPTS, jnp.float32)] * 4)
  update = learn.parts["update"].lower(
    learner, {}, rows, packed, prepared, tally, count, jnp.asarray(True)
  )
  size = sum(p.size * p.dtype.itemsize for p in jax.tree.leaves(params))
  return update.compile().memory_analysis(), size


def test_the_update_holds_no_second_copy_of_parameters_or_moments():
  """Beside the state there are the gradients summed so far, and fewer than as many again of one bin."""
  memory, size = _memory(decoder(tiny(64, num_layers=2, embed_dim=256, mlp_dim=1024)), 16)
  assert memory.alias_size_in_bytes > 3 * size  # parameters and both moments are updated in place
  assert memory.temp_size_in_bytes < 2 * size


def test_remat_takes_less_memory():
  """A bin of 1024 tokens through two layers."""
  plans = {
    remat: _memory(decoder(tiny(VOCAB, num_layers=2, remat=remat)), 1024)[0].temp_size_in_bytes
    for remat in ("none", "dots", "full")
  }
  assert plans["full"] < 0.9 * plans["dots"] < 0.9 * 0.9 * plans["none"], plans


def test_t58_no_batch_recompiles(rows):
  """Twenty batches of other lengths, groups, paddings and dead rows; one empty, one without a gradient."""
  batches = [_rows(seed) for seed in range(20)]
  rng = np.random.default_rng(0)
  batches = [
    b.replace(
      valid=b.valid & jnp.asarray(rng.random(N) < 0.7),
      reward=jnp.asarray(rng.random(N), jnp.float32),
      group=jnp.asarray(rng.integers(0, rng.integers(1, N), N), jnp.int32),
    )
    for b in batches
  ]
  batches[3] = batches[3].replace(valid=jnp.zeros(N, bool))
  batches[7] = batches[7].replace(reward=jnp.ones(N, jnp.float32))
  learner = _update(rows, bin_tokens=24, lanes=2)[0]
  learner = _update(rows, learner, bin_tokens=24, lanes=2)[0]
  with CompileCounter() as compiled:
    for batch in batches:
      learner = _update(batch, learner, bin_tokens=24, lanes=2)[0]
    assert compiled.count == 0
  assert int(learner.step) == 22


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_learner_keeps_its_types(rows, dtype):
  """Or the second step would compile again, and a checkpoint would not fit a fresh state."""
  policy = decoder(dataclasses.replace(POLICY.config, dtype=dtype, param_dtype=dtype))
  learner = _learner(ADAM, policy.init(jax.random.key(0)))
  before = toy.kinds(learner)
  assert toy.kinds(_update(rows, learner, policy=policy, optimizer=ADAM)[0]) == before
  assert learner.params["embedding"].dtype == dtype


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_the_gradient_by_enumeration(temperature):
  """All nine responses of two tokens over three symbols, each weighed by its probability.

  On policy the gradient of the loss is then minus that of the expected reward, over the number of
  trained tokens, whatever constant is subtracted from the reward.
  """
  policy = toy.table_policy(3, 2)
  params = {"table": jax.random.normal(jax.random.key(1), (2, 3, 3))}
  cold = {"table": params["table"] / temperature}
  tokens = np.pad(toy.continuations(3, 2), ((0, 0), (1, 0)), constant_values=1)
  reward = np.array([0, 1, 0, 0.25, 0, 0, 1, 0, 0.5], np.float32)
  logprobs = toy.logprobs(cold, tokens)
  p = jnp.exp(logprobs.sum(1))
  np.testing.assert_allclose(p.sum(), 1.0, rtol=1e-5)
  rows = toy.rows(
    groups=[0] * 9, rewards=reward, tokens=tokens, full_logprobs=logprobs,
    temperature=np.full(9, temperature), extras={"p": p},
  )  # fmt: skip
  recipe = grpo(scale=False)._replace(
    weigh=lambda key, rows, advantage, knobs: jnp.where(
      rows.loss_mask, rows.extras["p"][:, None], 0.0
    )
  )
  learner, _, _ = _update(
    rows, params=params, policy=policy, recipe=recipe, num_rows=9, places=3, bin_tokens=4
  )
  expected = jax.grad(
    lambda table: (
      jnp.exp(toy.logprobs({"table": table / temperature}, tokens).sum(1)) * reward
    ).sum()
  )(params["table"])
  np.testing.assert_allclose(-18 * learner.opt_state["table"], expected, atol=1e-6)
