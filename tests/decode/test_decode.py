"""The sampler against a loop that runs the whole model, uncached, once a token."""

import functools

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from rlvr_jax.core import keys
from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, ERROR, KILLED, LENGTH, OPEN, Spans
from rlvr_jax.decode import decode as engine
from rlvr_jax.decode.decode import decode
from rlvr_jax.decode.logits import Truncation
from rlvr_jax.models.configs import tiny
from rlvr_jax.models.transformer import decoder
from rlvr_jax.train.metrics import CompileCounter
from tests import toy

N, T, P, CONTEXTS = 8, 14, 6, 4
NUM_TOKENS = 29  # of 32 ids: the last three must never be drawn
POLICY = decoder(tiny(32, num_tokens=NUM_TOKENS, num_layers=1, embed_dim=32, mlp_dim=64))
PROMPTS = jnp.asarray(np.random.default_rng(1).integers(0, NUM_TOKENS, (CONTEXTS, P)), jnp.int32)
LENGTHS = jnp.asarray([1, 3, 6, 4], jnp.int32)
EOS_IDS = jnp.asarray([21, 9, -1], jnp.int32)
NEVER = jnp.full(3, -1, jnp.int32)
WHOLE = Truncation(*map(jnp.asarray, (99, 1.0, 0.0)))  # a rule that cuts nothing off
CUT = Truncation(*map(jnp.asarray, (5, 0.9, 0.02)))


@functools.lru_cache
def _params(seed=0):
  params = POLICY.init(jax.random.key(seed))
  return {**params, "embedding": 12 * params["embedding"]}  # some tokens are likelier than others


def _decode(policy, slots, contexts=CONTEXTS, places=P):
  def run(params, rows, version, eos_ids, rule):
    return decode(
      policy, params, rows, version=version, eos_ids=eos_ids, slots=slots, num_contexts=contexts,
      prompt_places=places, rule=rule,
    )  # fmt: skip

  return run


_engine = functools.lru_cache(functools.partial(_decode, POLICY))  # compiled once for all tests


def _run(rows, *, slots=3, seed=0, version=0, eos_ids=EOS_IDS, rule=None):
  return _engine(slots)(_params(seed), rows, jnp.int32(version), eos_ids, rule)


def _rows(seed=0, **changes):
  """Seven rows of four prompts and one of padding: different lengths, limits and temperatures."""
  group = jnp.asarray([0, 0, 1, 2, 2, 2, 3, 3], jnp.int32)
  valid = jnp.arange(N) < 7
  key = jax.random.key(seed)
  rows = rows_lib.fresh(
    PROMPTS,
    LENGTHS,
    group=group,
    valid=valid,
    uid=keys.row_uids(key, 0, group, jnp.arange(N)),
    num_places=T,
    max_new_tokens=jnp.asarray([8, 3, 11, 99, 1, 8, 7, 5]),  # 99: as many as fit
    temperature=jnp.asarray([1.0, 0.7, 1.3, 1.0, 1.0, 0.0, 2.0, 1.0]),
  )
  return rows.replace(**{k: jnp.asarray(v, getattr(rows, k).dtype) for k, v in changes.items()})


@jax.jit
def _forward(params, tokens):
  position = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
  view = Spans(jnp.full(tokens.shape, tokens.shape[1], jnp.int32))
  hidden, _ = POLICY.hidden(params, tokens, position, position >= 0, view)
  return POLICY.logits(params, hidden)


_uniforms = jax.jit(keys.token_uniforms)


def _softmax(z):
  p = np.exp(z - z.max())
  return p / p.sum()


def _truncated(p, rule):
  """float64 [V]: top-k, then top-p, then min-p, by sorting."""
  k, top_p, min_p = (float(x) for x in (rule.top_k, rule.top_p, rule.min_p))
  p = np.where(p >= np.sort(p)[::-1][min(int(k), len(p)) - 1], p, 0)
  p = p / p.sum()
  if top_p < 1:
    order = np.argsort(-p, kind="stable")
    p = np.where(p >= p[order[np.searchsorted(np.cumsum(p[order]), top_p)]], p, 0)
  p = np.where(p >= min_p * p.max(), p, 0)
  return p / p.sum()


