"""Laws of incremental text: joined pieces are the whole, and no piece ever has to be taken back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import tiny_tokenizers
from trivium.tokens.detokenizer import Detokenizer
from trivium.tokens.tokenizer import Tokenizer

TOKENIZERS = (
    tiny_tokenizers.byte_level(),
    tiny_tokenizers.metaspace(),
    tiny_tokenizers.metaspace(add_space_prefix=False),
)
any_tokenizer = st.sampled_from(TOKENIZERS)
any_ids = st.lists(st.integers(-1, 300), max_size=40)
TEXTS = st.text(st.sampled_from("helo w é😊日\u0301\n\u2581"), max_size=20)


def pieces_of(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    return [*(detokenizer.push(id_) for id_ in ids), detokenizer.finish()]


@given(any_tokenizer, any_ids, st.booleans())
def test_joined_pieces_are_the_whole_decode(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(pieces_of(tokenizer, ids, skip=skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@given(any_tokenizer, TEXTS)
def test_a_text_streams_without_replacement_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert not any("\ufffd" in piece for piece in pieces_of(tokenizer, ids, skip=False))


@given(any_tokenizer, TEXTS)
def test_decoding_what_was_encoded_gives_the_text(tokenizer: Tokenizer, text: str) -> None:
    is_exact = "\u2581" not in text or tokenizer is TOKENIZERS[0]
    expected = text if is_exact else text.replace("\u2581", " ")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == expected


@given(any_tokenizer, any_ids, any_ids, any_ids)
def test_restoring_a_state_is_never_having_gone_on(
    tokenizer: Tokenizer, before: list[int], detour: list[int], after: list[int]
) -> None:
    straight, wandering = Detokenizer(tokenizer), Detokenizer(tokenizer)
    for id_ in before:
        straight.push(id_)
        wandering.push(id_)
    state = wandering.state
    for id_ in detour:
        wandering.push(id_)
    wandering.finish()
    wandering.restore(state)
    assert [wandering.push(id_) for id_ in after] == [straight.push(id_) for id_ in after]
    assert wandering.finish() == straight.finish()


@given(any_tokenizer, any_ids, st.integers(0, 40))
def test_pieces_given_out_never_change_whatever_comes_next(tokenizer: Tokenizer, ids: list[int], cut: int) -> None:
    pieces = pieces_of(tokenizer, ids, skip=True)
    given_out = "".join(pieces[: min(cut, len(ids))])
    assert tokenizer.decode(ids).startswith(given_out)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_a_lone_continuation_byte_is_given_out_at_once(tokenizer: Tokenizer) -> None:
    lone = next(id_ for id_ in range(260) if tokenizer.token_bytes(id_) == b"\x80")
    assert pieces_of(tokenizer, [lone] * 5, skip=True) == ["\ufffd"] * 5 + [""]
