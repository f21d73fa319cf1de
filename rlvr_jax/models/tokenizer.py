"""Text to token ids and back, with chat templates: from a Hugging Face folder or a GGUF file."""

import datetime
import functools
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from rlvr_jax.models.convert import gguf_value, open_gguf

TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")  # tokens that close a chat turn
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")

_HEX = re.compile("<0x[0-9A-F]{2}>")


def _byte_alphabet() -> dict[str, int]:
  """The characters in which byte-level BPE writes bytes: printable ones stand for themselves."""
  own = [*range(33, 127), *range(161, 173), *range(174, 256)]
  others = [b for b in range(256) if b not in own]
  return {chr(b): b for b in own} | {chr(256 + i): b for i, b in enumerate(others)}


_BYTES = _byte_alphabet()


class ChatTokenizer:
  """A `core.types.Tokenizer` around the tokenizers library.

  Attributes:
    vocab_size: one more than the largest id; ids at or above it are never sampled.
    eos_ids: ids that end a response: those of the generation config, the tokenizer's own, and the
      tokens that close a chat turn.
    bos_id: id of the token that starts a text, or None.
    pad_id: id of padding; where the tokenizer names none, the first of eos_ids.
  """

  def __init__(
    self,
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    template: str | None = None,
    eos_ids: Sequence[int] = (),
  ):
    """Args:
      backend: the tokenizer proper.
      config: contents of tokenizer_config.json; its special tokens and add_bos_token are read.
      template: Jinja source of the chat template.
      eos_ids: those the generation config names.

    Raises:
      ValueError: if a special token is not in the vocabulary, or nothing ends a response.
    """
    self._backend = backend
    self._config = dict(config)
    self._template = template
    self._compiled = None if template is None else _environment().from_string(template)
    self._special = {}  # role -> token, for those the config names
    for role in _SPECIAL:
      token = config.get(role)
      token = token["content"] if isinstance(token, Mapping) else token
      if token is not None:
        if backend.token_to_id(token) is None:
          raise ValueError(f"{role} {token!r} is not in the tokenizer's vocabulary")
        self._special[role] = token
    self.vocab_size = max(backend.get_vocab(with_added_tokens=True).values()) + 1
    self.bos_id = self._id("bos_token")
    own = [self._id("eos_token"), *map(backend.token_to_id, TURN_ENDS)]
    self.eos_ids = tuple(dict.fromkeys([*eos_ids, *(x for x in own if x is not None)]))
    if not self.eos_ids:
      raise ValueError("the tokenizer names no eos_token, so no response could end")
    pad = self._id("pad_token")
    self.pad_id = self.eos_ids[0] if pad is None else pad

  @property
  def fingerprint(self) -> str:
    """Equal only for tokenizers that give equal ids."""
    parts = [self._backend.to_str(), self._config, self._template]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

  @functools.cached_property
  def token_bytes(self) -> tuple[bytes, ...]:
    """The bytes each id stands for in a text; none for ids without a token."""
    special = self._backend.get_added_tokens_decoder()
    byte_level = "ByteLevel" in str(self._backend.decoder)
    out = [b""] * self.vocab_size
    for token, i in self._backend.get_vocab(with_added_tokens=True).items():
      if i in special:
        out[i] = token.encode()
      elif byte_level:
        out[i] = bytes(_BYTES[c] for c in token)
      elif _HEX.fullmatch(token):  # SentencePiece's bytes
        out[i] = bytes([int(token[3:5], 16)])
      else:
        out[i] = token.replace("▁", " ").encode()
    return tuple(out)

  def _id(self, role: str) -> int | None:
    token = self._special.get(role)
    return None if token is None else self._backend.token_to_id(token)

  def encode(self, text: str) -> list[int]:
    """Ids of a text; they begin with one BOS if, and only if, the tokenizer adds it."""
    adds = self._config.get("add_bos_token")
    ids = self._backend.encode(text, add_special_tokens=adds is not False).ids
    if adds and self.bos_id is not None and ids[:1] != [self.bos_id]:
      ids = [self.bos_id, *ids]
    return ids

  def decode(self, ids: Sequence[int]) -> str:
    """Text of ids, special tokens left out."""
    return self._backend.decode([int(x) for x in ids], skip_special_tokens=True)

  def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Ids of a conversation up to the cue that opens the assistant's turn.

    The template writes special tokens itself, BOS included; none is added.

    Raises:
      ValueError: if there is no chat template, or it rejects the messages.
    """
    return self._backend.encode(self.render(messages), add_special_tokens=False).ids

  def render(self, messages: Sequence[Mapping[str, str]]) -> str:
    """The text that `chat` encodes."""
    if self._compiled is None:
      raise ValueError(
        "this tokenizer has no chat template; use plain prompts, or a chat model's tokenizer"
      )
    try:
      return self._compiled.render(
        messages=[dict(m) for m in messages], add_generation_prompt=True, tools=None,
        documents=None, **self._special,
      )  # fmt: skip
    except jinja2.TemplateError as error:
      raise ValueError(f"the chat template rejects the messages: {error}") from error

  def save(self, folder: str | pathlib.Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json, which transformers reads back."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    self._backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **self._config}
    if self._template is not None:
      config["chat_template"] = self._template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def from_folder(folder: str | pathlib.Path) -> ChatTokenizer:
  """The tokenizer of a Hugging Face folder.

  Reads tokenizer.json, tokenizer_config.json, chat_template.jinja where there is one, and the end
  tokens of generation_config.json.

  Raises:
    ValueError: if tokenizer.json is missing, or a file cannot be read.
  """
  folder = pathlib.Path(folder)
  path = folder / "tokenizer.json"
  if not path.exists():
    raise ValueError(
      f"{path} is missing; a fast tokenizer is needed: load it with transformers' AutoTokenizer "
      "and call save_pretrained on the folder"
    )
  try:
    backend = tokenizers.Tokenizer.from_file(str(path))
  except Exception as error:  # the library raises bare Exception
    raise ValueError(f"{path} is not a tokenizer: {error}") from error
  config = _json(folder / "tokenizer_config.json")
  template = _template(config.pop("chat_template", None))
  if (folder / "chat_template.jinja").exists():
    template = (folder / "chat_template.jinja").read_text()
  ends = _json(folder / "generation_config.json").get("eos_token_id")
  ends = [] if ends is None else [ends] if isinstance(ends, int) else ends
  return ChatTokenizer(backend, config, template, ends)


def _json(path: pathlib.Path) -> dict[str, Any]:
  """Contents of a JSON file; {} if there is none."""
  if not path.exists():
    return {}
  try:
    return json.loads(path.read_text())
  except ValueError as error:
    raise ValueError(f"{path} is not JSON: {error}") from error


def _template(stated: Any) -> str | None:
  """The template of tokenizer_config.json: a string, or a list of named ones."""
  if isinstance(stated, list):
    return next((t["template"] for t in stated if t["name"] == "default"), None)
  return stated


def _digits_then_bytes() -> Any:
  # SmolLM2 cuts digits off before words are split; so in "a  9" the two spaces stay one token.
  return pre_tokenizers.Sequence(
    [
      pre_tokenizers.Digits(individual_digits=True),
      pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
  )


def _words_then_bytes(pattern: str) -> Any:
  split = pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated", invert=False)
  return pre_tokenizers.Sequence(
    [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
  )


_QWEN2_WORDS = (
  r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
  r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def from_gguf(path: str | pathlib.Path) -> ChatTokenizer:
  """The tokenizer stored in a GGUF file: byte-level BPE of the smollm or qwen2 kind.

  Raises:
    ValueError: if the file is damaged, or its tokenizer is of another kind.
  """
  reader = open_gguf(path)

  def value(key: str, default: Any = None) -> Any:
    return gguf_value(reader, f"tokenizer.ggml.{key}", default)

  kind = value("model"), value("pre")
  if kind == ("gpt2", "smollm"):
    split, normalizer = _digits_then_bytes(), None
  elif kind == ("gpt2", "qwen2"):
    split, normalizer = _words_then_bytes(_QWEN2_WORDS), normalizers.NFC()
  else:
    raise ValueError(f"{path}: tokenizer {kind} is not supported; known: gpt2 with smollm or qwen2")
  tokens, merges = value("tokens"), [tuple(m.split(" ")) for m in value("merges")]
  backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
  backend.pre_tokenizer = split
  if normalizer is not None:
    backend.normalizer = normalizer
  backend.decoder = decoders.ByteLevel()
  control, user = 3, 4  # token types that are never made by merging
  added = [(t, k) for t, k in zip(tokens, value("token_type"), strict=True) if k in (control, user)]
  backend.add_tokens(
    [tokenizers.AddedToken(t, special=k == control, normalized=False) for t, k in added]
  )
  ids = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
  config: dict[str, Any] = {"add_bos_token": bool(value("add_bos_token", False))}
  for role, name in ids.items():
    if (number := value(f"{name}_token_id")) is not None:
      config[f"{role}_token"] = tokens[number]
  template = gguf_value(reader, "tokenizer.chat_template")
  return ChatTokenizer(backend, config, template)


# ------------------------------------------------------------------------------------------------
# Chat templates


class _Generation(jinja2.ext.Extension):
  """{% generation %} marks the assistant's words for training; here its body is just written."""

  tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

  def parse(self, parser):
    line = next(parser.stream).lineno
    body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
    return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str):
  raise jinja2.TemplateError(message)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
  """JSON without the escapes for HTML that Jinja's own filter makes."""
  return json.dumps(
    value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
  )


def _strftime_now(pattern: str) -> str:
  return datetime.datetime.now().strftime(pattern)


def _environment() -> jinja2.Environment:
  environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
  )
  environment.filters["tojson"] = _tojson
  environment.globals["raise_exception"] = _raise_exception
  environment.globals["strftime_now"] = _strftime_now
  return environment
