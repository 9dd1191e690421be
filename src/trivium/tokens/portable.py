"""Tokenizers and chat templates that travel: what `describe` says of one is made into an equal one elsewhere.

A description may come from a stranger: it is data, its template runs in the same sandbox as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from trivium.base.errors import ModelError
from trivium.base.ids import TokenId
from trivium.tokens.chat import ChatTemplate
from trivium.tokens.tokenizer import SpecialTokens, Tokenizer
from trivium.tokens.vocab import (
    TokenSpelling,
    byte_level_bytes,
    metaspace_bytes,
    metaspace_text_bytes,
    plain_bytes,
)

if TYPE_CHECKING:
    import tokenizers

_SPELLINGS: Mapping[str, TokenSpelling] = {
    spelling.__name__: spelling for spelling in (byte_level_bytes, metaspace_bytes, metaspace_text_bytes, plain_bytes)
}


class _Special(msgspec.Struct, kw_only=True):
    bos_id: int | None
    eos_ids: list[int]
    pad_id: int | None
    unk_id: int | None
    prefix: list[int]
    suffix: list[int]


class _Tokenizer(msgspec.Struct, kw_only=True):
    encoder: str
    special: _Special
    spelling: str
    added_spelling: str
    drops_first_space: bool
    vocab_size: int


class _Template(msgspec.Struct, kw_only=True):
    sources: dict[str, str]
    tokens: dict[str, str]


def read_tokenizer(description: object) -> Tokenizer:
    """Make the tokenizer that `Tokenizer.describe` described.

    Raises:
        ModelError: It is no such description.
    """
    try:
        told = msgspec.convert(description, _Tokenizer)
        spelling, added_spelling = _SPELLINGS[told.spelling], _SPELLINGS[told.added_spelling]
    except (msgspec.ValidationError, KeyError) as error:
        raise ModelError(f"this is no description of a tokenizer that is known here: {error}") from error
    return Tokenizer(
        _encoder(told.encoder),
        SpecialTokens(
            bos_id=_id(told.special.bos_id),
            eos_ids=_ids(told.special.eos_ids),
            pad_id=_id(told.special.pad_id),
            unk_id=_id(told.special.unk_id),
            prefix=_ids(told.special.prefix),
            suffix=_ids(told.special.suffix),
        ),
        spelling=spelling,
        added_spelling=added_spelling,
        drops_first_space=told.drops_first_space,
        vocab_size=told.vocab_size,
    )


def read_template(description: object) -> ChatTemplate:
    """Make the chat template that `ChatTemplate.describe` described.

    Raises:
        ModelError: It is no such description.
        ConfigError: A template is too long or not Jinja.
    """
    try:
        told = msgspec.convert(description, _Template)
    except msgspec.ValidationError as error:
        raise ModelError(f"this is no description of a chat template: {error}") from error
    bos_token, eos_token = told.tokens.pop("bos_token", ""), told.tokens.pop("eos_token", "")
    return ChatTemplate(told.sources, bos_token=bos_token, eos_token=eos_token, tokens=told.tokens)


def _encoder(text: str) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Encoder  # noqa: PLC0415  (start-up time)

    try:
        return Encoder.from_str(text)
    except Exception as error:
        raise ModelError(f"the described tokenizer cannot be read: {error}") from error


def _id(id_: int | None) -> TokenId | None:
    return None if id_ is None else TokenId(id_)


def _ids(ids: list[int]) -> tuple[TokenId, ...]:
    return tuple(map(TokenId, ids))