def _naive(rows, params, version=0, eos_ids=EOS_IDS, rule=WHOLE):
  """Rows grown a token at a time, each by a forward pass over everything and an inverse CDF."""
  names = "tokens length status behavior_logprobs full_logprobs entropy version response_mask"
  out = {name: np.array(getattr(rows, name)) for name in names.split()}
  tokens, length, status = out["tokens"], out["length"], out["status"]
  limit, temperature = np.asarray(rows.limit), np.asarray(rows.temperature)
  ends = set(np.asarray(eos_ids).tolist())
  alive = {n for n in range(len(length)) if rows.valid[n] and status[n] == OPEN}
  for n in sorted(alive):
    if length[n] > rows.response_start[n] and tokens[n, length[n] - 1] in ends:
      status[n] = EOS
    elif length[n] >= limit[n]:
      status[n] = LENGTH
  alive = {n for n in alive if status[n] == OPEN}
  while alive:
    logits = np.asarray(_forward(params, tokens), np.float64)
    u = np.asarray(_uniforms(rows.uid, length))[:, 1]  # 32 ids are one block of the sampler
    for n in sorted(alive):
      full = _softmax(logits[n, length[n] - 1] / (temperature[n] or 1.0))
      p = _truncated(full, rule)
      new = int(np.searchsorted(np.cumsum(p), u[n], side="right")) if temperature[n] else p.argmax()
      place = (n, length[n])
      tokens[place], out["version"][place], out["response_mask"][place] = new, version, True
      out["behavior_logprobs"][place] = np.log(p[new])
      out["full_logprobs"][place] = np.log(full[new])
      out["entropy"][place] = -(full[full > 0] * np.log(full[full > 0])).sum()
      length[n] += 1
      if new in ends:
        status[n] = EOS
      elif length[n] >= limit[n]:
        status[n] = LENGTH
      if status[n] != OPEN:
        alive.remove(n)
  return out


def _same(rows, expected, where=slice(None), atol=2e-5):
  """Tokens and bookkeeping exactly, log-probs and entropies to rounding."""
  read = expected.get if isinstance(expected, dict) else functools.partial(getattr, expected)
  for name in ("length", "status", "version", "response_mask"):
    np.testing.assert_array_equal(getattr(rows, name)[where], read(name)[where], err_msg=name)
  used = np.arange(rows.tokens.shape[1])[None] < np.asarray(rows.length)[:, None]
  mine, theirs = (np.where(used, x, 0)[where] for x in (rows.tokens, read("tokens")))
  np.testing.assert_array_equal(mine, theirs, err_msg="tokens")
  for name in ("behavior_logprobs", "full_logprobs", "entropy"):
    np.testing.assert_allclose(
      getattr(rows, name)[where], read(name)[where], atol=atol, err_msg=name
    )


def _cut(rows, keep, garbage=7):
  """Open rows with `keep` response tokens each; what lies beyond is garbage."""
  length = jnp.minimum(rows.response_start + jnp.asarray(keep), rows.length)
  inside = jnp.arange(T)[None] < length[:, None]
  inside |= ~rows.valid[:, None]
  return rows.replace(
    length=jnp.where(rows.valid, length, rows.length),
    status=jnp.where(rows.valid, OPEN, rows.status),
    tokens=jnp.where(inside, rows.tokens, garbage),
    behavior_logprobs=jnp.where(inside, rows.behavior_logprobs, 0),
    full_logprobs=jnp.where(inside, rows.full_logprobs, 0),
    entropy=jnp.where(inside, rows.entropy, 0),
    version=jnp.where(inside, rows.version, -1),
    response_mask=inside & rows.response_mask,
  )


@pytest.fixture(scope="module")
def whole():
  """The reference rollout, three slots for seven rows."""
  return _run(_rows())


# --------------------------------------------------------------------------------------------------
# Against the naive loop


def test_equals_the_naive_loop(whole):
  """Prompts of different lengths, refilled slots, temperatures from 0 (greedy) to 2."""
  rows, _ = whole
  _same(rows, _naive(_rows(), _params()))
  assert {EOS, LENGTH} <= set(rows.status.tolist())


