"""Texts in the middle of texts, to the byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.random_vocabularies import random_byte_level, random_metaspace
from support.tiny_tokenizers import byte_level, metaspace
from trivium.tokens.inside import ExactSpeller
from trivium.tokens.tokenizer import Tokenizer


def spelled(tokenizer: Tokenizer, text: str) -> bytes:
    ids = ExactSpeller(tokenizer).spell(text)
    assert not set(ids) & set(tokenizer.special_ids)
    return b"".join(map(tokenizer.token_bytes, ids))


@pytest.mark.parametrize("make", [byte_level, metaspace])
@pytest.mark.parametrize(
    "text", ["", "hello", " hello", "  ", "\n", "\n\nw", "<s>he</s>", "<think>", "é\u2581x", "日本語\x00", "\ufffd"]
)
def test_a_text_is_spelled_by_its_own_bytes(make: type[Tokenizer], text: str) -> None:
    assert spelled(make(), text) == text.encode()


@given(text=st.text(alphabet="he lo\n\u2581<s>/é", max_size=12), seed=st.integers(0, 30), is_bytes=st.booleans())
def test_any_text_is_spelled_by_its_own_bytes(text: str, seed: int, is_bytes: bool) -> None:
    tokenizer, _ = (random_byte_level if is_bytes else random_metaspace)(seed, 30)
    assert spelled(tokenizer, text) == text.encode()


def test_what_the_encoder_spells_rightly_is_spelled_as_it_does() -> None:
    tokenizer = byte_level()
    assert ExactSpeller(tokenizer).spell("hello w") == tokenizer.encode("hello w", add_special_tokens=False)
