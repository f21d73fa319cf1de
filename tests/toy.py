"""Small things to test with: rows from plain lists, and a policy that is a table of logits."""

import functools
import importlib
import inspect
import itertools
import pkgutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.core import rows as rows_lib
from rlvr_jax.core.types import EOS, KILLED, KVCache, Policy, Rows


def spare_maps(most: int = 20_000) -> None:
  """Forgets what was compiled once it takes too many memory maps.

  XLA maps each program for CPUs several times, and Linux gives a process 65,530 maps; beyond them, the
  next program is a segmentation fault.
  """
  try:
    with open("/proc/self/maps", "rb") as file:
      num = sum(1 for _ in file)
  except OSError:
    return
  if num > most:
    jax.clear_caches()


def rows(
  groups=None, rewards=None, masks=None, *, tokens=None, valid=None, prompt=1, **fields
) -> Rows:
  """Closed rows from plain lists.

  Args:
    groups: N ints, default 0, 1, 2, ...
    rewards: N numbers, for `correct` and `reward` alike; default 0.
    masks: N lists of one bool a response token, all equally long: which are trained. Default: one
      trained token a row.
    tokens: N lists of token ids, prompt included; default zeros.
    valid: N bools, default True.
    prompt: places of the prompt, the same for all rows.
    **fields: any other field of Rows.
  """
  given = [x for x in (groups, rewards, masks, tokens, valid) if x is not None]
  n = len(given[0]) if given else len(next(iter(fields.values())))
  if masks is None:
    width = len(tokens[0]) - prompt if tokens is not None else 1
    masks = [[True] * width] * n
  mask = np.array(masks, bool).reshape(n, -1)
  t = prompt + mask.shape[1]
  reward = np.zeros(n) if rewards is None else rewards
  valid = np.ones(n, bool) if valid is None else np.array(valid, bool)
  ids = np.arange(n, dtype=np.uint32)
  values = {
    "tokens": np.zeros((n, t)) if tokens is None else tokens,
    "response_mask": np.pad(mask, ((0, 0), (prompt, 0))),
    "length": np.full(n, t),
    "response_start": np.full(n, prompt),
    "limit": np.full(n, t),
    "status": np.where(valid, EOS, KILLED),
    "uid": np.stack([ids, ids + 1], 1),
    "group": np.arange(n) if groups is None else groups,
    "context": np.arange(n) if groups is None else groups,
    "correct": reward,
    "reward": reward,
    "valid": valid,
  } | fields
  like = rows_lib.blank(n, t)
  typed = {k: jnp.asarray(v, getattr(like, k).dtype) for k, v in values.items() if k != "extras"}
  if "extras" in values:
    typed["extras"] = {k: jnp.asarray(v) for k, v in values["extras"].items()}
  return like.replace(**typed)


def random_rows(seed: int, *, num: int = 8, places: int = 5) -> Rows:
  """Rows of three or four groups in mixed order: some invalid, some partly masked, one fully."""
  rng = np.random.default_rng(seed)
  mask = rng.random((num, places - 1)) < 0.7
  mask[rng.integers(num)] = False
  valid = rng.random(num) < 0.8
  valid[rng.integers(num)] = True
  groups = rng.integers(0, 4, num)
  verdicts = rng.integers(0, 2, num)
  per_group = lambda x: [x[(groups == g) & valid].sum() for g in groups]
  return rows(
    groups,
    verdicts,
    mask,
    valid=valid,
    tokens=rng.integers(0, 9, (num, places)),
    prompt_id=groups + 10,
    full_logprobs=-rng.exponential(size=(num, places)),
    behavior_logprobs=-rng.exponential(size=(num, places)),
    entropy=rng.exponential(size=(num, places)),
    version=rng.integers(0, 3, (num, places)),
    prior=rng.random(num),
    trials=per_group(np.ones(num)),
    successes=per_group(verdicts),
  )