@settings(max_examples=15)
@given(st.integers(0, 2**31), st.integers(0, 3), st.booleans())
def test_equals_the_naive_loop_on_anything(seed, version, truncate):
  """T24: random prompts, lengths, limits, padding, cuts and uids; behaviour law and whole law."""
  rng = np.random.default_rng(seed)
  group = jnp.asarray(rng.integers(0, CONTEXTS, N), jnp.int32)
  rows = rows_lib.fresh(
    jnp.asarray(rng.integers(0, NUM_TOKENS, (CONTEXTS, P)), jnp.int32),
    jnp.asarray(rng.integers(1, P + 1, CONTEXTS), jnp.int32),
    group=group,
    valid=jnp.asarray(rng.random(N) < 0.8),
    uid=jnp.asarray(rng.integers(0, 2**32, (N, 2)), jnp.uint32),
    num_places=T,
    max_new_tokens=jnp.asarray(rng.integers(1, 14, N)),
    temperature=jnp.asarray(rng.choice([0.0, 0.5, 1.0, 2.0], N), jnp.float32),
  )
  # Some rows come in with a part of a response, made of tokens that end nothing.
  room = np.asarray(rows.limit - rows.response_start) - 1
  have = rng.integers(0, np.maximum(room, 0) + 1) * np.asarray(rows.valid)
  length = rows.response_start + jnp.asarray(have, jnp.int32)
  here = (jnp.arange(T)[None] >= rows.response_start[:, None]) & (
    jnp.arange(T)[None] < length[:, None]
  )
  more = jnp.asarray(rng.integers(10, 21, (N, T)), jnp.int32)
  rows = rows.replace(length=length, tokens=jnp.where(here, more, rows.tokens), response_mask=here)
  rule = CUT if truncate else WHOLE
  out, counts = _run(rows, version=version, rule=rule)
  _same(out, _naive(rows, _params(), version, rule=rule))
  np.testing.assert_array_equal(counts.generated, out.length - length)
  np.testing.assert_array_equal(
    counts.replayed, np.where(np.asarray(counts.generated) > 0, np.maximum(have - 1, 0), 0)
  )


# --------------------------------------------------------------------------------------------------
# What a row samples depends on its uid, its tokens and the parameters


@pytest.mark.parametrize("slots", [1, 8])
def test_the_number_of_slots_does_not_matter(whole, slots):
  _same(_run(_rows(), slots=slots)[0], whole[0])


@pytest.mark.parametrize("slots", [3, 8])
def test_other_sizes_on_the_way_do_not_matter(whole, slots, monkeypatch):
  """Slots cut to one, cache places that grow from 6 to 12 to 14, prompts read two tokens at a time."""
  for name, value in (("PLACES", 1), ("MIN_SLOTS", 1), ("SHRINK", 2), ("PREFILL", 6), ("CHUNK", 2)):
    monkeypatch.setattr(engine, name, value)
  policy = POLICY._replace(logits=lambda *args: POLICY.logits(*args))  # shares nothing compiled
  run = _decode(policy, slots)
  half = _cut(whole[0], [7, 2, 10, 1, 0, 6, 3, 0])
  _same(run(_params(), half, jnp.int32(0), EOS_IDS, None)[0], whole[0])
  rows, counts = run(_params(), _rows(), jnp.int32(0), EOS_IDS, None)
  _same(rows, whole[0])
  np.testing.assert_array_equal(counts.generated, whole[1].generated)
  np.testing.assert_array_equal(counts.prefilled, whole[1].prefilled)
  new = np.asarray(counts.generated)
  assert int(counts.ticks) == _schedule(new, slots)
  assert new.sum() <= int(counts.slot_ticks) < int(counts.ticks) * slots


def test_the_rows_that_came_in_are_left_alone(whole):
  """Parts of the state are donated on the way; what the caller holds is not."""
  rows = _rows()
  before = jax.tree.map(np.array, rows)
  _run(rows)
  jax.tree.map(np.testing.assert_array_equal, rows, before)
  jax.tree.map(np.array, _params())


def test_the_order_of_rows_does_not_matter(whole):
  order = np.random.default_rng(3).permutation(N)
  rows, counts = _run(jax.tree.map(lambda x: x[order], _rows()))
  _same(rows, jax.tree.map(lambda x: x[order], whole[0]))
  np.testing.assert_array_equal(counts.generated, whole[1].generated[order])


def test_a_row_alone_equals_the_row_in_a_batch(whole):
  run = _decode(POLICY, 1)
  for n in (2, 3, 5):
    one = jax.tree.map(lambda x, n=n: x[n : n + 1], _rows())
    rows, _ = run(_params(), one, jnp.int32(0), EOS_IDS, None)
    _same(rows, jax.tree.map(lambda x, n=n: x[n : n + 1], whole[0]))


