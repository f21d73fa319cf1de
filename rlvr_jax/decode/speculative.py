"""Drafts: responses of earlier parameters, of which the longest prefix that the policy accepts is kept.

A draft is the end of an open row, of response tokens that are not the policy's own yet: `response_mask` is
False there, and `behavior_logprobs` are those of whoever wrote them. `verify` runs the
policy once over each draft, some hundred tokens at a time, and makes of it an ordinary open row that holds
what was accepted; `decode` goes on from there, and closes it if it has ended already.

Sources: speculative sampling, arXiv 2211.17192; lenience and drafts from the epoch before, arXiv 2509.23232.
"""

import functools
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from rlvr_jax.core import hosts, keys
from rlvr_jax.core.types import OPEN, Array, Policy, Rows, places
from rlvr_jax.decode import logits as law
from rlvr_jax.decode import reading, shards


class Verified(flax.struct.PyTreeNode):
  """What the verification found; int32 [N] each."""

  computed: Array  # prompt tokens the model was run on, for rows with a draft
  drafted: Array  # tokens of drafts
  accepted: Array  # of these, the tokens that were kept


def tolerated(u, new, old, log_lenience):
  """bool: whether a draft token is kept: u <= min(1, lenience * p_new / p_old), on log-probs.

  With log_lenience 0 it is the test of speculative sampling.
  """
  test = jnp.log(jnp.maximum(u, 1e-12)) <= jnp.minimum(0.0, new - old + log_lenience)
  return test & (new > law.MASKED / 2)  # what may not be drawn now is not kept, however lenient


def verify(
  policy: Policy,
  params,
  rows: Rows,
  *,
  version,
  eos_ids,
  log_lenience: float | None = 0.0,
  rule: law.Truncation | None = None,
):
  """Cuts each draft at the first token that the policy rejects.

  Accepted tokens become the row's own: log-probs (both kinds), entropy and version are those of `params`,
  as if these had drawn them. Rows of temperature 0 keep what they would draw.

  Args:
    rows: [N,T]. Rows without a draft come back as they are.
    version, eos_ids, rule: as in decode.decode. Nothing after an end token is kept.
    log_lenience: b; a token is kept with probability min(1, e^b p_new / p_old), by randomness of (uid,
      version, position), and what comes after the cut is to be drawn afresh. The law of one token is then
      min(p_old, e^b p_new) + (1 - sum of it) p_new, which is not p_new even for b = 0: what is rejected
      would have to be drawn from the residual of the two laws. None: coupled. A token is kept if the policy
      would draw it itself, by the row's own (uid, position): the row comes out as it would without a draft,
      and the drafts save time only if they were drawn with the same uid.

  Returns:
    rows, Verified.

  Raises:
    ValueError: if a draft is longer than its row's limit, or has a token outside the vocabulary.
  """
  split = shards.split_of(rows.tokens)
  model = _Model(
    policy.hidden,
    shards.whole_inside(policy.logits) if split else policy.logits,
    policy.init_cache,
    policy.vocab_size,
  )
  parts = _parts(model, log_lenience is None, split)
  over, strange = hosts.host(parts.look(rows))
  if over:
    raise ValueError(
      f"a draft has {over} tokens more than its row may get: raise max_new_tokens to what it was when the "
      "drafts were written, or start without them"
    )
  if strange:
    raise ValueError(
      f"{strange} drafts have tokens outside the vocabulary of {policy.vocab_size}: they come from another "
      "tokenizer; start without them"
    )
  bound = jnp.asarray(0.0 if log_lenience is None else log_lenience, jnp.float32)
  if split:
    params = shards.whole(split, params)
  version, eos_ids = jnp.asarray(version, jnp.int32), jnp.asarray(eos_ids, jnp.int32)
  return parts.run(params, version, eos_ids, bound, rows, rule)


class _Model(NamedTuple):
  """What verifying needs of a Policy."""

  hidden: Any
  logits: Any
  init_cache: Any
  vocab_size: int


class _Parts(NamedTuple):
  look: Any
  run: Any


@functools.cache
def _parts(model, coupled, split) -> _Parts:
  @jax.jit
  def look(rows):
    draft = _draft(rows)
    over = jnp.where(draft.any(1), rows.length - rows.limit, 0).max()
    strange = draft & ((rows.tokens < 0) | (rows.tokens >= model.vocab_size))
    return jnp.maximum(over, 0), strange.any(1).sum()

  @jax.jit
  def run(params, version, eos_ids, bound, rows, rule):
    one = lambda *args: _verify(model, coupled, *args)
    if split is None:
      return one(params, version, eos_ids, bound, rows, rule)
    parts = shards.apart(split, (rows, rule), len(rows.status))
    return shards.together(shards.each(split, one, 4)(params, version, eos_ids, bound, *parts))

  return _Parts(look, run)