def soiled(batch: Rows, value=np.nan) -> Rows:
  """The same rows with `value` in every float that nobody may look at."""
  places = lambda x: jnp.where(batch.loss_mask, x, value)
  whole = lambda x: jnp.where(batch.valid, x, value)
  return batch.replace(
    full_logprobs=places(batch.full_logprobs),
    behavior_logprobs=places(batch.behavior_logprobs),
    entropy=places(batch.entropy),
    correct=whole(batch.correct),
    reward=whole(batch.reward),
    prior=whole(batch.prior),
    trials=whole(batch.trials),
    successes=whole(batch.successes),
  )


def take(batch, index):
  """The rows at `index`, of any pytree of row arrays."""
  return jax.tree.map(lambda x: x[jnp.asarray(index)], batch)


def kinds(tree):
  """What decides whether a jitted function is traced again."""
  describe = lambda x: (x.shape, x.dtype, x.weak_type)
  return jax.tree.map(describe, jax.tree.map(jnp.asarray, tree))


def table_policy(vocab: int, places: int) -> Policy:
  """A first-order Markov chain: params["table"] float32 [places,vocab,vocab].

  table[p, x] holds the logits of the token at position p + 1 after token x at position p. Every
  probability can be enumerated. It looks at nothing else: `hidden` ignores the view.
  """

  def init(key):
    return {"table": jax.random.normal(key, (places, vocab, vocab))}

  def hidden(params, tokens, positions, valid, view):
    del valid
    at = jnp.clip(positions, 0, places - 1), jnp.clip(tokens, 0, vocab - 1)
    return params["table"][at], view

  def init_cache(num_rows, num_places):
    k = jnp.zeros((num_rows, 1, 1, num_places), jnp.float32)
    return KVCache(k=(k,), v=(k.reshape(num_rows, 1, num_places, 1),))

  return Policy(
    init=init,
    hidden=hidden,
    logits=lambda params, hidden: hidden.astype(jnp.float32),
    init_cache=init_cache,
    axes={"table": (None, None, None)},
    vocab_size=vocab,
  )


def continuations(vocab: int, length: int) -> np.ndarray:
  """int32 [vocab**length, length]: every sequence there is."""
  return np.array(list(itertools.product(range(vocab), repeat=length)), np.int32)


def logprobs(params, tokens, prompt: int = 1):
  """float32 [N,T]: log-probs of `tokens` under `table_policy`, 0 in the prompt. Differentiable.

  A token at a time in plain Python: what sampler and learner are to agree with.
  """
  tokens = np.asarray(tokens)
  out = []
  for row in tokens:
    line = [jnp.zeros(())] * prompt
    for p in range(prompt, len(row)):
      line.append(jax.nn.log_softmax(params["table"][p - 1, row[p - 1]])[row[p]])
    out.append(jnp.stack(line))
  return jnp.stack(out)


def factories(*modules, variants=None):
  """What slot modules export, for contract tests: a pytest parameter for each public factory.

  A factory is a function that the module itself defines and that takes keyword arguments only; other
  public functions are helpers.

  Args:
    modules: modules to look into.
    variants: factory name -> list of argument dicts, beside the call without arguments.

  Returns:
    pytest.param(zero-argument callable, id="module.factory") each.
  """
  variants = dict(variants or {})
  out = []
  for module in modules:
    for name, f in inspect.getmembers(module, inspect.isfunction):
      kinds = [p.kind for p in inspect.signature(f).parameters.values()]
      keywords = all(
        k in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD) for k in kinds
      )
      if f.__module__ != module.__name__ or name.startswith("_") or not keywords:
        continue
      for args in ({}, *variants.pop(name, ())):
        label = ",".join(f"{k}={getattr(v, '__name__', v)}" for k, v in args.items())
        where = f"{module.__name__.split('.')[-1]}.{name}({label})"
        out.append(pytest.param(functools.partial(f, **args), id=where))
  assert not variants, f"no such factories: {sorted(variants)}"
  return out


def modules(package):
  """Every module of a package."""
  names = [m.name for m in pkgutil.iter_modules(package.__path__)]
  return [importlib.import_module(f"{package.__name__}.{name}") for name in names]