@pytest.mark.parametrize("keep", [0, 1, 3, [7, 2, 10, 1, 0, 6, 3, 0]], ids=str)
def test_interrupted_and_resumed_equals_uninterrupted(whole, keep):
  """A cut row, open again, goes on to the same tokens, whatever lies beyond its length."""
  half = _cut(whole[0], keep)
  rows, counts = _run(half)
  _same(rows, whole[0])
  np.testing.assert_array_equal(counts.generated, whole[0].length - half.length)


def test_stopped_at_a_limit_and_resumed(whole):
  """The same interruption, made by the sampler itself."""
  limit = _rows().limit
  half, first = _run(_rows(limit=jnp.minimum(limit, _rows().response_start + 2)))
  stopped = half.valid & (half.status == LENGTH)
  rows, second = _run(half.replace(limit=limit, status=jnp.where(stopped, OPEN, half.status)))
  _same(rows, whole[0])
  np.testing.assert_array_equal(first.generated + second.generated, whole[1].generated)


def test_t31_seeds(whole):
  """The same uids give the same tokens, others give others."""
  _same(_run(_rows())[0], whole[0], atol=0)
  other = _run(_rows(seed=1))[0].tokens
  assert (np.asarray(other) != np.asarray(whole[0].tokens)).any(1)[:3].all()


def test_rows_of_a_prompt_differ(whole):
  """Equal prompts, uids of their own: three rows at one temperature are three completions."""
  rows, _ = _run(_rows(temperature=[1.0] * N), eos_ids=NEVER)
  texts = {tuple(row) for row in rows.tokens[3:6, 6:].tolist()}
  assert len(texts) == 3


# --------------------------------------------------------------------------------------------------
# Weights, versions, compilation


def test_t32_new_weights_act_at_once_and_never_recompile(whole):
  eos = jnp.asarray([3, 4, 11], jnp.int32)
  later = _rows(seed=4, limit=_rows().limit - 1)
  expected = _naive(later, _params(7), 5, eos)  # compiles what the oracle needs
  with CompileCounter() as compiled:
    rows, _ = _run(later, seed=7, version=5, eos_ids=eos)
    assert compiled.count == 0
  _same(rows, expected)
  greedy = _rows(temperature=[0.0] * N)
  old, new = (_run(greedy, seed=seed)[0].tokens for seed in (0, 7))
  assert (np.asarray(old) != np.asarray(new)).any(1)[:7].all()


def test_t33_a_resumed_row_under_new_weights(whole):
  """The cache is that of the new weights; old tokens keep their log-probs and versions."""
  half = _cut(whole[0], 2)
  rows, _ = _run(half, seed=7, version=3)
  _same(rows, _naive(half, _params(7), 3))
  mask = np.asarray(rows.response_mask)
  response = np.arange(T)[None] - np.asarray(rows.response_start)[:, None]
  assert (np.asarray(rows.version)[mask & (response < 2)] == 0).all()
  assert (np.asarray(rows.version)[mask & (response >= 2)] == 3).all()
  assert (np.asarray(rows.version)[~mask] == -1).all()


def test_types_stay_the_same(whole):
  kind = lambda x: (x.shape, x.dtype, x.weak_type)
  assert jax.tree.map(kind, whole[0]) == jax.tree.map(kind, _rows())
  assert {x.dtype for x in jax.tree.leaves(whole[1])} == {jnp.dtype("int32")}


@pytest.mark.parametrize("temperature", [0.0, 1e-12, 50.0])
def test_ids_of_no_token_are_never_drawn(temperature):
  rows, counts = _run(_rows(temperature=[temperature] * N), eos_ids=NEVER)
  assert int(rows.tokens.max()) < NUM_TOKENS
  assert int(counts.generated.sum()) == int((rows.limit - rows.response_start)[:7].sum())
  assert not (rows.status == ERROR).any()


def test_greedy_is_the_argmax():
  rows, _ = _run(_rows(temperature=[0.0] * N), eos_ids=NEVER)
  best = np.asarray(_forward(_params(), rows.tokens)).argmax(2)
  shifted = np.pad(best[:, :-1], ((0, 0), (1, 0)))
  mask = np.asarray(rows.response_mask)
  np.testing.assert_array_equal(np.asarray(rows.tokens)[mask], shifted[mask])


# --------------------------------------------------------------------------------------------------
# Boundaries


