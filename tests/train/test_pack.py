"""Packing: what each read sees is its own prefix and nothing else; log-probs equal plain rows'."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rlvr_jax.core.types import Spans
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train import pack
from rlvr_jax.train.learn import token_stats
from rlvr_jax.train.metrics import CompileCounter

N, T = 6, 9
POLICY = decoder(tiny(4, num_layers=2, embed_dim=32, mlp_dim=64))
PARAMS = {**(p := POLICY.init(jax.random.key(0))), "embedding": 12 * p["embedding"]}


def _batch(seed):
  """Rows over few symbols, so that prefixes are shared; any tokens may be wanted, or none."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, rng.integers(1, 5), (N, T))
  for row in range(1, N):
    if rng.random() < 0.6:  # grow out of an earlier row
      keep = rng.integers(0, T + 1)
      tokens[row, :keep] = tokens[rng.integers(0, row), :keep]
  start, end = rng.integers(1, T, N), rng.integers(1, T + 1, N)
  place = np.arange(T)[None]
  wanted = (place >= start[:, None]) & (place < end[:, None])
  wanted &= rng.random((N, T)) < rng.choice([0.3, 1.0])
  wanted[:, 0] = False
  temperature = rng.choice([[1.0, 1.0], [0.5, 2.0]][rng.integers(2)], N)
  return tokens.astype(np.int32), wanted, temperature.astype(np.float32)


@jax.jit
def _plain(tokens, temperature):
  """float32 [N,T]: each row run by itself, [N,T,V] logits and all."""
  n, t = tokens.shape
  position = jnp.broadcast_to(jnp.arange(t)[None], (n, t))
  view = Spans(jnp.full((n, t), t, jnp.int32))
  hidden, _ = POLICY.hidden(PARAMS, tokens, position, position >= 0, view)
  z = jax.nn.log_softmax(POLICY.logits(PARAMS, hidden) / temperature[:, None, None])
  return jnp.pad(jnp.take_along_axis(z[:, :-1], tokens[:, 1:, None], 2)[..., 0], ((0, 0), (1, 0)))


_stats = jax.jit(functools.partial(token_stats, POLICY), static_argnames="lanes")


def _seen(packed, b, u):
  """Places of bin b that the token at u attends to."""
  v = np.arange(packed.tokens.shape[1])
  return v[(v <= u) & (u < packed.stop[b])]


