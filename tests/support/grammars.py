"""Constraints over a small vocabulary, and what walks through them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.tiny_tokenizers import BYTE_EOS, byte_level
from trivium.config.structured import StructuredOutputs
from trivium.grammar.compiler import key_of
from trivium.grammar.library import Vocabulary
from trivium.grammar.matcher import Grammar, Matcher

TOKENIZER = byte_level()
VOCAB_SIZE = TOKENIZER.vocab_size
_compiled: dict[bytes, Grammar] = {}


@cache
def vocabulary() -> Vocabulary:
    """The bytes of the small tokenizer's tokens."""
    return Vocabulary(TOKENIZER, (BYTE_EOS,), vocab_size=VOCAB_SIZE)


def grammar(**fields: Any) -> Grammar:
    """Compile a constraint, whose fields are those of `StructuredOutputs`."""
    return grammar_of(StructuredOutputs(**fields))


def grammar_of(wanted: StructuredOutputs) -> Grammar:
    """Compile a constraint, once."""
    wanted.validate()
    key = key_of(wanted)
    if key not in _compiled:
        _compiled[key] = vocabulary().compile(wanted)
    return _compiled[key]


def allowed(matcher: Matcher) -> set[int]:
    """Return the tokens that may come next."""
    mask = np.full((VOCAB_SIZE + 31) // 32, 0xA5A5A5A5, np.uint32)
    matcher.fill(mask)
    return allowed_by(mask)


def allowed_by(mask: NDArray[np.uint32]) -> set[int]:
    """Return the tokens of a mask."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert not bits[VOCAB_SIZE:].any()
    return set(np.flatnonzero(bits).tolist())


def walk(matcher: Matcher, seed: int, most: int = 200) -> list[int]:
    """Read tokens drawn at random, until the sentence is whole and the dice say so, or there are `most`."""
    dice, tokens = random.Random(seed), []  # noqa: S311  (a test's walk)
    while not matcher.is_complete and len(tokens) < most:
        options = sorted(allowed(matcher) - {BYTE_EOS})
        if not options or (matcher.is_accepting and dice.random() < 0.2):
            break
        # Closing letters come more often, so that walks end.
        closing = [token for token in options if TOKENIZER.token_bytes(token) in (b'"', b"]", b"}")]
        token = dice.choice(closing if closing and dice.random() < 0.4 else options)
        matcher.advance(token)
        tokens.append(token)
    return tokens
