"""Sizes of decoder-only models: `ModelConfig`, the named ones, and Hugging Face's config.json."""

import dataclasses
import math
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3", "gemma2", "gemma3_text")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """How rotary frequencies are stretched beyond the length of pre-training.

  kind "linear" divides every frequency by `factor`. kind "llama3" divides those with a wavelength
  above original_length / low_factor, keeps those below original_length / high_factor, and
  interpolates in between.
  """

  kind: str  # "linear" or "llama3"
  factor: float
  low_factor: float = 1.0
  high_factor: float = 4.0
  original_length: int = 8192


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Everything that decides the shapes and the arithmetic of one model. Hashable."""

  family: str  # Hugging Face's model_type, one of FAMILIES
  vocab_size: int  # rows of the embedding, padding included
  embed_dim: int
  mlp_dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  tied: bool = True  # the head is the transposed embedding
  max_positions: int = 8192  # of pre-training; recorded for export, not enforced
  norm_eps: float = 1e-6
  rope_theta: float = 10_000.0
  rope_scaling: RopeScaling | None = None
  rope_local_theta: float | None = None  # of sliding layers, if they differ (Gemma-3)
  sliding_window: int | None = None  # keys a sliding layer sees, its own included
  sliding: tuple[bool, ...] = ()  # one a layer; () means none slides
  qkv_bias: bool = False  # Qwen2
  qk_norm: bool = False  # RMSNorm over each head of q and k (Qwen3, Gemma-3)
  activation: str = "silu"  # of the gate: "silu" or "gelu_tanh"
  unit_offset: bool = False  # RMSNorm multiplies by 1 + w (Gemma)
  sandwich: bool = False  # norms after attention and after the MLP as well (Gemma-2, Gemma-3)
  scale_embedding: bool = False  # times sqrt(embed_dim) (Gemma)
  query_scalar: float | None = None  # scores are divided by its root; None: head_dim
  attn_softcap: float | None = None  # scores become cap * tanh(scores / cap)
  final_softcap: float | None = None  # the same for logits
  num_tokens: int | None = None  # ids at or above it are never sampled; None: vocab_size
  dtype: str = "float32"  # of activations: "float32" or "bfloat16"
  param_dtype: str = "float32"
  # Of keys and values kept while decoding: as `dtype`, or "bfloat16" or "int8" to save memory.
  cache_dtype: str | None = None
  # What the backward pass computes again: "none"; "dots", all of a layer but its products with weights;
  # "full", whole layers. Less memory, more time.
  remat: str = "none"

  def __post_init__(self):
    if self.family not in FAMILIES:
      raise ValueError(f"family {self.family!r} is not supported; known: {', '.join(FAMILIES)}")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
        f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
      )
    if self.activation not in ("silu", "gelu_tanh"):
      raise ValueError(f"activation {self.activation!r} is not silu or gelu_tanh")
    if self.sliding and len(self.sliding) != self.num_layers:
      raise ValueError(f"sliding has {len(self.sliding)} entries for {self.num_layers} layers")
    if any(self.sliding) != bool(self.sliding) or any(self.sliding) != bool(self.sliding_window):
      raise ValueError("sliding layers and a sliding_window go together, or () and None")
    if self.num_tokens is not None and not 0 < self.num_tokens <= self.vocab_size:
      raise ValueError(f"num_tokens {self.num_tokens} is not in 1..vocab_size {self.vocab_size}")
    if self.remat not in ("none", "dots", "full"):
      raise ValueError(f"remat {self.remat!r} is not none, dots or full")
    for name in (self.dtype, self.param_dtype):
      if name not in ("float32", "bfloat16"):
        raise ValueError(f"dtype {name!r} is not float32 or bfloat16")
    if self.cache_dtype not in (None, "float32", "bfloat16", "int8"):
      raise ValueError(f"cache_dtype {self.cache_dtype!r} is not float32, bfloat16 or int8")

  @property
  def scale(self) -> float:
    """What scores are multiplied by."""
    return 1 / math.sqrt(self.query_scalar or self.head_dim)

  def window(self, layer: int) -> int | None:
    """Keys that the layer sees, counted back from its own; None: all."""
    return self.sliding_window if self.sliding and self.sliding[layer] else None


def tiny(vocab_size: int = 64, **changes: Any) -> ModelConfig:
  """Two small layers, for tests and for learning toy tasks from scratch on a CPU."""
  sizes: dict[str, Any] = dict(
    family="llama", vocab_size=vocab_size, embed_dim=64, mlp_dim=192, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, max_positions=2048,
  )  # fmt: skip
  return ModelConfig(**{**sizes, **changes})


