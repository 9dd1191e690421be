"""Encoding, framing and bytes of both kinds of tokenizer."""

from __future__ import annotations

import pytest

from support.tiny_tokenizers import BYTE_BOS, BYTE_EOS, BYTE_THINK, BYTE_UNUSED, byte_level, metaspace

HELLO = 259


def test_merges_make_words_from_letters() -> None:
    assert byte_level().encode("hello", add_special_tokens=False) == [HELLO]


def test_added_tokens_stand_whole_in_any_text() -> None:
    ids = byte_level().encode("he<think>he</s>", add_special_tokens=False)
    assert ids == [256, BYTE_THINK, 256, BYTE_EOS]


def test_only_control_tokens_are_special() -> None:
    assert byte_level().special_ids == (BYTE_BOS, BYTE_EOS)


def test_skipping_special_tokens_keeps_user_defined_ones() -> None:
    ids = [BYTE_BOS, HELLO, BYTE_THINK, BYTE_EOS]
    assert byte_level().decode(ids, skip_special_tokens=True) == "hello<think>"
    assert byte_level().decode(ids, skip_special_tokens=False) == "<s>hello<think></s>"


def test_the_begin_token_is_put_first_when_the_model_wants_it() -> None:
    tokenizer = byte_level(add_bos_token=True)
    assert tokenizer.encode("he", add_special_tokens=True) == [BYTE_BOS, 256]
    assert tokenizer.encode("he", add_special_tokens=False) == [256]
    assert tokenizer.encode("", add_special_tokens=True) == [BYTE_BOS]


def test_the_begin_token_is_never_doubled() -> None:
    tokenizer = byte_level(add_bos_token=True)
    assert tokenizer.encode("<s>he", add_special_tokens=True) == [BYTE_BOS, 256]


def test_the_end_token_is_never_doubled() -> None:
    tokenizer = byte_level(add_eos_token=True)
    assert tokenizer.encode("he", add_special_tokens=True) == [256, BYTE_EOS]
    assert tokenizer.encode("he</s>", add_special_tokens=True) == [256, BYTE_EOS]


def test_a_batch_is_every_text_alone() -> None:
    tokenizer = byte_level(add_bos_token=True)
    texts = ["hello", "", "<s>x", "wé"]
    assert tokenizer.encode_batch(texts, add_special_tokens=True) == [
        tokenizer.encode(text, add_special_tokens=True) for text in texts
    ]


@pytest.mark.parametrize("byte", [0x00, 0x20, 0x41, 0x80, 0xFF])
def test_every_byte_has_a_token_of_exactly_that_byte(byte: int) -> None:
    byte_ids = {byte_level().token_bytes(id_) for id_ in range(256)}
    assert bytes([byte]) in byte_ids
    assert metaspace().token_bytes(3 + byte) == bytes([byte])


def test_ids_that_the_tokenizer_does_not_know_have_no_bytes() -> None:
    tokenizer = byte_level()
    assert [tokenizer.token_bytes(id_) for id_ in (-1, BYTE_UNUSED, 266, 10**9)] == [b""] * 4
    assert tokenizer.decode([HELLO, 10**6]) == "hello"


def test_vocab_size_is_the_models() -> None:
    assert byte_level().vocab_size == 266


def test_lone_surrogates_count_as_replacement_characters() -> None:
    tokenizer = byte_level()
    assert tokenizer.decode(tokenizer.encode("a\ud800b", add_special_tokens=False)) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude0a", add_special_tokens=False)) == "😊"


def test_bytes_that_are_not_utf8_become_replacement_characters_as_python_does_it() -> None:
    tokenizer = metaspace()
    broken = b"\xf0\x9f\x41\xc3\x80\xff"
    expected = broken.decode("utf-8", "replace")
    assert tokenizer.decode([3 + byte for byte in broken]) == expected


def test_sentencepiece_puts_a_space_first_and_takes_it_back() -> None:
    tokenizer = metaspace()
    ids = tokenizer.encode("hello w", add_special_tokens=True)
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"<s>", b" hello", b" w"]
    assert tokenizer.decode(ids) == "hello w"


def test_sentencepiece_without_a_first_space_leaves_texts_alone() -> None:
    tokenizer = metaspace(add_space_prefix=False)
    ids = tokenizer.encode("hello w", add_special_tokens=False)
    assert [tokenizer.token_bytes(id_) for id_ in ids] == [b"hello", b" w"]
    assert tokenizer.decode(tokenizer.encode(" hello", add_special_tokens=False)) == " hello"


def test_letters_outside_the_vocabulary_fall_back_to_bytes() -> None:
    tokenizer = metaspace(add_space_prefix=False)
    assert tokenizer.encode("日", add_special_tokens=False) == [3 + byte for byte in "日".encode()]


def test_text_that_looks_like_a_byte_token_is_text() -> None:
    tokenizer = metaspace(add_space_prefix=False)
    ids = tokenizer.encode("<0x41>", add_special_tokens=False)
    assert 3 + 0x41 not in ids
    assert tokenizer.decode(ids) == "<0x41>"


def test_special_texts_are_what_templates_write() -> None:
    tokenizer = byte_level()
    assert [tokenizer.special_text(id_) for id_ in (BYTE_BOS, None, HELLO)] == ["<s>", "", "hello"]
