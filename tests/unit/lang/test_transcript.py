"""Text and tokens of a state: whatever happens, the tokens stand for the text, and what was read stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizers import byte_level, metaspace
from trivium.lang.transcript import TokenCodec, Transcript
from trivium.tokens.tokenizer import Tokenizer

TOKENIZERS = {"byte-level": byte_level(), "metaspace": metaspace()}
TEXTS = st.text(alphabet="abc lo\nhé🙂", max_size=8)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(steps=st.lists(st.tuples(TEXTS, TEXTS, st.integers(0, 8)), max_size=5))
def test_tokens_stand_for_the_text_and_only_grow(name: str, steps: list[tuple[str, str, int]]) -> None:
    tokenizer = TOKENIZERS[name]
    own = Transcript(codec=TokenCodec(tokenizer))
    own.append("a")
    for constant, answer, cut in steps:
        before = list(own.ids)
        own.append(constant)
        prompt = own.prompt_ids()
        assert prompt[: len(before)] == before
        own.take_answer(prompt, TokenCodec(tokenizer).encode(answer, continues=True), answer[:cut])
        assert own.ids[: len(prompt)] == prompt
    prefix = tokenizer.special.prefix
    plain = Transcript(codec=TokenCodec(tokenizer))
    plain.append(own.text)
    assert _spelled(tokenizer, own.prompt_ids(), prefix) == _spelled(tokenizer, plain.prompt_ids(), prefix)


def _spelled(tokenizer: Tokenizer, ids: list[int], prefix: tuple[int, ...]) -> str:
    return tokenizer.decode(ids[len(prefix) :] if tuple(ids[: len(prefix)]) == prefix else ids)


def test_neighbouring_constants_are_cut_as_one() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    own = Transcript(codec=TokenCodec(tokenizer))
    for piece in ("hel", "lo", " wor", "ld"):
        own.append(piece)
    assert own.prompt_ids() == [*tokenizer.special.prefix, *tokenizer.encode("hello world", add_special_tokens=False)]


def test_choices_are_scored_from_the_last_boundary_that_none_moves() -> None:
    own = Transcript(codec=TokenCodec(TOKENIZERS["byte-level"]))
    own.append("hel")
    prompt = own.prompt_ids()
    start, rows = own.with_choices(["lo", "p"])
    assert all(row[:start] == prompt[:start] for row in rows)
    assert all(len(row) > start for row in rows)
    own.take_choice(rows[0], "lo")
    assert own.text == "hello"
    assert own.prompt_ids() == rows[0]
