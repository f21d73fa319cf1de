"""Sizes of published models, and config.json in both directions."""

import dataclasses
import math

import jax
import pytest

from rlvr_jax.models.configs import CONFIGS, HUB, ModelConfig, from_hf, tiny, to_hf
from rlvr_jax.models.transformer import decoder

PUBLISHED = {  # parameters, a tied head counted once
  "smollm2-135m": 134_515_008,
  "smollm2-360m": 361_821_120,
  "smollm2-1.7b": 1_711_376_384,
  "llama-3.2-1b": 1_235_814_400,
  "llama-3.2-3b": 3_212_749_824,
  "qwen2.5-0.5b": 494_032_768,
  "qwen2.5-1.5b": 1_543_714_304,
  "qwen2.5-7b": 7_615_616_512,
  "qwen2.5-math-1.5b": 1_543_714_304,
  "qwen2.5-math-7b": 7_615_616_512,
  "deepseek-r1-distill-qwen-1.5b": 1_777_088_000,
  "qwen3-0.6b": 596_049_920,
  "qwen3-1.7b": 1_720_574_976,
  "qwen3-4b": 4_022_468_096,
  "qwen3-8b": 8_190_735_360,
  "gemma-2-2b": 2_614_341_888,
  "gemma-3-1b": 999_885_952,
}


def test_every_size_is_listed():
  assert PUBLISHED.keys() == CONFIGS.keys() == HUB.keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count(name):
  one, two = (dataclasses.replace(CONFIGS[name], num_layers=n, sliding=(), sliding_window=None)
              for n in (1, 2))  # fmt: skip
  count = lambda config: sum(
    math.prod(leaf.shape)
    for leaf in jax.tree.leaves(jax.eval_shape(decoder(config).init, jax.random.key(0)))
  )
  layer = count(two) - count(one)
  assert count(one) + (CONFIGS[name].num_layers - 1) * layer == PUBLISHED[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_config_json_round_trip(name):
  assert from_hf(to_hf(CONFIGS[name])) == CONFIGS[name]


LLAMA = {  # as published with Llama-3.2-1B
  "model_type": "llama",
  "hidden_size": 2048,
  "intermediate_size": 8192,
  "num_hidden_layers": 16,
  "num_attention_heads": 32,
  "num_key_value_heads": 8,
  "head_dim": 64,
  "vocab_size": 128256,
  "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-05,
  "rope_theta": 500000.0,
  "rope_scaling": {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
  },
  "tie_word_embeddings": True,
  "hidden_act": "silu",
}


def test_from_hf_old_and_new_rope_keys():
  assert from_hf(LLAMA) == CONFIGS["llama-3.2-1b"]
  new = {k: v for k, v in LLAMA.items() if not k.startswith("rope")}
  new["rope_parameters"] = {**LLAMA["rope_scaling"], "rope_theta": 500000.0}
  assert from_hf(new) == CONFIGS["llama-3.2-1b"]


def test_from_hf_gemma3_takes_the_text_part_and_its_pattern():
  text = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
  }
  config = from_hf({"model_type": "gemma3", "text_config": text})
  assert (config.vocab_size, config.num_heads, config.num_kv_heads) == (262_208, 8, 4)
  assert config.sliding[:7] == (True,) * 5 + (False, True)
  assert config.rope_local_theta == 1e4 and config.rope_theta == 1e6
  assert config.rope_scaling.factor == 8.0 and config.sliding_window == 1024


def test_from_hf_qwen2_slides_only_when_told():
  qwen = to_hf(CONFIGS["qwen2.5-0.5b"]) | {"sliding_window": 4096, "max_window_layers": 20}
  assert from_hf(qwen).sliding == ()
  told = from_hf(qwen | {"use_sliding_window": True})
  assert told.sliding == (False,) * 20 + (True,) * 4 and told.sliding_window == 4096


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported; known: llama, qwen2"),
    ({"num_local_experts": 8}, "num_local_experts=8 is not supported"),
    ({"attention_bias": True}, "attention_bias=True is not supported"),
    ({"hidden_act": "relu"}, "activation 'relu' is not supported"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
  ],
)
def test_from_hf_names_what_is_not_supported(change, message):
  with pytest.raises(ValueError, match=message):
    from_hf(LLAMA | change)


def test_from_hf_names_a_missing_key():
  with pytest.raises(ValueError, match="lacks 'hidden_size'"):
    from_hf({k: v for k, v in LLAMA.items() if k != "hidden_size"})


def test_to_hf_refuses_what_the_family_cannot_say():
  with pytest.raises(ValueError, match="cannot express"):
    to_hf(tiny(32, qk_norm=True))


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"family": "gpt2"}, "family 'gpt2'"),
    ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ({"activation": "relu"}, "activation 'relu'"),
    ({"sliding": (True,), "sliding_window": 2}, "1 entries for 2 layers"),
    ({"sliding": (True, False)}, "go together"),
    ({"num_tokens": 33}, "num_tokens 33 is not in 1..vocab_size 32"),
    ({"dtype": "float16"}, "dtype 'float16'"),
  ],
)
def test_config_checks(change, message):
  with pytest.raises(ValueError, match=message):
    tiny(32, **change)


def test_window_and_scale():
  config = tiny(8, sliding=(False, True), sliding_window=5, query_scalar=25.0)
  assert [config.window(0), config.window(1)] == [None, 5]
  assert config.scale == 0.2
  assert tiny(8).scale == 0.25
  assert isinstance(config, ModelConfig)
