"""Spellings of forbidden texts."""

from __future__ import annotations

from support.tiny_tokenizers import byte_level, metaspace
from trivium.tokens.bad_words import spellings


def test_a_word_is_spelled_with_and_without_a_space_before_it() -> None:
    tokenizer = byte_level()
    assert [tokenizer.decode(ids) for ids in spellings(tokenizer, "w")] == ["w", " w"]
    assert spellings(tokenizer, "w") == ((ord("w"),), (260,))


def test_a_text_that_begins_with_a_space_has_one_spelling() -> None:
    assert spellings(byte_level(), " w") == ((260,),)


def test_the_space_that_a_tokenizer_puts_first_is_no_part_of_a_spelling() -> None:
    tokenizer = metaspace()
    spelled = [b"".join(map(tokenizer.token_bytes, ids)) for ids in spellings(tokenizer, "hello")]
    assert spelled == [b"hello", b" hello"]


def test_no_begin_token_is_part_of_a_spelling() -> None:
    assert all(1 not in ids for ids in spellings(metaspace(), "hello"))


def test_the_empty_text_has_no_spelling_but_its_space() -> None:
    assert spellings(byte_level(), "") in {(), ((ord(" "),),)}
