"""Completes a prompt.

python -m launch.generate --policy=smollm2-135m --prompt="What is 2+2?" --max_new_tokens=24
"""

import json
import sys

from absl import app, flags, logging


def define_flags():
  """Here and not at the top, so that the module can be imported beside other commands."""
  flags.DEFINE_string("policy", "smollm2-135m", "Name, folder, .gguf file or hub id.")
  flags.DEFINE_string("prompt", None, "Text of the prompt.")
  flags.DEFINE_string("system", None, "System message; needs a chat template.")
  flags.DEFINE_bool("raw", False, "Complete the text as it is, without the chat template.")
  flags.DEFINE_integer("max_new_tokens", 64, "Tokens of the response, at most.")
  flags.DEFINE_float("temperature", 1.0, "0 is greedy.")
  flags.DEFINE_integer("top_k", 0, "Sample among the k likeliest tokens; 0: all.")
  flags.DEFINE_float("top_p", 1.0, "Sample among the likeliest tokens of this mass.")
  flags.DEFINE_multi_string("stop", [], "A string that ends a completion; may be repeated.")
  flags.DEFINE_integer("samples", 1, "Completions.")
  flags.DEFINE_integer("seed", 0, "Of the sampling.")
  flags.DEFINE_string("dtype", "float32", "Of activations: float32 or bfloat16.")
  flags.DEFINE_string("cache_dtype", None, "Of keys and values: float32, bfloat16 or int8.")
  flags.DEFINE_bool("json", False, "One JSON line a completion, with ids and log-probs.")


def complete(loaded, ids, *, max_new_tokens, temperature, top_k, top_p, samples, seed, stop=()):
  """Completions of one prompt.

  Args:
    loaded: models.load.LoadedPolicy.
    ids: token ids of the prompt.
    stop: strings; a completion ends with the token that completes one.

  Returns:
    For each sample a dict: text, prompt_ids, completion_ids, logprobs (under the whole softmax at the
    temperature; of temperature 1 when greedy) and finish_reason.

  Raises:
    ValueError: for an empty prompt or a number out of range.
  """
  import jax
  import jax.numpy as jnp

  from rlvr_jax.core import keys
  from rlvr_jax.core import rows as rows_lib
  from rlvr_jax.core.types import STATUS_NAMES
  from rlvr_jax.decode.decode import decode
  from rlvr_jax.decode.logits import truncation
  from rlvr_jax.decode.stops import stops

  if not ids:
    raise ValueError("the prompt has no tokens")
  if max_new_tokens < 1 or samples < 1 or temperature < 0:
    raise ValueError(
      "want max_new_tokens >= 1, samples >= 1 and temperature >= 0, got "
      f"{max_new_tokens}, {samples} and {temperature}"
    )
  rule = truncation(top_k=top_k, top_p=top_p)
  tokens, zeros = jnp.asarray([ids], jnp.int32), jnp.zeros(samples, jnp.int32)
  uid = keys.row_uids(jax.random.key(seed), 0, zeros, jnp.arange(samples))
  rows = rows_lib.fresh(
    tokens,
    jnp.asarray([len(ids)], jnp.int32),
    group=zeros,
    valid=jnp.ones(samples, bool),
    uid=uid,
    num_places=len(ids) + max_new_tokens,
    max_new_tokens=max_new_tokens,
    temperature=temperature,
  )

  rows, _ = decode(
    loaded.policy,
    loaded.params,
    rows,
    version=0,
    eos_ids=loaded.tokenizer.eos_ids,
    slots=samples,
    num_contexts=1,
    prompt_places=len(ids),
    rule=rule,
    stops=stops(stop, loaded.tokenizer.token_bytes) if stop else None,
  )
  rows = jax.device_get(rows)
  out = []
  for i in range(samples):
    span = slice(rows.response_start[i], rows.length[i])
    completion = rows.tokens[i, span].tolist()
    out.append(
      {
        "text": loaded.tokenizer.decode(completion),
        "prompt_ids": list(ids),
        "completion_ids": completion,
        "logprobs": rows.full_logprobs[i, span].tolist(),
        "finish_reason": STATUS_NAMES[rows.status[i]],
      }
    )
  return out


def main(argv):
  given = flags.FLAGS
  logging.set_verbosity(logging.WARNING)  # JAX tells which backends it did not find
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}; options are --name=value")
  if given.prompt is None:
    raise app.UsageError("--prompt=TEXT is needed")
  from rlvr_jax.models.load import load_policy

  try:
    loaded = load_policy(given.policy, dtype=given.dtype, cache_dtype=given.cache_dtype)
    if given.raw and given.system is not None:
      raise ValueError("--system needs the chat template, which --raw turns off")
    if given.raw:
      ids = loaded.tokenizer.encode(given.prompt)
    else:
      system = [] if given.system is None else [{"role": "system", "content": given.system}]
      ids = loaded.tokenizer.chat([*system, {"role": "user", "content": given.prompt}])
    completions = complete(
      loaded,
      ids,
      max_new_tokens=given.max_new_tokens,
      temperature=given.temperature,
      top_k=given.top_k,
      top_p=given.top_p,
      samples=given.samples,
      seed=given.seed,
      stop=given.stop,
    )
  except ValueError as error:
    sys.exit(f"error: {error}")
  for one in completions:
    print(json.dumps(one) if given.json else one["text"])


if __name__ == "__main__":
  define_flags()
  app.run(main)