def test_t29_a_limit_of_n_yields_n_tokens():
  """Nothing ends a row: each gets exactly what its limit leaves."""
  rows, counts = _run(_rows(), eos_ids=NEVER)
  np.testing.assert_array_equal(rows.length[:7], _rows().limit[:7])
  np.testing.assert_array_equal(counts.generated[:7], [8, 3, 11, 8, 1, 8, 7])
  np.testing.assert_array_equal(rows.response_mask.sum(1), counts.generated)
  assert (rows.status[:7] == LENGTH).all()


def test_t37_prompt_and_response_fill_the_cache(whole):
  """Row 3: six places of prompt and eight new ones are all there are. One more is cut off."""
  assert int(whole[0].limit[3]) == T
  beyond = _rows(limit=_rows().limit.at[3].set(T + 1), temperature=[1.0] * N)
  exact = _rows(limit=_rows().limit.at[3].set(T), temperature=[1.0] * N)
  (rows, counts), (expected, _) = (_run(r, eos_ids=NEVER) for r in (beyond, exact))
  assert int(rows.length[3]) == T
  assert int(counts.generated[3]) == T - P
  _same(rows, expected)


def test_t37_a_prompt_that_fills_the_row():
  """No room for a response: closed at once, whatever the limit says."""
  policy = toy.table_policy(4, 3)
  rows = toy.rows(tokens=[[1, 2, 3], [1, 2, 0]], prompt=2, status=[OPEN] * 2)
  rows = rows.replace(
    response_start=jnp.asarray([3, 2]), length=jnp.asarray([3, 2]), limit=jnp.asarray([9, 9])
  )
  out, counts = _decode(policy, 2, 2, 3)(
    policy.init(jax.random.key(0)), rows, jnp.int32(0), jnp.asarray([-1]), None
  )
  assert out.status.tolist() == [LENGTH, LENGTH]
  assert counts.generated.tolist() == [0, 1]


def test_rows_that_need_nothing_are_left_alone(whole):
  """Closed rows and padding come out bit for bit, whatever they hold; the loop never runs."""
  closed = whole[0].replace(status=jnp.where(whole[0].valid, whole[0].status, OPEN))
  hostile = closed.replace(
    tokens=closed.tokens.at[7].set(10**6),
    full_logprobs=closed.full_logprobs.at[7].set(jnp.nan),
    context=closed.context.at[7].set(10**6),
    length=closed.length.at[7].set(-5),
    limit=closed.limit.at[7].set(10**6),
  )
  out, counts = _run(hostile)
  jax.tree.map(np.testing.assert_array_equal, out, hostile)
  assert all(int(x.sum()) == 0 for x in jax.tree.leaves(counts))


def test_padding_does_not_disturb_the_rest(whole):
  rows = _rows()
  hostile = rows.replace(
    tokens=rows.tokens.at[7].set(31),
    status=rows.status.at[7].set(OPEN),
    length=rows.length.at[7].set(3),
    uid=rows.uid.at[7].set(rows.uid[0]),
  )
  out, counts = _run(hostile)
  _same(out, whole[0], where=slice(7))
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[7], b[7]), out, hostile)
  assert int(counts.ticks) == int(whole[1].ticks)


def test_rows_that_come_in_ended_are_closed_without_a_token(whole):
  """At their limit, past it, or with an end token already: closed for the right reason."""
  rows = whole[0].replace(status=jnp.where(whole[0].valid, OPEN, KILLED))
  out, counts = _run(rows)
  np.testing.assert_array_equal(out.status, whole[0].status)
  assert int(counts.generated.sum()) == 0
  start = _rows().response_start
  out, counts = _run(_rows(limit=start.at[1].add(-1)))
  assert out.status[:7].tolist() == [LENGTH] * 7
  assert int(counts.generated.sum()) == int(counts.prefilled.sum()) == 0


def test_a_prompt_that_ends_in_an_end_token_is_answered(whole):
  """Chat templates end turns with it; only an end token in the response closes a row."""
  rows = _rows()
  rows = rows.replace(tokens=rows.tokens.at[2, 2].set(EOS_IDS[0]))
  out, _ = _run(rows)
  assert int(out.length[2]) > 3
  _same(out, _naive(rows, _params()))


def test_an_empty_prompt_is_an_error_of_that_row_alone(whole):
  rows = _rows()
  empty = rows.replace(
    length=rows.length.at[2].set(0), response_start=rows.response_start.at[2].set(0)
  )
  out, counts = _run(empty)
  assert int(out.status[2]) == ERROR
  assert int(counts.generated[2]) == 0
  others = np.arange(N) != 2
  _same(out, whole[0], where=others)


