"""Small tokenizers of both kinds, built as from a GGUF file; ids are easy to predict.

`byte_level()`:  0-255 the bytes in order, 256 "he", 257 "ll", 258 "llo", 259 "hello", 260 " w", 261 "é", 262 "<think>"
                 (user-defined), 263 "<s>", 264 "</s>" (control), 265 an unused id.
`metaspace()`:   0 "<unk>", 1 "<s>", 2 "</s>", 3-258 the bytes, 259 "▁", 260.. letters and pieces, then "<think>".
"""

from __future__ import annotations

from typing import Any

from trivium.tokens.gguf_vocab import build_tokenizer
from trivium.tokens.tokenizer import Tokenizer
from trivium.tokens.vocab import BYTE_ALPHABET

LETTER_OF_BYTE = {byte: letter for letter, byte in BYTE_ALPHABET.items()}
BYTE_BOS, BYTE_EOS, BYTE_THINK, BYTE_UNUSED = 263, 264, 262, 265
PIECES = ("\u2581", *"abcdehlorw", "he", "ll", "llo", "hello", "\u2581w", "\u2581hello", "é", "\u2581\u2581")


def byte_level_metadata(**changes: Any) -> dict[str, Any]:
    """Return the GGUF metadata of `byte_level`, with keys (without `tokenizer.ggml.`) replaced."""
    merged = ["he", "ll", "llo", "hello", "Ġw", LETTER_OF_BYTE[0xC3] + LETTER_OF_BYTE[0xA9]]
    tokens = [LETTER_OF_BYTE[byte] for byte in range(256)] + merged + ["<think>", "<s>", "</s>", "[PAD]"]
    kinds = [1] * (256 + len(merged)) + [4, 3, 3, 5]
    merges = ["h e", "l l", "ll o", "he llo", "Ġ w", f"{LETTER_OF_BYTE[0xC3]} {LETTER_OF_BYTE[0xA9]}"]
    values = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": kinds, "merges": merges}
    values |= {"bos_token_id": BYTE_BOS, "eos_token_id": BYTE_EOS}
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def byte_level(**changes: Any) -> Tokenizer:
    """Build the byte-level one."""
    return build_tokenizer(byte_level_metadata(**changes))


def metaspace_metadata(**changes: Any) -> dict[str, Any]:
    """Return the GGUF metadata of `metaspace`, with keys (without `tokenizer.ggml.`) replaced."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<think>"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(PIECES), 4]
    scores = [0.0] * 259 + [-float(index) for index in range(len(PIECES))] + [0.0]
    values = {"model": "llama", "tokens": tokens, "token_type": kinds, "scores": scores}
    values |= {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items() if value is not None}


def metaspace(**changes: Any) -> Tokenizer:
    """Build the SentencePiece one."""
    return build_tokenizer(metaspace_metadata(**changes))
