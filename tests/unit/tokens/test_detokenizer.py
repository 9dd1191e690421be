"""Incremental text, case by case; the laws are in `tests/laws/test_detokenizer.py`."""

from __future__ import annotations

from support.tiny_tokenizers import BYTE_EOS, BYTE_THINK, byte_level, metaspace
from trivium.tokens.detokenizer import Detokenizer

CAT = "🐱".encode()


def test_a_character_comes_with_its_last_byte() -> None:
    detokenizer = Detokenizer(byte_level())
    assert [detokenizer.push(byte) for byte in CAT] == ["", "", "", "🐱"]


def test_bytes_that_cannot_become_a_character_come_as_soon_as_that_is_certain() -> None:
    detokenizer = Detokenizer(byte_level())
    assert [detokenizer.push(byte) for byte in (0xF0, 0x9F, ord("a"))] == ["", "", "\ufffda"]


def test_special_tokens_are_skipped_or_shown() -> None:
    shown, skipped = (Detokenizer(byte_level(), skip_special_tokens=skip) for skip in (False, True))
    assert (shown.push(BYTE_EOS), skipped.push(BYTE_EOS), skipped.push(BYTE_THINK)) == ("</s>", "", "<think>")


def test_a_skipped_token_inside_a_character_does_not_break_it() -> None:
    detokenizer = Detokenizer(byte_level())
    assert [detokenizer.push(id_) for id_ in (*CAT[:2], BYTE_EOS, *CAT[2:])] == ["", "", "", "", "🐱"]


def test_the_first_space_is_dropped_again_after_going_back_to_the_start() -> None:
    tokenizer = metaspace()
    (hello,) = tokenizer.encode("hello", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    start = detokenizer.state
    assert [detokenizer.push(hello), detokenizer.push(hello)] == ["hello", " hello"]
    detokenizer.restore(start)
    assert detokenizer.push(hello) == "hello"