def test_a_response_without_a_prompt():
  """A row may consist of a response alone, say one that begins with the begin token."""
  rows = _rows()
  rows = rows.replace(response_start=rows.response_start.at[2].set(0))
  out, counts = _run(rows)
  _same(out, _naive(rows, _params()))
  assert int(counts.prefilled[2]) == 0


def test_sizes_that_make_no_sense_are_refused():
  rows, params = _rows(), _params()
  args = dict(version=0, eos_ids=EOS_IDS)
  for slots, contexts, places, match in (
    (0, 4, P, "slots >= 1"),
    (3, 0, P, "num_contexts >= 1"),
    (3, 4, T + 1, "prompt_places"),
    (3, 4, 0, "prompt_places"),
  ):
    with pytest.raises(ValueError, match=match):
      decode(POLICY, params, rows, slots=slots, num_contexts=contexts, prompt_places=places, **args)


# --------------------------------------------------------------------------------------------------
# A policy whose every token is known

PLACES = 6
END = 3


@pytest.fixture(scope="module")
def chain():
  """run(table, rows, eos_ids) with a Markov chain over four tokens."""
  policy = toy.table_policy(4, PLACES)
  engine = _decode(policy, 2, 4, 3)

  def run(table, rows, eos_ids=(END,)):
    params = {"table": jnp.asarray(table, jnp.float32)}
    ids = jnp.asarray([*eos_ids, -1][:2], jnp.int32)
    return engine(params, rows, jnp.int32(0), ids, None)

  return run


def _four(**changes):
  """Four open rows whose prompts are 0, 1, 2 and 2 1 0."""
  rows = toy.rows(tokens=[[x, 0, 0, 0, 0, 0] for x in (0, 1, 2, 2)], prompt=1)
  rows = rows.replace(
    status=jnp.full(4, OPEN, jnp.int32),
    tokens=rows.tokens.at[3, :3].set(jnp.asarray([2, 1, 0])),
    response_start=jnp.asarray([1, 1, 1, 3], jnp.int32),
    length=jnp.asarray([1, 1, 1, 3], jnp.int32),
    response_mask=jnp.zeros((4, PLACES), bool),
  )
  return rows.replace(**{k: jnp.asarray(v, getattr(rows, k).dtype) for k, v in changes.items()})


def _sure(script):
  """A table that follows script[(place, token)] -> next token with a probability of 0.9."""
  table = np.zeros((PLACES, 4, 4))
  other = np.log(0.1 / 3)
  table[:] = other
  for place, token, new in script:
    table[place, token] = [other] * 4
    table[place, token, new] = np.log(0.9)
  return table


def test_t27_end_tokens_at_the_first_place_the_last_and_never(chain):
  script = [(0, 0, END)]  # row 0 ends at once
  script += [(0, 1, 1), (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, END)]  # row 1 in its last place
  script += [(p, 2, 2) for p in range(5)]  # row 2 never
  script += [(2, 0, 1)]
  table = 50 * (_sure(script) - np.log(0.1 / 3))  # certain
  rows, counts = chain(table, _four())
  assert rows.length.tolist()[:3] == [2, 6, 6]
  assert rows.status.tolist()[:3] == [EOS, EOS, LENGTH]
  assert rows.finished.tolist()[:3] == [True, True, False]
  assert rows.truncated.tolist()[:3] == [False, False, True]
  assert rows.tokens.tolist()[:3] == [[0, 3, 0, 0, 0, 0], [1, 1, 1, 1, 1, 3], [2] * 6]
  assert counts.generated.tolist()[:3] == [1, 5, 5]
  is_end = (rows.tokens == END) & rows.response_mask
  assert is_end.sum(1).tolist()[:3] == [1, 1, 0]
  np.testing.assert_array_equal(rows.response_mask.sum(1), rows.response_length)


def test_t27_the_end_token_has_its_log_prob(chain):
  rows, _ = chain(_sure([(0, 0, END)]), _four(uid=np.arange(8).reshape(4, 2)))
  ended = np.asarray(rows.tokens[:, 1]) == END
  assert ended[0]
  np.testing.assert_allclose(rows.full_logprobs[0, 1], np.log(0.9), atol=1e-6)
  assert rows.full_logprobs[0, 2:].tolist() == [0, 0, 0, 0]


