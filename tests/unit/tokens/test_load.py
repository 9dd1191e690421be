"""Tokenizers from a directory in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder

from support.tiny_tokenizers import LETTER_OF_BYTE, byte_level, metaspace
from trivium.base.errors import CheckpointError, ModelError
from trivium.tokens.load import load_tokenizer

BYTES = {LETTER_OF_BYTE[byte]: byte for byte in range(256)}
MERGES = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo"), ("Ġ", "w")]


def byte_level_encoder() -> Encoder:
    vocab = BYTES | {left + right: 256 + index for index, (left, right) in enumerate(MERGES)}
    encoder = Encoder(models.BPE(vocab=vocab, merges=MERGES))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    encoder.add_special_tokens([AddedToken("<s>", special=True), AddedToken("</s>", special=True)])
    return encoder


def write(directory: Path, encoder: Encoder | None = None, **files: Any) -> Path:
    (encoder or byte_level_encoder()).save(str(directory / "tokenizer.json"))
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return directory


BOS, EOS = 261, 262
NAMED = {"bos_token": "<s>", "eos_token": {"content": "</s>"}}


def template(single: str) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(single=single, special_tokens=[("<s>", BOS), ("</s>", EOS)])


def test_a_directory_is_read(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, tokenizer_config=NAMED))
    assert tokenizer.encode("<s>hello w", add_special_tokens=True) == [BOS, 259, 260]
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.vocab_size) == (BOS, (EOS,), 263)


def test_a_tokenizer_json_can_be_named_itself(tmp_path: Path) -> None:
    assert load_tokenizer(write(tmp_path) / "tokenizer.json").encode("he", add_special_tokens=True) == [256]


@pytest.mark.parametrize(
    ("single", "flags", "expected"),
    [
        ("<s> $A", {}, [BOS, 256]),
        ("<s> $A </s>", {}, [BOS, 256, EOS]),
        ("<s> $A", {"add_bos_token": False}, [256]),
        ("$A", {"add_bos_token": True}, [BOS, 256]),
        ("$A", {"add_bos_token": None}, [256]),
        ("$A", {"add_eos_token": True}, [256, EOS]),
    ],
)
def test_the_frame_is_the_post_processors_unless_the_configuration_says_otherwise(
    tmp_path: Path, single: str, flags: dict[str, Any], expected: list[int]
) -> None:
    encoder = byte_level_encoder()
    encoder.post_processor = processors.Sequence([processors.ByteLevel(), template(single)])
    tokenizer = load_tokenizer(write(tmp_path, encoder, tokenizer_config=NAMED | flags))
    assert tokenizer.encode("he", add_special_tokens=True) == expected
    assert tokenizer.encode(tokenizer.decode(expected, skip_special_tokens=False), add_special_tokens=True) == expected


def test_names_may_stand_in_special_tokens_map(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, special_tokens_map=NAMED))
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (BOS, (EOS,))


def test_tokens_listed_beside_tokenizer_json_are_entered(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, added_tokens={"<think>": 263}))
    assert tokenizer.encode("he<think>he", add_special_tokens=False) == [256, 263, 256]
    assert not tokenizer.is_special(263)


def test_the_configurations_list_says_which_tokens_are_special(tmp_path: Path) -> None:
    listed = {"263": {"content": "<x>", "special": True}, "264": {"content": "<y>", "special": False}}
    tokenizer = load_tokenizer(write(tmp_path, tokenizer_config={"added_tokens_decoder": listed}))
    assert [tokenizer.is_special(id_) for id_ in (263, 264)] == [True, False]
    assert tokenizer.encode("<y><x>", add_special_tokens=False) == [264, 263]


def test_a_listed_token_with_another_id_is_a_contradiction(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'<x>' is listed with id 999, but tokenizer\.json gives it 263"):
        load_tokenizer(write(tmp_path, added_tokens={"<x>": 999}))


def test_the_models_vocab_size_counts_and_ids_beyond_have_no_bytes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, config={"text_config": {"vocab_size": 300}}))
    assert (tokenizer.vocab_size, tokenizer.token_bytes(299)) == (300, b"")


def test_padding_and_truncation_of_the_file_are_off(tmp_path: Path) -> None:
    encoder = byte_level_encoder()
    encoder.enable_truncation(2)
    encoder.enable_padding(length=8)
    assert load_tokenizer(write(tmp_path, encoder)).encode("wwwww", add_special_tokens=False) == [ord("w")] * 5


UNKNOWN = {"unk_token": "<unk>"}


def sentencepiece_encoder(decoder: decoders.Decoder) -> Encoder:
    pieces = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5, "<0xE9>": 6}
    encoder = Encoder(models.BPE(vocab=pieces, merges=[("a", "b"), ("▁", "ab")], **UNKNOWN))
    encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    encoder.decoder = decoder
    return encoder


LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]


def test_a_sentencepiece_decoder_is_read(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, sentencepiece_encoder(decoders.Sequence(LLAMA_DECODER))))
    assert tokenizer.encode("ab ab", add_special_tokens=False) == [5, 5]
    assert (tokenizer.decode([5, 5]), tokenizer.token_bytes(6)) == ("ab ab", b"\xe9")


def test_byte_tokens_are_text_where_the_decoder_has_no_byte_fallback(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, sentencepiece_encoder(decoders.Metaspace())))
    assert (tokenizer.token_bytes(6), tokenizer.decode([5, 5])) == (b"<0xE9>", "ab ab")


def test_first_spaces_stay_where_the_decoder_leaves_them(tmp_path: Path) -> None:
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert load_tokenizer(write(tmp_path, sentencepiece_encoder(decoder))).decode([5]) == " ab"


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), decoders.BPEDecoder(), decoders.Replace("_", " ")])
def test_a_decoder_whose_bytes_are_not_known_is_refused(tmp_path: Path, decoder: decoders.Decoder) -> None:
    with pytest.raises(ModelError, match=r"the tokenizer\.json decodes"):
        load_tokenizer(write(tmp_path, sentencepiece_encoder(decoder)))


def test_a_directory_without_tokenizer_says_what_it_has_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ModelError, match=r"no tokenizer.json \(but tokenizer.model.*--tokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"model": 1}'])
def test_a_broken_tokenizer_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


TEXTS = ["hello w", "Héllo 😊\n", "  w<s>he</s>", "", "\x00\ufeff", "<think>"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_a_gguf_vocabulary_saved_as_tokenizer_json_gives_the_same_ids(tmp_path: Path, text: str, kind: str) -> None:
    built = {"byte_level": byte_level, "metaspace": metaspace}[kind]()
    encoder = Encoder.from_str(built._encoder.to_str())
    encoder.decoder = decoders.ByteLevel() if kind == "byte_level" else decoders.Sequence(LLAMA_DECODER)
    loaded = load_tokenizer(write(tmp_path, encoder))
    ids = built.encode(text, add_special_tokens=False)
    assert loaded.encode(text, add_special_tokens=False) == ids
    assert [loaded.token_bytes(id_) for id_ in range(265)] == [built.token_bytes(id_) for id_ in range(265)]