def _draft(rows):
  """bool [N,T]: places of drafts."""
  at = places(rows.tokens)
  inside = (at >= rows.response_start[:, None]) & (at < rows.length[:, None])
  waits = rows.valid & (rows.status == OPEN)
  return inside & ~rows.response_mask & waits[:, None]


class _Said(flax.struct.PyTreeNode):
  """What the policy says of the token at each place, [N,T] each."""

  keep: Array  # bool
  behavior: Array  # float32
  full: Array  # float32
  entropy: Array  # float32


def _verify(model, coupled, params, version, eos_ids, bound, rows, rule):
  draft = _draft(rows)
  has = draft.any(1)
  said = _say(model, coupled, params, version, bound, rows, rule, has)
  ends = (rows.tokens[:, :, None] == eos_ids[None, None]).any(2) & draft
  after = jnp.cumsum(ends, 1) - ends > 0  # an end token came before
  keep = draft & (jnp.cumsum(draft & ~(said.keep & ~after), 1) == 0)
  accepted = keep.sum(1).astype(jnp.int32)
  drafted = draft.sum(1).astype(jnp.int32)
  put = lambda new, none, old: jnp.where(keep, new, jnp.where(draft, none, old)).astype(old.dtype)
  grown = rows.replace(
    tokens=put(rows.tokens, 0, rows.tokens),
    behavior_logprobs=put(said.behavior, 0.0, rows.behavior_logprobs),
    full_logprobs=put(said.full, 0.0, rows.full_logprobs),
    entropy=put(said.entropy, 0.0, rows.entropy),
    version=put(version, -1, rows.version),
    response_mask=put(True, False, rows.response_mask),
    length=rows.length - drafted + accepted,
  )
  computed = jnp.where(has, rows.response_start, 0)
  return grown, Verified(computed, drafted, accepted)


def _say(model, coupled, params, version, bound, rows, rule, has) -> _Said:
  n, t = rows.tokens.shape
  begins = rows.length - _draft(rows).sum(1)
  zeros = jnp.zeros((n, t), jnp.float32)

  def visit(said, index, position, hidden):
    these = jax.tree.map(lambda x: x[index], rows)
    mine = jax.tree.map(lambda x: x[jnp.minimum(index, len(x) - 1)] if jnp.ndim(x) else x, rule)
    target = position + 1
    end = jnp.where(has[index], these.length, 0)[:, None]
    wanted = (target >= begins[index][:, None]) & (target < end)
    judge = lambda: _judge(
      model, coupled, params, version, bound, these, mine, hidden, jnp.minimum(target, t - 1)
    )
    idle = jnp.zeros(target.shape, jnp.float32)
    new = jax.lax.cond(wanted.any(), judge, lambda: _Said(idle > 0, idle, idle, idle))
    where = jnp.where(wanted, target, t)
    return jax.tree.map(lambda x, y: x.at[index[:, None], where].set(y, mode="drop"), said, new)

  nothing = _Said(jnp.zeros((n, t), bool), zeros, zeros, zeros)
  return reading.walk(model.hidden, model.init_cache, params, rows, has, visit, nothing)


def _judge(model, coupled, params, version, bound, rows, rule, hidden, target) -> _Said:
  """What is said of the tokens at places `target` [S,W] of rows [S], from hidden [S,W,E] before them."""
  shape, wide = target.shape, target.shape[1]
  flat = lambda x: jnp.repeat(x, wide, axis=0)
  at = lambda x: jnp.take_along_axis(x, target, 1).reshape(-1)
  token, position = at(rows.tokens), target.reshape(-1)
  temperature, uid = flat(rows.temperature), flat(rows.uid)
  raw = model.logits(params, hidden.reshape(len(token), -1))
  full = law.temper(raw, temperature)
  z = law.truncate(full, jax.tree.map(lambda x: flat(x) if jnp.ndim(x) else x, rule))
  behavior = law.logprob(z, token)
  would = jnp.argmax(z, 1)
  if coupled:
    keep = law.draw(uid, position, z) == token
  else:
    u = keys.token_uniforms(_acceptance(uid, version), position)[:, 0]
    keep = tolerated(u, behavior, at(rows.behavior_logprobs), bound)
  keep = jnp.where(temperature <= 0, would == token, keep) & jnp.isfinite(raw).all(1)
  said = _Said(keep, behavior, law.logprob(full, token), law.entropy(full))
  return jax.tree.map(lambda x: x.reshape(shape), said)


def _acceptance(uid, version):
  """uint32 [S,2]: the randomness of acceptance, which is not that of drawing, and another one each step."""
  one = lambda data: jax.random.key_data(
    keys.stream(jax.random.wrap_key_data(data), "accept", version)
  )
  return jax.vmap(one)(uid)
