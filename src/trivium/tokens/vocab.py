"""What the ids of a vocabulary stand for, down to the byte.

Holds the two spellings in which tokenizers store bytes as text, and nothing about how text is cut into tokens.
Decoding anywhere in Trivium is concatenating what `token_bytes` returns, so that streamed, whole and per-token
views of an answer can't differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import IntEnum

TokenSpelling = Callable[[str], bytes]
"""From a token's stored text to the bytes it stands for."""


class TokenKind(IntEnum):
    """What a token is for; the numbers are those of GGUF files.

    Source: GGUF specification, `tokenizer.ggml.token_type`.
    """

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _byte_alphabet() -> dict[str, int]:
    """Map each letter of the byte-level alphabet to its byte.

    Bytes that print as themselves stand for themselves; the other 68 are written as U+0100 onwards, in byte order.
    Source: Radford et al. 2019 (GPT-2), its published encoder.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()
METASPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


def byte_level_bytes(text: str) -> bytes:
    """Read a token of a byte-level vocabulary: every letter is one byte.

    A token with letters outside the alphabet can only be one that was added as plain text.
    """
    try:
        return bytes([BYTE_ALPHABET[letter] for letter in text])
    except KeyError:
        return text.encode("utf-8", "surrogatepass")


def metaspace_bytes(text: str) -> bytes:
    """Read a token of a SentencePiece vocabulary: U+2581 is a space, `<0xNN>` is one byte."""
    if (match := _BYTE_TOKEN.fullmatch(text)) is not None:
        return bytes([int(match[1], 16)])
    return metaspace_text_bytes(text)


def metaspace_text_bytes(text: str) -> bytes:
    """Read a token of a SentencePiece vocabulary without byte tokens: U+2581 is a space."""
    return text.replace(METASPACE, " ").encode("utf-8", "surrogatepass")


def plain_bytes(text: str) -> bytes:
    """Read a token that is stored as the text it stands for."""
    return text.encode("utf-8", "surrogatepass")