def _smollm2(
  embed_dim: int, mlp_dim: int, num_layers: int, num_heads: int, num_kv_heads: int,
  rope_theta: float = 1e5,
):  # fmt: skip
  return ModelConfig(
    "llama", 49152, embed_dim, mlp_dim, num_layers, num_heads, num_kv_heads, 64, norm_eps=1e-5,
    rope_theta=rope_theta,
  )  # fmt: skip


def _llama3(embed_dim: int, num_layers: int, num_heads: int, head_dim: int):
  return ModelConfig(
    "llama", 128256, embed_dim, 8192, num_layers, num_heads, 8, head_dim, norm_eps=1e-5,
    rope_theta=5e5, rope_scaling=RopeScaling("llama3", 32.0), max_positions=131072,
  )  # fmt: skip


def _qwen2(
  embed_dim: int, mlp_dim: int, num_layers: int, num_heads: int, num_kv_heads: int, **more: Any
):
  sizes = {"vocab_size": 151936, "rope_theta": 1e6, "max_positions": 32768, **more}
  return ModelConfig(
    family="qwen2", embed_dim=embed_dim, mlp_dim=mlp_dim, num_layers=num_layers, qkv_bias=True,
    num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=embed_dim // num_heads, **sizes,
  )  # fmt: skip


def _qwen3(embed_dim: int, mlp_dim: int, num_layers: int, num_heads: int, tied: bool = True):
  return ModelConfig(
    "qwen3", 151936, embed_dim, mlp_dim, num_layers, num_heads, 8, 128, tied, 40960, rope_theta=1e6,
    qk_norm=True,
  )  # fmt: skip


_GEMMA: dict[str, Any] = dict(
  activation="gelu_tanh", unit_offset=True, sandwich=True, scale_embedding=True, query_scalar=256.0
)

CONFIGS: dict[str, ModelConfig] = {
  "smollm2-135m": _smollm2(576, 1536, 30, 9, 3),
  "smollm2-360m": _smollm2(960, 2560, 32, 15, 5),
  "smollm2-1.7b": _smollm2(2048, 8192, 24, 32, 32, rope_theta=1.3e5),
  "llama-3.2-1b": _llama3(2048, 16, 32, 64),
  "llama-3.2-3b": _llama3(3072, 28, 24, 128),
  "qwen2.5-0.5b": _qwen2(896, 4864, 24, 14, 2),
  "qwen2.5-1.5b": _qwen2(1536, 8960, 28, 12, 2, max_positions=131072),
  "qwen2.5-7b": _qwen2(3584, 18944, 28, 28, 4, vocab_size=152064, tied=False, max_positions=131072),
  "qwen2.5-math-1.5b": _qwen2(1536, 8960, 28, 12, 2, rope_theta=1e4, max_positions=4096),
  "qwen2.5-math-7b": _qwen2(
    3584, 18944, 28, 28, 4, vocab_size=152064, tied=False, rope_theta=1e4, max_positions=4096
  ),
  "deepseek-r1-distill-qwen-1.5b": _qwen2(
    1536, 8960, 28, 12, 2, tied=False, rope_theta=1e4, max_positions=131072
  ),
  "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
  "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
  "qwen3-4b": _qwen3(2560, 9728, 36, 32),
  "qwen3-8b": _qwen3(4096, 12288, 36, 32, tied=False),
  "gemma-2-2b": ModelConfig(
    "gemma2", 256000, 2304, 9216, 26, 8, 4, 256, sliding_window=4096, sliding=(True, False) * 13,
    attn_softcap=50.0, final_softcap=30.0, **_GEMMA,
  ),
  "gemma-3-1b": ModelConfig(
    "gemma3_text", 262144, 1152, 6912, 26, 4, 1, 256, max_positions=32768, rope_theta=1e6,
    rope_local_theta=1e4, sliding_window=512, sliding=tuple((i + 1) % 6 != 0 for i in range(26)),
    qk_norm=True, **_GEMMA,
  ),
}  # fmt: skip

HUB: dict[str, str] = {  # where the weights of a named size are published
  "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
  "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
  "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
  "llama-3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
  "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
  "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
  "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
  "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
  "qwen2.5-math-1.5b": "Qwen/Qwen2.5-Math-1.5B",
  "qwen2.5-math-7b": "Qwen/Qwen2.5-Math-7B",
  "deepseek-r1-distill-qwen-1.5b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
  "qwen3-0.6b": "Qwen/Qwen3-0.6B",
  "qwen3-1.7b": "Qwen/Qwen3-1.7B",
  "qwen3-4b": "Qwen/Qwen3-4B",
  "qwen3-8b": "Qwen/Qwen3-8B",
  "gemma-2-2b": "google/gemma-2-2b-it",
  "gemma-3-1b": "google/gemma-3-1b-it",
}