def _check(tokens, wanted, temperature, sizes, lanes):
  """Everything that a packing must satisfy, read straight off its arrays; returns it."""
  packed, info = pack.pack(tokens, wanted, temperature, sizes, lanes=lanes)
  bins = packed.tokens.shape[0]
  assert bins % lanes == 0 and bins >= sizes.bins
  assert packed.tokens.shape == (bins, sizes.bin_tokens)
  assert packed.source.shape == (bins, sizes.bin_reads)
  nowhere = bins * sizes.bin_reads
  np.testing.assert_array_equal(packed.place < nowhere, wanted)
  np.testing.assert_array_equal(packed.row_bin >= 0, wanted.any(1))
  for row, t in zip(*np.nonzero(wanted)):
    b, read = divmod(int(packed.place[row, t]), sizes.bin_reads)
    assert b == packed.row_bin[row] < packed.num_bins
    assert packed.target[b, read] == tokens[row, t]
    assert packed.temperature[b, read] == temperature[row]
    prefix = _seen(packed, b, packed.source[b, read])
    assert packed.tokens[b, prefix].tolist() == tokens[row, :t].tolist()
    assert packed.position[b, prefix].tolist() == list(range(t))
  ends = [int(np.flatnonzero(w).max()) if w.any() else 0 for w in wanted]
  distinct = {
    (float(temperature[n]), tuple(tokens[n, : i + 1]))
    for n in range(len(tokens))
    for i in range(ends[n])
  }
  assert info.row_tokens == sum(ends)
  assert len(distinct) <= info.unique <= info.row_tokens
  if info.bins == 1:
    assert info.unique == len(distinct)
  assert info.bins == packed.num_bins == len(set(packed.row_bin[packed.row_bin >= 0].tolist()))
  reads = np.unique(packed.place[packed.place < nowhere])
  for b in range(bins):
    mine = reads[reads // sizes.bin_reads == b] % sizes.bin_reads
    assert mine.tolist() == list(range(packed.num_reads[b]))
    used = packed.source[b, mine].max() + 1 if len(mine) else 0
    for u in range(
      used, sizes.bin_tokens
    ):  # padding sees itself alone, so nothing it holds spreads
      assert _seen(packed, b, u).tolist() == [u]
  return packed, info


@settings(max_examples=150)
@given(
  st.integers(0, 2**31), st.sampled_from([8, 11, 16, 48]), st.sampled_from([0, 9, 30]),
  st.integers(1, 3),
)  # fmt: skip
def test_every_read_sees_its_prefix_and_nothing_else(seed, bin_tokens, bin_reads, lanes):
  sizes = pack.layout(N, T, bin_tokens=bin_tokens, bin_reads=bin_reads)
  _check(*_batch(seed), sizes, lanes)


@pytest.mark.parametrize(("bin_tokens", "lanes"), [(8, 1), (16, 2), (64, 1)])
@settings(max_examples=15)
@given(seed=st.integers(0, 2**31))
def test_log_probs_equal_plain_rows(bin_tokens, lanes, seed):
  tokens, wanted, temperature = _batch(seed)
  sizes = pack.layout(N, T, bin_tokens=bin_tokens)
  packed, _ = pack.pack(tokens, wanted, temperature, sizes, lanes=lanes)
  stats = _stats(PARAMS, packed, lanes=lanes)
  expected = np.where(wanted, _plain(tokens, temperature), 0.0)
  np.testing.assert_allclose(stats.logprobs, expected, atol=1e-5)


def test_t62_no_batch_recompiles():
  sizes = pack.layout(N, T, bin_tokens=16)
  packed = [pack.pack(*_batch(seed), sizes, lanes=2)[0] for seed in range(20)]
  _stats(PARAMS, packed[0], lanes=2)
  with CompileCounter() as compiled:
    for one in packed:
      _stats(PARAMS, one, lanes=2)
    assert compiled.count == 0
  assert len({int(one.num_bins) for one in packed}) > 1


def _ones(*shape):
  return np.ones(shape, np.float32)


def _wanted(num, start, places):
  return np.tile(np.arange(places) >= start, (num, 1))


def test_a_shared_prompt_by_hand():
  """Prompt 1 2 3; responses 4 5, 4 6 and 7 8. The last token of a row predicts nothing."""
  tokens = np.array([[1, 2, 3, 7, 8], [1, 2, 3, 4, 6], [1, 2, 3, 4, 5]])
  packed, info = _check(tokens, _wanted(3, 3, 5), _ones(3), pack.layout(3, 5, bin_tokens=16), 1)
  assert packed.tokens[0, :6].tolist() == [1, 2, 3, 4, 7, 0]
  assert packed.stop[0, :5].tolist() == [5, 5, 5, 4, 5]
  assert packed.position[0, :5].tolist() == [0, 1, 2, 3, 3]
  assert info == (5, 12, 1)
  # Both rows that go on with 4 read its log-prob at one place: five reads for six tokens.
  assert packed.place[1, 3] == packed.place[2, 3]
  assert len(np.unique(packed.place[packed.place < packed.source.size])) == 5


def test_a_place_that_one_row_wants_and_the_next_does_not():
  """Rows 1 2 3, 1 4 5 and 1 4 6: the second skips the place whose read the third asks for."""
  tokens = np.array([[1, 2, 3], [1, 4, 5], [1, 4, 6]])
  wanted = np.array([[0, 1, 1], [0, 0, 1], [0, 1, 1]], bool)
  _check(tokens, wanted, _ones(3), pack.layout(3, 3, bin_tokens=16), 1)


def test_equal_rows_share_everything():
  tokens = np.tile([[3, 1, 2, 2]], (5, 1))
  packed, info = _check(tokens, _wanted(5, 1, 4), _ones(5), pack.layout(5, 4, bin_tokens=8), 1)
  assert info == (3, 15, 1)
  assert (packed.place == packed.place[0]).all()


def test_a_row_that_is_a_prefix_of_another():
  tokens = np.array([[1, 2, 3, 0], [1, 2, 3, 1], [1, 2, 0, 0]])
  wanted = np.array([[0, 1, 1, 0], [0, 1, 1, 1], [0, 1, 0, 0]], bool)
  _, info = _check(tokens, wanted, _ones(3), pack.layout(3, 4, bin_tokens=8), 1)
  assert info.unique == 3  # 1 2 3


def test_rows_of_other_temperatures_do_not_share():
  tokens = np.tile([[3, 1, 2]], (2, 1))
  _, info = _check(
    tokens, _wanted(2, 1, 3), np.array([1.0, 0.5], np.float32), pack.layout(2, 3, bin_tokens=8), 1
  )
  assert info.unique == info.row_tokens == 4


def test_a_response_of_one_token():
  tokens = np.array([[5, 6], [5, 7]])
  packed, info = _check(tokens, _wanted(2, 1, 2), _ones(2), pack.layout(2, 2, bin_tokens=4), 1)
  assert info == (1, 2, 1)
  assert packed.source[0, :2].tolist() == [0, 0]
  assert packed.target[0, :2].tolist() == [6, 7]


def test_nothing_wanted():
  """No bin is in use, and the statistics are 0."""
  tokens, wanted, temperature = _batch(0)
  packed, info = pack.pack(
    tokens, 0 * wanted, temperature, pack.layout(N, T, bin_tokens=16), lanes=2
  )
  assert info == (0, 0, 0)
  assert packed.num_bins == 0
  assert (packed.row_bin == -1).all()
  np.testing.assert_array_equal(_stats(PARAMS, packed, lanes=2).logprobs, np.zeros((N, T)))


def test_rows_that_share_nothing_fill_as_many_bins_as_are_planned():
  """The worst case that `layout` promises to hold."""
  for bin_tokens in (8, 9, 15, 16, 17, 40):
    sizes = pack.layout(N, T, bin_tokens=bin_tokens, bin_reads=bin_tokens)
    tokens = np.tile(np.arange(N)[:, None], (1, T))
    _, info = _check(tokens, _wanted(N, 1, T), _ones(N), sizes, 1)
    assert info.bins <= sizes.bins
    assert info.unique == N * (T - 1)


def test_rows_beyond_the_bins_are_an_error():
  tokens = np.tile(np.arange(N)[:, None], (1, T))
  sizes = pack.layout(2, T, bin_tokens=8)  # planned for two rows
  with pytest.raises(ValueError, match=r"do not fit 2 bins of 8 tokens"):
    pack.pack(tokens, _wanted(N, 1, T), _ones(N), sizes)


def test_a_first_token_has_no_log_prob():
  wanted = np.zeros((N, T), bool)
  wanted[2, 0] = True
  with pytest.raises(ValueError, match="row 2: nothing predicts the first token"):
    pack.pack(np.zeros((N, T)), wanted, _ones(N), pack.layout(N, T))


@pytest.mark.parametrize(
  ("kwargs", "longest"), [({"bin_tokens": 7}, 8), ({"bin_tokens": 16, "bin_reads": 7}, 8)]
)
def test_a_bin_must_hold_a_row(kwargs, longest):
  with pytest.raises(ValueError, match=f"cannot hold a row of {longest}; raise bin_tokens"):
    pack.layout(N, T, **kwargs)


def test_layout_by_hand():
  assert pack.layout(64, 80) == (22, 256, 256)  # three rows of 79 in each
  assert pack.layout(64, 80, bin_tokens=512) == (11, 512, 512)  # six rows in each
  assert pack.layout(4, 1) == (1, 256, 256)
