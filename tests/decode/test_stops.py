"""Stop strings, and leaving a call of decode before all rows have ended."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, LENGTH, OPEN, STOP
from rlvr_jax.decode.decode import decode
from rlvr_jax.decode.logits import Truncation
from rlvr_jax.decode.stops import stop_strings, stops
from tests import toy

PLACES, VOCAB = 12, 4
TEXTS = [b"a", b"ab", b"b\n", b"\xc3"]  # what each token stands for; the last is half a character
POLICY = toy.table_policy(VOCAB, PLACES)
LAW = {
  "table": jnp.asarray(np.random.default_rng(0).normal(size=(PLACES, VOCAB, VOCAB)), jnp.float32)
}


def _rows(num=12, limits=99, temperature=1.0):
  group = jnp.arange(num, dtype=jnp.int32) // 3
  prompts = jnp.zeros((num // 3, 1), jnp.int32)
  return rows_lib.fresh(
    prompts, jnp.ones(num // 3, jnp.int32), group=group, valid=jnp.ones(num, bool),
    uid=keys.row_uids(jax.random.key(0), 0, group, jnp.arange(num)), num_places=PLACES,
    max_new_tokens=jnp.asarray(limits), temperature=temperature,
  )  # fmt: skip


def _decode(rows, *, eos=-1, slots=5, rule=None, **options):
  return decode(
    POLICY, LAW, rows, version=0, eos_ids=[eos], slots=slots, num_contexts=4, prompt_places=1,
    rule=rule, stops=stops(token_bytes=TEXTS, **options),
  )  # fmt: skip


def _text(rows, n):
  return b"".join(TEXTS[t] for t in rows.tokens[n, 1 : int(rows.length[n])].tolist())


@pytest.mark.parametrize("strings", [("aab",), ("b\nb",), ("ba", "\na"), ("aa", "aaa", "a\n")])
def test_the_automaton_agrees_with_a_search_of_the_text(strings):
  table = stop_strings(strings, TEXTS)
  rng = np.random.default_rng(0)
  found = 0
  for _ in range(300):
    tokens = rng.integers(0, 3, rng.integers(1, 9))
    state, text, hit = 0, b"", False
    for token in tokens:
      state = table[state, token]
      text += TEXTS[token]
      hit = hit or any(s.encode() in text for s in strings)
      assert (state == len(table) - 1) == hit
    found += hit
  assert 0 < found < 300


@pytest.mark.parametrize("slots", [1, 5, 12])
def test_rows_end_with_the_token_that_completes_a_string(slots):
  plain, _ = _decode(_rows(), slots=slots)
  rows, counts = _decode(_rows(), slots=slots, strings=["bb", "aba"])
  ends = 0
  for n in range(12):
    tokens = plain.tokens[n, 1:].tolist()
    text, cut = b"", len(tokens)
    for i, token in enumerate(tokens):
      text += TEXTS[token]
      if b"bb" in text or b"aba" in text:
        cut, ends = i + 1, ends + 1
        break
    assert int(rows.response_length[n]) == cut
    assert rows.tokens[n, 1 : 1 + cut].tolist() == tokens[:cut]
    stopped = b"bb" in text or b"aba" in text
    assert int(rows.status[n]) == (STOP if stopped else LENGTH)
    assert bool(rows.finished[n]) == stopped
  assert 0 < ends < 12
  assert int(counts.generated.sum()) == int(rows.response_length.sum())


def test_a_string_that_began_before_the_row_was_interrupted():
  """Cut in the middle of a stop string and resumed, a row ends where it would have ended."""
  whole, _ = _decode(_rows(), strings=["bb", "aba"])
  half = _rows(limits=2)
  half, _ = _decode(half, strings=["bb", "aba"])
  again = half.replace(
    status=jnp.where(half.status == LENGTH, OPEN, half.status), limit=jnp.full(12, PLACES)
  )
  rows, _ = _decode(again, strings=["bb", "aba"])
  for name in ("tokens", "length", "status"):
    np.testing.assert_array_equal(getattr(rows, name), getattr(whole, name))


def test_a_row_that_comes_in_complete_draws_nothing():
  whole, _ = _decode(_rows(), strings=["bb", "aba"])
  rows, counts = _decode(whole.replace(status=jnp.full(12, OPEN)), strings=["bb", "aba"])
  np.testing.assert_array_equal(rows.length, whole.length)
  full = whole.length == whole.limit  # no token of these is even fed
  np.testing.assert_array_equal(rows.status, jnp.where(full, LENGTH, whole.status))
  assert (rows.status == STOP).any()
  assert int(counts.generated.sum()) == 0


def test_an_end_token_wins_over_a_string_it_completes():
  rows, _ = _decode(_rows(), strings=["\n"], eos=2)
  ended = rows.tokens[jnp.arange(12), rows.length - 1] == 2
  np.testing.assert_array_equal(rows.status, jnp.where(ended, EOS, LENGTH))
  assert 0 < ended.sum() <= 12


@pytest.mark.parametrize("wanted", [1, 2, 4])
def test_enough_groups(wanted):
  limits = np.array([2, 2, 2, 9, 9, 9, 1, 8, 1, 3, 3, 3])
  rows, counts = _decode(_rows(limits=limits), slots=12, groups=wanted)
  # All rows draw at every tick, so that a group is done after its longest row.
  longest = limits.reshape(4, 3).max(1)
  ticks = np.sort(longest)[wanted - 1]
  assert int(counts.ticks) == ticks
  np.testing.assert_array_equal(rows.response_length, np.minimum(limits, ticks))
  np.testing.assert_array_equal(rows.status, np.where(limits <= ticks, LENGTH, OPEN))
  # What was left open goes on as if it had never been interrupted.
  rest, _ = _decode(rows, slots=12)
  plain, _ = _decode(_rows(limits=limits), slots=12)
  np.testing.assert_array_equal(rest.tokens, plain.tokens)


def test_a_cap_on_tokens():
  rows, counts = _decode(_rows(), slots=5, tokens=23)
  assert 23 <= int(counts.generated.sum()) <= 23 + 5 - 1
  assert (rows.status == OPEN).any()
  assert int(counts.generated.sum()) == int(rows.response_length.sum())


def test_a_mask_of_tokens_for_each_row():
  rng = np.random.default_rng(1)
  allowed = rng.random((12, VOCAB)) < 0.6
  allowed[:, 0] |= ~allowed.any(1)
  allowed[5] = False  # nothing may be drawn
  rows, _ = _decode(_rows(), rule=Truncation(allowed=jnp.asarray(allowed)))
  for n in range(12):
    if n == 5:
      assert int(rows.response_length[n]) == 0 and rows.status.tolist()[5] == 4  # ERROR
      continue
    for p in range(1, PLACES):
      new = int(rows.tokens[n, p])
      z = np.asarray(LAW["table"])[p - 1, int(rows.tokens[n, p - 1])].astype(np.float64)
      assert allowed[n, new]
      mass = np.exp(z)[allowed[n]].sum()
      np.testing.assert_allclose(rows.behavior_logprobs[n, p], z[new] - np.log(mass), atol=1e-5)
      full = z[new] - np.log(np.exp(z).sum())
      np.testing.assert_allclose(rows.full_logprobs[n, p], full, atol=1e-5)


def test_rules_that_make_no_sense():
  with pytest.raises(ValueError, match="a stop string is empty"):
    stops([""], TEXTS)
  with pytest.raises(ValueError, match="pass token_bytes"):
    stops(["x"])
  with pytest.raises(ValueError, match="groups must be at least 1, got 0"):
    stops(groups=0)
  with pytest.raises(ValueError, match="tokens must be at least 1, got -3"):
    stops(tokens=-3)


def test_ids_outside_the_vocabulary_close_their_row():
  rows = _rows()
  rows = rows.replace(tokens=rows.tokens.at[4, 0].set(VOCAB).at[7, 0].set(-1))
  rows = rows.replace(context=jnp.arange(12, dtype=jnp.int32) // 3)
  out, counts = _decode(rows, slots=12)
  bad = np.isin(np.arange(12), [4, 7])
  np.testing.assert_array_equal(out.status == 4, bad)
  assert not counts.generated[bad].any() and counts.generated[~bad].all()