# What the families assume when config.json leaves a key out.
_DEFAULTS: dict[str, dict[str, Any]] = {
  "llama": dict(max_position_embeddings=2048),
  "qwen2": dict(max_position_embeddings=32768),
  "qwen3": dict(max_position_embeddings=32768, head_dim=128),
  "gemma2": dict(
    max_position_embeddings=8192, head_dim=256, tie_word_embeddings=True, sliding_window=4096,
    attn_logit_softcapping=50.0, final_logit_softcapping=30.0, num_key_value_heads=4,
    query_pre_attn_scalar=256, hidden_activation="gelu_pytorch_tanh", sliding_window_pattern=2,
  ),
  "gemma3_text": dict(
    max_position_embeddings=131072, head_dim=256, tie_word_embeddings=True, sliding_window=4096,
    query_pre_attn_scalar=256, hidden_activation="gelu_pytorch_tanh", num_key_value_heads=4,
    sliding_window_pattern=6, rope_theta=1e6, rope_local_base_freq=1e4, num_attention_heads=8,
    vocab_size=262208,
  ),
}  # fmt: skip

# A key of config.json and the values under which nothing unsupported is asked for.
_PLAIN: dict[str, tuple[Any, ...]] = {
  "attention_bias": (None, False),
  "mlp_bias": (None, False),
  "use_bidirectional_attention": (None, False),
  "partial_rotary_factor": (None, 1.0),
  "quantization_config": (None,),
  "num_experts": (None, 0),
  "num_local_experts": (None, 0),
}


def from_hf(config: dict[str, Any], **changes: Any) -> ModelConfig:
  """The config of a Hugging Face checkpoint.

  Reads rope settings under `rope_parameters` as well as under `rope_theta` and `rope_scaling`.

  Args:
    config: the contents of config.json; of a multimodal Gemma-3 the text part is taken.
    changes: fields of `ModelConfig` to override, such as dtype.

  Raises:
    ValueError: naming the model_type, key or feature that is missing or not supported.
  """
  kind = config.get("model_type")
  if kind == "gemma3":
    config, kind = {"model_type": "gemma3_text", **config["text_config"]}, "gemma3_text"
  if kind not in FAMILIES:
    raise ValueError(f"model_type {kind!r} is not supported; known: {', '.join(FAMILIES)}")
  config = {**_DEFAULTS[kind], **config}
  required = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
  )  # fmt: skip
  for key in required:
    if key not in config:
      raise ValueError(f"config.json of a {kind} model lacks {key!r}")
  for key, plain in _PLAIN.items():
    if config.get(key) not in plain:
      raise ValueError(f"{kind} with {key}={config[key]!r} is not supported")
  gemma = kind.startswith("gemma")
  act = config["hidden_activation"] if gemma else config.get("hidden_act", "silu")
  if act != ("gelu_pytorch_tanh" if gemma else "silu"):
    raise ValueError(f"{kind} with activation {act!r} is not supported")

  num_heads, num_layers = config["num_attention_heads"], config["num_hidden_layers"]
  sliding, window = _sliding(kind, config)
  theta, local_theta, scaling = _rope(kind, config)
  fields: dict[str, Any] = dict(
    family=kind,
    vocab_size=config["vocab_size"],
    embed_dim=config["hidden_size"],
    mlp_dim=config["intermediate_size"],
    num_layers=num_layers,
    num_heads=num_heads,
    num_kv_heads=config.get("num_key_value_heads") or num_heads,
    head_dim=config.get("head_dim") or config["hidden_size"] // num_heads,
    tied=bool(config.get("tie_word_embeddings", False)),
    max_positions=config["max_position_embeddings"],
    norm_eps=config.get("rms_norm_eps", 1e-6),
    rope_theta=theta,
    rope_local_theta=local_theta,
    rope_scaling=scaling,
    sliding=sliding,
    sliding_window=window,
    qkv_bias=kind == "qwen2",
    qk_norm=kind in ("qwen3", "gemma3_text"),
  )
  if gemma:
    fields |= {
      **_GEMMA,
      "query_scalar": float(config["query_pre_attn_scalar"]),
      "attn_softcap": config.get("attn_logit_softcapping"),
      "final_softcap": config.get("final_logit_softcapping"),
    }
  return ModelConfig(**{**fields, **changes})


