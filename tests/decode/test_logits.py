"""The law a token is drawn from, against hand-worked numbers, plain numpy and a chi-square test."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from rlvr_jax.decode import logits as law

EXAMPLE = [2.0, 1.5, 1.4, 0.2, -1.0, -1.0, -3.0]


def _law(row, temperature=1.0, **rule):
  """(full, kept): tempered logits [1,V] before and after truncation."""
  full = law.temper(jnp.asarray([row], jnp.float32), jnp.asarray([temperature], jnp.float32))
  return full, law.truncate(full, law.truncation(**rule))


def _logprobs(z):
  """float32 [V] by the function under test, a token at a time."""
  vocab = z.shape[1]
  return law.logprob(jnp.tile(z, (vocab, 1)), jnp.arange(vocab))


def _kept(z):
  return set(np.flatnonzero(np.asarray(z[0]) > law.MASKED / 2).tolist())


def _plain(row, temperature, top_k, top_p, min_p):
  """Probabilities by sorting, in float64: top-k, then top-p of what is left, then min-p."""
  z = np.asarray(row, np.float64) / temperature
  p = np.exp(z - z.max())
  if top_k:
    p = np.where(z >= np.sort(z)[::-1][min(top_k, len(z)) - 1], p, 0)
  p = p / p.sum()
  if top_p < 1:
    order = np.argsort(-p, kind="stable")
    last = order[np.searchsorted(np.cumsum(p[order]), top_p)]
    p = np.where(p >= p[last], p, 0)
    p = p / p.sum()
  p = np.where(p >= min_p * p.max(), p, 0)
  return p / p.sum()


@pytest.mark.parametrize(
  ("temperature", "rule", "full", "behavior"),
  [
    (1.0, {}, [-0.886637, -1.386637, -1.486637, -2.686637], None),
    (
      0.7,
      {"top_k": 4},
      [-0.702433, -1.416719, -1.559576, -3.273862],
      [-0.688306, -1.402592, -1.545449, -3.259734],
    ),
    (0.7, {"top_k": 4, "top_p": 0.9}, None, [-0.649151, -1.363436, -1.506293]),
    (1.0, {"top_p": 0.5}, None, [-0.474077, -0.974077]),
  ],
)
def test_worked_example(temperature, rule, full, behavior):
  whole, z = _law(EXAMPLE, temperature, **rule)
  if full is not None:
    np.testing.assert_allclose(_logprobs(whole)[: len(full)], full, atol=2e-6)
  if behavior is not None:
    np.testing.assert_allclose(_logprobs(z)[: len(behavior)], behavior, atol=2e-6)
    assert _kept(z) == set(range(len(behavior)))


@pytest.mark.parametrize(
  ("rule", "kept"),
  [
    ({"top_k": 1}, {0, 1, 2}),  # three tie for the first place
    ({"top_k": 4}, {0, 1, 2, 3, 4}),  # two tie for the fourth
    ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),  # more than there are
    ({"top_p": 1e-6}, {0, 1, 2}),
    ({"min_p": 1.0}, {0, 1, 2}),
    ({"min_p": 0.4}, {0, 1, 2}),  # the next have e^-1 = 0.37 of the likeliest
    ({"min_p": 0.36}, {0, 1, 2, 3, 4}),
    ({"top_k": 4, "min_p": 0.01}, {0, 1, 2, 3, 4}),
  ],
)
def test_ties_with_the_last_token_kept_are_kept(rule, kept):
  assert _kept(_law([2.0, 2.0, 2.0, 1.0, 1.0, -1.0], **rule)[1]) == kept


def test_neighbours_in_float32_are_no_ties():
  row = [1.0, float(np.nextafter(np.float32(1), np.float32(0))), -2.0]
  assert _kept(_law(row, top_k=1)[1]) == {0}
  assert _kept(_law(row, top_p=0.3)[1]) == {0}


def test_top_p_is_of_what_top_k_left():
  # Of [.4 .3 .2 .1], .6 needs two tokens; of the two that top-k leaves, [.571 .429], .6 needs both,
  # and .5 only one, where .5 of the whole needs two.
  row = np.log([0.4, 0.3, 0.2, 0.1])
  assert _kept(_law(row, top_p=0.5)[1]) == {0, 1}
  assert _kept(_law(row, top_k=2, top_p=0.5)[1]) == {0}


@given(
  hnp.arrays(np.float32, 11, elements=st.floats(-8, 8, width=32), unique=True),
  st.sampled_from([0.3, 1.0, 2.0]),
  st.integers(0, 12),
  st.sampled_from([0.1, 0.5, 0.9, 1.0]),
  st.sampled_from([0.0, 0.05, 0.5]),
)
def test_truncation_equals_sorting(row, temperature, top_k, top_p, min_p):
  z = law.truncate(
    law.temper(jnp.asarray(row)[None], jnp.asarray([temperature], jnp.float32)),
    law.truncation(top_k=top_k, top_p=top_p, min_p=min_p),
  )
  expected = _plain(row, temperature, top_k, top_p, min_p)
  near = np.abs(np.cumsum(np.sort(expected)[::-1]) - top_p).min() < 1e-5
  if not near:  # rounding decides about a token that sits on the border
    np.testing.assert_allclose(jax.nn.softmax(z[0]), expected, atol=2e-5)


def test_a_rule_may_differ_by_row():
  z = jnp.tile(jnp.asarray(EXAMPLE, jnp.float32), (3, 1))
  rule = law.Truncation(top_k=jnp.asarray([1, 3, 7]))
  kept = (law.truncate(z, rule) > law.MASKED / 2).sum(1)
  np.testing.assert_array_equal(kept, [1, 3, 7])


@pytest.mark.parametrize(
  "bad", [{"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}, {"min_p": -0.1}, {"min_p": 1.1}]
)
def test_numbers_out_of_range_are_named(bad):
  (name,) = bad
  with pytest.raises(ValueError, match=name):
    law.truncation(**bad)
  with pytest.raises(ValueError, match="top_p"):
    law.truncation(top_p=float("nan"))


def test_no_rule_is_none():
  assert law.truncation() is None
  assert law.truncation(top_k=0, top_p=1.0, min_p=0.0) is None


def test_temperature_zero_keeps_the_law_of_one():
  z = law.temper(jnp.asarray([EXAMPLE, EXAMPLE]), jnp.asarray([0.0, 2.0]))
  np.testing.assert_allclose(z[0], EXAMPLE, rtol=1e-6)
  np.testing.assert_allclose(z[1], np.array(EXAMPLE) / 2, rtol=1e-6)


def test_a_tiny_temperature_leaves_masked_ids_finite():
  # Models mark ids they do not have with -1e30; 1e-12 would make that -inf, and the row an error.
  z = law.temper(jnp.asarray([[3.0, 2.0, -1e30]]), jnp.asarray([1e-12]))
  assert np.isfinite(z).all()
  np.testing.assert_allclose(law.logprob(z, jnp.asarray([0])), 0.0, atol=1e-6)
  assert np.isfinite(law.entropy(z)).all()


def test_entropy_in_nats():
  z = jnp.log(jnp.asarray([[0.5, 0.25, 0.25, 1e-30], [0.25, 0.25, 0.25, 0.25]]))
  np.testing.assert_allclose(law.entropy(z), [1.5 * np.log(2), 2 * np.log(2)], rtol=1e-5)
  masked = jnp.asarray([[1.0, law.MASKED, law.MASKED]])
  np.testing.assert_allclose(law.entropy(masked), [0.0], atol=1e-6)


# --------------------------------------------------------------------------------------------------
# Drawing

DRAWS = 100_000
_draw = jax.jit(law.draw)


@jax.jit
def _draw_many(uid, z):
  position = jnp.arange(len(uid), dtype=jnp.int32) % 7
  return law.draw(uid, position, jnp.broadcast_to(z, (len(uid), z.shape[1])))


@pytest.fixture(scope="module")
def uids():
  data = jax.random.key_data(jax.random.split(jax.random.key(5), DRAWS))
  return np.asarray(data, np.uint32).reshape(10, -1, 2)


def _draws(uids, row, **rule):
  """Counts of 1e5 tokens, each of a uid of its own, as rows of a run have them."""
  z = _law(row, **rule)[1]
  return np.bincount(np.concatenate([_draw_many(u, z) for u in uids]), minlength=len(row))


def _chi_square(counts, p):
  """z-score of the chi-square statistic; cells of fewer than five expected draws are pooled."""
  expected = p * counts.sum()
  big = expected >= 5
  o = np.append(counts[big], counts[~big].sum())
  e = np.append(expected[big], expected[~big].sum())
  o, e = o[e > 0], e[e > 0]
  statistic, free = ((o - e) ** 2 / e).sum(), max(len(e) - 1, 1)
  return (statistic - free) / np.sqrt(2 * free)


@pytest.mark.parametrize(
  "options",
  [
    {"temperature": 0.7},
    {"temperature": 1.0},
    {"temperature": 1.3},
    {"temperature": 0.7, "top_k": 4},
    {"top_p": 0.9},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    {"min_p": 0.2},
  ],
  ids=str,
)
def test_draws_follow_the_law(options, uids):
  p = _plain(EXAMPLE, **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **options})
  counts = _draws(uids, EXAMPLE, **options)
  assert counts[p == 0].sum() == 0
  assert _chi_square(counts, p) < 4.5


@pytest.mark.parametrize("vocab", [128, 300])
def test_draws_over_several_blocks(vocab, uids):
  """The inverse works in blocks of 128 tokens: borders, and a last block that is padded."""
  row = np.random.default_rng(0).normal(size=vocab) * 1.5
  p = _plain(row, 1.0, 0, 1.0, 0.0)
  counts = _draws(uids, row)
  assert len(counts) == vocab  # nothing past the vocabulary
  assert _chi_square(counts, p) < 4.5


def test_the_two_uniforms_of_a_draw_are_independent(uids):
  """Blocks of 128 take one uniform, places in them the other: equal cells in both come out even."""
  counts = _draws(uids, np.zeros(256))
  assert _chi_square(counts, np.full(256, 1 / 256)) < 4.5


@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.integers(0, 300))
def test_only_what_is_kept_is_drawn(vocab, seed, position):
  rng = np.random.default_rng(seed)
  z = np.full((1, 300), law.MASKED, np.float32)
  allowed = rng.choice(300, size=vocab, replace=False)
  z[0, allowed] = rng.normal(size=vocab) * 30
  uid = jnp.asarray(rng.integers(0, 2**32, (1, 2)), jnp.uint32)
  token = int(_draw(uid, jnp.asarray([position]), jnp.asarray(z))[0])
  assert token in allowed


@pytest.mark.parametrize("u", [0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
def test_the_inverse_at_the_ends_of_the_unit_interval(u):
  """u * total may round up to total: the draw must then still be a token with mass."""
  mass = jnp.asarray([[0.0, 0.0, 0.3, 0.0, 0.7, 0.0], [1e-8, 0.0, 0.0, 0.0, 1.0, 0.0]])
  index = np.asarray(law._invert(mass, jnp.full(2, u, jnp.float32)))
  assert (np.asarray(mass)[np.arange(2), index] > 0).all()


def test_a_draw_depends_on_uid_and_position_alone():
  z = jax.random.normal(jax.random.key(0), (200, 40))
  uid = jnp.arange(400, dtype=jnp.uint32).reshape(200, 2)
  position = jnp.arange(200)
  tokens = np.asarray(_draw(uid, position, z))
  order = np.random.default_rng(0).permutation(200)
  np.testing.assert_array_equal(_draw(uid[order], position[order], z[order]), tokens[order])
  np.testing.assert_array_equal(_draw(uid[:1], position[:1], z[:1]), tokens[:1])
  flat, one = jnp.zeros((200, 40)), jnp.tile(uid[:1], (200, 1))
  assert len(np.unique(_draw(one, jnp.full(200, 3), flat))) == 1
  assert len(np.unique(_draw(one, position, flat))) > 30
  assert len(np.unique(_draw(uid, jnp.full(200, 3), flat))) > 30


def test_no_token_without_mass_is_drawn():
  """With many blocks a running sum is made as a tree, and may move where there is no mass."""
  blocks, rows = 384, 64
  rng = np.random.default_rng(0)
  mass = np.where(rng.random((rows, blocks)) < 0.3, rng.random((rows, blocks)), 0.0)
  mass[0, -200:] = 0  # nothing at the end
  mass = jnp.asarray(mass, jnp.float32)
  invert = jax.jit(law._invert)
  total = np.cumsum(np.asarray(mass), 1)
  edges = total / total[:, -1:]
  for shift in (-1e-7, 0.0, 1e-7):
    for column in range(0, blocks, 7):  # at the borders, where rounding decides
      u = jnp.asarray(np.clip(edges[:, column] + shift, 0, 1 - 2**-24), jnp.float32)
      index = np.asarray(invert(mass, u))
      assert (np.asarray(mass)[np.arange(rows), index] > 0).all()