def test_log_probs_and_entropy_of_a_chain(chain):
  table = np.random.default_rng(0).normal(size=(PLACES, 4, 4))
  rows, _ = chain(table, _four(temperature=[0.5, 1.0, 2.0, 1.0]), (-1,))
  for n in range(4):
    for p in range(int(rows.response_start[n]), PLACES):
      z = table[p - 1, int(rows.tokens[n, p - 1])] / float(rows.temperature[n])
      law = np.exp(z) / np.exp(z).sum()
      new = int(rows.tokens[n, p])
      np.testing.assert_allclose(rows.full_logprobs[n, p], np.log(law[new]), atol=1e-5)
      np.testing.assert_allclose(rows.behavior_logprobs[n, p], np.log(law[new]), atol=1e-5)
      np.testing.assert_allclose(rows.entropy[n, p], -(law * np.log(law)).sum(), atol=1e-5)


@pytest.mark.parametrize("eos_ids", [(0, 1), (3, 2), (-1, 1)])
def test_several_end_tokens(chain, eos_ids):
  rows, _ = chain(np.zeros((PLACES, 4, 4)), _four(), eos_ids)
  for n in range(4):
    response = rows.tokens[n, int(rows.response_start[n]) : int(rows.length[n])].tolist()
    ends = [token in eos_ids for token in response]
    assert not any(ends[:-1])
    assert ends[-1] == bool(rows.finished[n])
    assert ends[-1] or len(response) == PLACES - int(rows.response_start[n])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_logits_that_are_not_finite_close_their_row_only(chain, bad):
  """Row 1 meets them at its second token: nothing is appended, and the token before it stays."""
  script = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (0, 1, 1), (0, 2, 2)]
  table = 50 * (_sure(script) - np.log(0.1 / 3))
  healthy, _ = chain(table, _four())
  table[1, 1, 2] = bad
  rows, counts = chain(table, _four())
  assert int(rows.status[1]) == ERROR
  assert rows.tokens[1].tolist() == [1, 1, 0, 0, 0, 0]
  assert int(rows.length[1]) == 2 and int(counts.generated[1]) == 1
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(rows))
  others = np.array([0, 2])
  _same(rows, healthy, where=others)


# --------------------------------------------------------------------------------------------------
# Counts


def _schedule(work, slots):
  """Ticks of list scheduling: each free slot takes the next row at once."""
  queue, busy, ticks = [w for w in work if w], [], 0
  while queue or busy:
    while queue and len(busy) < slots:
      busy.append(queue.pop(0))
    busy = [w - 1 for w in busy if w > 1]
    ticks += 1
  return ticks


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_counts_of_fresh_rows(whole, slots):
  start = _rows()
  rows, counts = _run(start, slots=slots)
  new = np.asarray(rows.length - start.length)
  np.testing.assert_array_equal(counts.generated, new)
  np.testing.assert_array_equal(counts.generated, (np.asarray(rows.version) >= 0).sum(1))
  # Once a context, on its first row: lengths 1, 3, 6 and 4.
  np.testing.assert_array_equal(counts.prefilled, [1, 0, 3, 6, 0, 0, 4, 0])
  assert int(counts.replayed.sum()) == 0
  assert int(counts.ticks) == _schedule(new, slots)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_counts_of_resumed_rows(whole, slots):
  """Rows that came in with r tokens feed r - 1 of them again: the last was drawn but never fed."""
  keep = np.array([7, 2, 3, 1, 0, 6, 3, 0])
  half = _cut(whole[0], keep)
  came = np.asarray(half.response_length)
  rows, counts = _run(half, slots=slots)
  new = np.asarray(rows.length - half.length)
  np.testing.assert_array_equal(counts.generated, new)
  grows = new > 0
  np.testing.assert_array_equal(counts.replayed, np.where(grows, np.maximum(came - 1, 0), 0))
  # A row that came in with tokens first feeds the last of its prompt, which draws nothing.
  assert int(counts.ticks) == _schedule(np.where(grows, came + new, 0), slots)
  led = {}
  for n in np.flatnonzero(grows):
    led.setdefault(int(rows.context[n]), n)
  expected = np.zeros(N, int)
  for context, n in led.items():
    expected[n] = LENGTHS[context]
  np.testing.assert_array_equal(counts.prefilled, expected)