def _sliding(kind: str, config: dict[str, Any]) -> tuple[tuple[bool, ...], int | None]:
  """Which layers slide, and their window."""
  layers = range(config["num_hidden_layers"])
  window = config.get("sliding_window")
  if kind.startswith("qwen") and not config.get("use_sliding_window"):
    window = None
  if window is None or kind == "llama":
    return (), None
  if config.get("layer_types"):
    sliding = tuple(kind == "sliding_attention" for kind in config["layer_types"])
  elif kind.startswith("qwen"):
    sliding = tuple(i >= config.get("max_window_layers", 28) for i in layers)
  else:
    sliding = tuple((i + 1) % config["sliding_window_pattern"] != 0 for i in layers)
  return (sliding, window) if any(sliding) else ((), None)


def _rope(kind: str, config: dict[str, Any]) -> tuple[float, float | None, RopeScaling | None]:
  """Base of the rotary frequencies, that of sliding layers (Gemma-3), and their scaling."""
  stated = config.get("rope_parameters") or {}
  full = stated.get("full_attention", stated)
  theta = float(full.get("rope_theta", config.get("rope_theta", 10_000.0)))
  local = None
  if kind == "gemma3_text":
    near = stated.get("sliding_attention", {})
    if near.get("rope_type", "default") != "default":
      raise ValueError(f"rope scaling {near['rope_type']!r} of sliding layers is not supported")
    local = float(near.get("rope_theta", config["rope_local_base_freq"]))
  if full.get("partial_rotary_factor", 1.0) != 1.0:
    raise ValueError(f"partial_rotary_factor {full['partial_rotary_factor']} is not supported")
  scaling = full if "rope_type" in full else config.get("rope_scaling") or {}
  rope_type = scaling.get("rope_type", scaling.get("type", "default"))
  if rope_type == "default":
    return theta, local, None
  if rope_type == "linear":
    return theta, local, RopeScaling("linear", float(scaling["factor"]))
  if rope_type == "llama3":
    return theta, local, RopeScaling(
      "llama3", float(scaling["factor"]), float(scaling["low_freq_factor"]),
      float(scaling["high_freq_factor"]), int(scaling["original_max_position_embeddings"]),
    )  # fmt: skip
  raise ValueError(f"rope scaling {rope_type!r} is not supported; known: default, linear, llama3")


_ARCHITECTURES = {
  "llama": "LlamaForCausalLM",
  "qwen2": "Qwen2ForCausalLM",
  "qwen3": "Qwen3ForCausalLM",
  "gemma2": "Gemma2ForCausalLM",
  "gemma3_text": "Gemma3ForCausalLM",
}


def to_hf(config: ModelConfig) -> dict[str, Any]:
  """The contents of config.json; `from_hf` and transformers read it back.

  Raises:
    ValueError: if the config has what its family cannot express.
  """
  gemma = config.family.startswith("gemma")
  hf: dict[str, Any] = {
    "architectures": [_ARCHITECTURES[config.family]],
    "model_type": config.family,
    "vocab_size": config.vocab_size,
    "hidden_size": config.embed_dim,
    "intermediate_size": config.mlp_dim,
    "num_hidden_layers": config.num_layers,
    "num_attention_heads": config.num_heads,
    "num_key_value_heads": config.num_kv_heads,
    "head_dim": config.head_dim,
    "tie_word_embeddings": config.tied,
    "max_position_embeddings": config.max_positions,
    "rms_norm_eps": config.norm_eps,
    "rope_theta": config.rope_theta,
    "attention_bias": False,
    "torch_dtype": config.param_dtype,
    ("hidden_activation" if gemma else "hidden_act"): "gelu_pytorch_tanh" if gemma else "silu",
  }
  scaling = config.rope_scaling
  if scaling is not None:
    hf["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
      hf["rope_scaling"] |= {
        "low_freq_factor": scaling.low_factor,
        "high_freq_factor": scaling.high_factor,
        "original_max_position_embeddings": scaling.original_length,
      }
  sliding = config.sliding or (False,) * config.num_layers
  if gemma or any(sliding):
    hf["sliding_window"] = config.sliding_window
    hf["layer_types"] = ["sliding_attention" if s else "full_attention" for s in sliding]
  if config.family.startswith("qwen"):
    hf["use_sliding_window"] = any(sliding)
  if gemma:
    hf |= {
      "query_pre_attn_scalar": int(config.query_scalar or config.head_dim),
      "attn_logit_softcapping": config.attn_softcap,
      "final_logit_softcapping": config.final_softcap,
    }
  if config.family == "gemma3_text":
    hf["rope_local_base_freq"] = config.rope_local_theta
  here: dict[str, Any] = dict(
    dtype=config.dtype, param_dtype=config.param_dtype, num_tokens=config.num_tokens,
    remat=config.remat,
  )  # fmt: skip
  if from_hf(hf, **here) != config:
    raise ValueError(f"a {config.family} config.json cannot express {config}")
  return hf
