"""Weights from and to Hugging Face folders (safetensors), and from GGUF files."""

import contextlib
import functools
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from rlvr_jax.core.types import Array, Params
from rlvr_jax.models.configs import ModelConfig, from_hf, to_hf
from rlvr_jax.models.transformer import decoder

Place = Callable[[np.ndarray, tuple], Any]  # (array, its logical axes) -> what params shall hold
Path = tuple[str, ...]

_IGNORED = ("rotary_emb.inv_freq", "vision_tower.", "multi_modal_projector.")
_INDEX = "model.safetensors.index.json"


def on_default_device(array: np.ndarray, axes: tuple) -> Array:
  """The usual `Place`: leaves axes aside."""
  del axes
  return jnp.asarray(array)


# ------------------------------------------------------------------------------------------------
# Names


def hf_names(config: ModelConfig) -> dict[Path, str]:
  """Where each leaf of params is kept in a Hugging Face checkpoint."""
  block = {
    "attn_norm": "input_layernorm",
    "mlp_norm": "pre_feedforward_layernorm" if config.sandwich else "post_attention_layernorm",
    "post_attn_norm": "post_attention_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
    **{x: f"self_attn.{x}_proj" for x in "qkvo"},
    **{f"{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{x: f"mlp.{x}_proj" for x in ("gate", "up", "down")},
  }
  top = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
  return _names(config, top, block, "model.layers.{}.{}")


def gguf_names(config: ModelConfig) -> dict[Path, str]:
  """Where each leaf of params is kept in a GGUF file."""
  block = {
    "attn_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "o": "attn_output",
    **{x: f"attn_{x}" for x in "qkv"},
    **{f"{x}_norm": f"attn_{x}_norm" for x in "qk"},
    **{x: f"ffn_{x}" for x in ("gate", "up", "down")},
  }
  top = {"embedding": "token_embd", "final_norm": "output_norm", "head": "output"}
  return _names(config, top, block, "blk.{}.{}")


def _names(config: ModelConfig, top: Mapping, block: Mapping, layer: str) -> dict[Path, str]:
  names = {}
  for path in _leaves(decoder(config).axes):
    leaf = path[-1].removesuffix("_bias")
    kind = "weight" if leaf == path[-1] else "bias"
    if len(path) == 1:
      names[path] = f"{top[leaf]}.{kind}"
    else:
      names[path] = f"{layer.format(path[0].removeprefix('layers_'), block[leaf])}.{kind}"
  return names


def _leaves(tree: Mapping, prefix: Path = ()) -> dict[Path, Any]:
  """The leaves of a nested dict by path."""
  found = {}
  for key, value in tree.items():
    found |= _leaves(value, (*prefix, key)) if isinstance(value, dict) else {(*prefix, key): value}
  return found


def _nested(leaves: Mapping[Path, Any]) -> Params:
  tree: dict[str, Any] = {}
  for path, value in leaves.items():
    node = tree
    for key in path[:-1]:
      node = node.setdefault(key, {})
    node[path[-1]] = value
  return tree


# ------------------------------------------------------------------------------------------------
# Hugging Face folders


def load_hf(
  folder: str | pathlib.Path,
  config: ModelConfig,
  param_dtype: str | None = None,
  place: Place = on_default_device,
) -> Params:
  """Params from the safetensors of a folder, read one tensor at a time.

  Reads model.safetensors, or the shards that model.safetensors.index.json lists. A head stored
  beside a tied embedding is left alone, and so are the image parts of a multimodal Gemma-3.

  Args:
    folder: holds the safetensors.
    config: of the model, for instance `from_hf` of the folder's config.json.
    param_dtype: "float32" or "bfloat16"; None: the config's.
    place: puts each leaf where it belongs, given its logical axes: with it, a model larger than
      one device goes straight to its shards.

  Raises:
    ValueError: if a file is missing or damaged, or a tensor is missing, unexpected, of another
      shape or not floating point; the message names the file, the tensor and both shapes.
  """
  folder = pathlib.Path(folder)
  names = {name: path for path, name in hf_names(config).items()}
  return _assemble(folder, config, param_dtype, place, _hf_tensors(folder, config, names))


def _hf_tensors(folder: pathlib.Path, config: ModelConfig, names: Mapping[str, Path]):
  for file in _safetensors(folder):
    with _reading(file), safetensors.safe_open(file, framework="numpy") as tensors:
      for stored in tensors.keys():  # noqa: SIM118 (not a dict)
        name = stored.removeprefix("language_model.").replace("model.language_model.", "model.")
        if any(part in name for part in _IGNORED) or (config.tied and name == "lm_head.weight"):
          continue
        if name not in names:
          raise ValueError(f"{file}: unexpected tensor {stored!r} for a {config.family} model")
        yield file, names[name], stored, tensors.get_tensor(stored)


def _safetensors(folder: pathlib.Path) -> list[pathlib.Path]:
  index = folder / _INDEX
  if index.exists():
    with _reading(index):
      files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
  else:
    files = ["model.safetensors"]
  for file in files:
    if not (folder / file).exists():
      raise ValueError(f"{folder / file} is missing: safetensors weights are needed")
  return [folder / file for file in files]


@contextlib.contextmanager
def _reading(file: pathlib.Path) -> Iterator[None]:
  """Turns what readers raise for damaged files into a ValueError that names the file."""
  try:
    yield
  except (safetensors.SafetensorError, KeyError, IndexError, OSError, ValueError) as error:
    if isinstance(error, ValueError) and str(error).startswith(str(file)):
      raise
    raise ValueError(
      f"{file} is damaged or incomplete; fetch it again ({type(error).__name__}: {error})"
    ) from error


def _assemble(source, config, param_dtype, place, tensors) -> Params:
  """Params of (file, path, stored name, array [out,in]) tensors, checked against the model."""
  policy = decoder(config)
  axes = _leaves(policy.axes)
  shapes = _leaves(jax.eval_shape(policy.init, jax.random.key(0)))
  dtype = jnp.dtype(param_dtype or config.param_dtype)
  found: dict[Path, Any] = {}
  for file, path, stored, array in tensors:
    if array.shape != shapes[path].shape:
      raise ValueError(
        f"{file}: tensor {stored!r} has shape {array.shape}, the model needs {shapes[path].shape}"
      )
    if not jnp.issubdtype(array.dtype, jnp.floating):
      raise ValueError(f"{file}: tensor {stored!r} is {array.dtype}; quantised weights don't load")
    found[path] = place(np.ascontiguousarray(array, dtype), axes[path])
  if missing := [path for path in shapes if path not in found]:
    names = hf_names(config) if pathlib.Path(source).is_dir() else gguf_names(config)
    few = ", ".join(repr(names[path]) for path in missing[:4])
    raise ValueError(f"{source}: {len(missing)} tensors are missing, such as {few}")
  return _nested(found)


def save_hf(
  folder: str | pathlib.Path,
  params: Params,
  config: ModelConfig,
  tokenizer: Any = None,
  max_shard_bytes: int = 5_000_000_000,
) -> None:
  """Writes a folder that transformers and `load_hf` read back bit for bit.

  Everything is written beside the folder first, then moved into place. A tied head is not written.

  Args:
    folder: where; an earlier export there is replaced, any other content is an error.
    params: of the model; kept in the dtype they have.
    config: of the model.
    tokenizer: something with `save(folder)`, `eos_ids`, `bos_id` and `pad_id`, written along.
    max_shard_bytes: a new shard is begun beyond it.

  Raises:
    ValueError: if the folder holds something else, or params do not fit the config.
  """
  folder = pathlib.Path(folder)
  if folder.exists() and any(folder.iterdir()) and not (folder / "config.json").exists():
    raise ValueError(f"{folder} is not empty and holds no earlier export; choose another folder")
  leaves, names = _leaves(params), hf_names(config)
  if leaves.keys() != names.keys():
    odd = sorted(map(".".join, leaves.keys() ^ names.keys()))
    raise ValueError(f"params do not fit the config: {', '.join(odd[:4])}")
  card = {**to_hf(config), "torch_dtype": str(leaves["embedding",].dtype)}
  if tokenizer is not None:
    ids = {"eos_token_id": list(tokenizer.eos_ids), "pad_token_id": tokenizer.pad_id}
    ids |= {"bos_token_id": tokenizer.bos_id}
    card |= ids
  fresh, stale = folder.with_name(folder.name + ".new"), folder.with_name(folder.name + ".old")
  for leftover in (fresh, stale):
    shutil.rmtree(leftover, ignore_errors=True)
  fresh.mkdir(parents=True)
  (fresh / "config.json").write_text(json.dumps(card, indent=2) + "\n")
  if tokenizer is not None:
    (fresh / "generation_config.json").write_text(json.dumps(ids, indent=2) + "\n")
    tokenizer.save(fresh)
  _write_shards(fresh, leaves, names, max_shard_bytes)
  if folder.exists():
    folder.rename(stale)
  fresh.rename(folder)
  shutil.rmtree(stale, ignore_errors=True)


def _write_shards(folder: pathlib.Path, leaves, names, max_shard_bytes: int) -> None:
  shards: list[list[Path]] = [[]]
  size = 0
  for path, leaf in leaves.items():
    if shards[-1] and size + leaf.nbytes > max_shard_bytes:
      shards.append([])
      size = 0
    shards[-1].append(path)
    size += leaf.nbytes
  weight_map = {}
  for number, paths in enumerate(shards, 1):
    file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
    file = file if len(shards) > 1 else "model.safetensors"
    tensors = {}
    for path in paths:
      tensors[names[path]] = np.ascontiguousarray(leaves[path])
      weight_map[names[path]] = file
    safetensors.numpy.save_file(tensors, folder / file, metadata={"format": "pt"})
  if len(shards) > 1:
    total = sum(leaf.nbytes for leaf in leaves.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


# ------------------------------------------------------------------------------------------------
# GGUF


def open_gguf(path: str | pathlib.Path) -> gguf.GGUFReader:
  """A reader of the file.

  Raises:
    ValueError: if it is missing, damaged or cut short.
  """
  path = pathlib.Path(path)
  if not path.exists():
    raise ValueError(f"{path} does not exist")
  facts = path.stat()
  return _opened(path.resolve(), facts.st_size, facts.st_mtime_ns)


@functools.lru_cache(
  maxsize=1
)  # weights and tokenizer come from one file; indexing it takes seconds
def _opened(path: pathlib.Path, size: int, modified: int) -> gguf.GGUFReader:
  with _reading(path):
    return gguf.GGUFReader(path)


def gguf_value(reader: gguf.GGUFReader, key: str, default: Any = None) -> Any:
  """A metadata value, or the default where the file has none."""
  field = reader.get_field(key)
  return default if field is None else field.contents()


def load_gguf(
  path: str | pathlib.Path, param_dtype: str = "float32", place: Place = on_default_device
) -> tuple[ModelConfig, Params]:
  """Config and dequantised params of a GGUF file of the llama, qwen2 or qwen3 architecture.

  Files of the llama architecture hold q and k with the two halves of each head interleaved, for a
  rotary embedding over neighbouring pairs; this undoes it.

  Raises:
    ValueError: if the file is damaged, of another architecture, or does not hold what the
      architecture needs; the message names the file, the tensor and both shapes.
  """
  path = pathlib.Path(path)
  reader = open_gguf(path)
  config = _gguf_config(path, reader, param_dtype)
  names = {name: leaf for leaf, name in gguf_names(config).items()}
  params = _assemble(path, config, param_dtype, place, _gguf_tensors(path, reader, config, names))
  return config, params


def _gguf_config(path: pathlib.Path, reader: gguf.GGUFReader, param_dtype: str) -> ModelConfig:
  arch = gguf_value(reader, "general.architecture")
  if arch not in ("llama", "qwen2", "qwen3"):
    raise ValueError(f"{path}: architecture {arch!r} is not supported; known: llama, qwen2, qwen3")

  def value(key: str, default: Any = None) -> Any:
    found = gguf_value(reader, f"{arch}.{key}", default)
    if found is None:
      raise ValueError(f"{path}: metadata {arch}.{key!r} is missing")
    return found

  stored = {tensor.name: tensor for tensor in reader.tensors}
  if "rope_freqs.weight" in stored:
    raise ValueError(f"{path}: scaled rotary frequencies are not read from GGUF; use safetensors")
  if value("expert_count", 0):
    raise ValueError(f"{path}: mixtures of experts are not supported")
  if "token_embd.weight" not in stored:
    raise ValueError(f"{path}: tensor 'token_embd.weight' is missing")
  heads, embed = value("attention.head_count"), value("embedding_length")
  head_dim = value("attention.key_length", embed // heads)
  hf = {
    "model_type": arch,
    "vocab_size": int(stored["token_embd.weight"].shape[1]),
    "hidden_size": embed,
    "intermediate_size": value("feed_forward_length"),
    "num_hidden_layers": value("block_count"),
    "num_attention_heads": heads,
    "num_key_value_heads": value("attention.head_count_kv", heads),
    "head_dim": head_dim,
    "tie_word_embeddings": "output.weight" not in stored,
    "max_position_embeddings": value("context_length"),
    "rms_norm_eps": float(f"{value('attention.layer_norm_rms_epsilon'):.6g}"),
    "rope_theta": value("rope.freq_base", 10_000.0),
  }
  scaling = value("rope.scaling.type", "none")
  if scaling != "none":
    hf["rope_scaling"] = {"rope_type": scaling, "factor": value("rope.scaling.factor")}
  if value("rope.dimension_count", head_dim) != head_dim:
    raise ValueError(f"{path}: rotating a part of each head is not supported")
  try:
    return from_hf(hf, param_dtype=param_dtype)
  except ValueError as error:
    raise ValueError(f"{path}: {error}") from error


def _gguf_tensors(path: pathlib.Path, reader, config: ModelConfig, names: Mapping[str, Path]):
  heads = {"q": config.num_heads, "k": config.num_kv_heads}
  for tensor in reader.tensors:
    if tensor.name not in names:
      raise ValueError(f"{path}: unexpected tensor {tensor.name!r} for a {config.family} model")
    leaf = names[tensor.name]
    with _reading(path):
      array = gguf.dequantize(tensor.data, tensor.tensor_type)
    array = array.reshape(tuple(int(n) for n in tensor.shape[::-1]))
    if config.family == "llama" and leaf[-1] in heads:
      size = array.shape[0] // heads[leaf[-1]] // 2
      pairs = array.reshape(heads[leaf[-1]], size, 2, -1)
      array = pairs.swapaxes(1, 2).reshape(array.shape)
    yield path, leaf, tensor.name, array
