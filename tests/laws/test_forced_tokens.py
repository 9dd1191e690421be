"""What a grammar forces: to draw it one by one, or to take it at once, is the same, whatever the vocabulary.

A law of the matcher alone; `test_engine_same_bits` and `test_whole_engine` hold the same of whole engines.
"""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.random_vocabularies import random_byte_level, random_metaspace
from support.server_process import smollm2_or_skip
from support.tiny_tokenizers import BYTE_EOS, byte_level, metaspace
from trivium.assembly.model import load_tokenizer, open_model
from trivium.config.resolve import options_from
from trivium.config.structured import StructuredOutputs
from trivium.grammar.library import Vocabulary
from trivium.grammar.matcher import Grammar, Matcher
from trivium.tokens.tokenizer import Tokenizer

CALL = {
    "type": "object",
    "properties": {
        "name": {"const": "get_weather"},
        "arguments": {
            "type": "object",
            "properties": {"location": {"type": "string", "maxLength": 9}, "unit": {"enum": ["celsius", "é 日本 f"]}},
            "required": ["location", "unit"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "call": {"json": CALL},
    "numbers": {"regex": "[0-9]{1,4}12345678 of (10|1000000)"},
    "spaces": {"choice": ("hello  world", "hello  there", "  he\n\n\n", "hello' s")},
    "special": {"regex": "(<s>|<think>|<\\|im_end\\|>)+ </s> <\\|im_start\\|>"},
    "repeats": {"grammar": 'start: ("abcabcabc" x "he"){1,3} "\\n"\nx: /[a-c]{1,3}/ | "  " x "  "'},
}
MOST = 60
"""Tokens of an answer; with what is forced behind the last one there may be more."""
VOCABULARIES = {"byte_level": (byte_level, BYTE_EOS), "metaspace": (metaspace, 2)}


class Bound:
    """A vocabulary, and grammars over it."""

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        self.tokenizer, self.end_id = tokenizer, end_id
        self._vocabulary = Vocabulary(tokenizer, (end_id,), vocab_size=tokenizer.vocab_size)
        self._grammars: dict[str, Grammar] = {}

    def start(self, name: str) -> Matcher:
        """A matcher at the beginning of a grammar."""
        if name not in self._grammars:
            self._grammars[name] = self._vocabulary.compile(StructuredOutputs(**GRAMMARS[name]))
        return self._grammars[name].start()

    def allowed(self, matcher: Matcher) -> list[int]:
        """The tokens that may come next."""
        mask = np.zeros((self.tokenizer.vocab_size + 31) // 32, np.uint32)
        matcher.fill(mask)
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()

    def draw(self, matcher: Matcher, dice: random.Random, *, jumps: bool) -> list[int]:
        """Draw an answer, one token at a time or with what is forced at once; each draw takes one number."""
        tokens: list[int] = []
        while not matcher.is_complete and len(tokens) < MOST:
            if jumps and (forced := matcher.forced()):
                assert self.allowed(matcher) == [forced[0]]
            else:
                options = self.allowed(matcher)
                forced = [options[int(dice.random() * len(options))]] if len(options) > 1 else options
            for token in forced:
                if token == self.end_id:
                    return tokens
                matcher.advance(token)
                tokens.append(token)
        return tokens


@cache
def bound(name: str) -> Bound:
    tokenizer, end_id = VOCABULARIES[name]
    return Bound(tokenizer(), end_id)


@cache
def random_bound(seed: int, num_merged: int, is_bytes: bool) -> Bound:
    return Bound(*(random_byte_level if is_bytes else random_metaspace)(seed, num_merged))


def assert_jumps_change_nothing(vocabulary: Bound, name: str, seed: int) -> None:
    one_by_one = vocabulary.draw(vocabulary.start(name), random.Random(seed), jumps=False)  # noqa: S311
    at_once = vocabulary.draw(vocabulary.start(name), random.Random(seed), jumps=True)  # noqa: S311
    assert at_once[:MOST] == one_by_one
    assert not set(at_once) & set(vocabulary.tokenizer.special_ids)


@given(vocabulary=st.sampled_from(sorted(VOCABULARIES)), name=st.sampled_from(sorted(GRAMMARS)), seed=st.integers(0))
def test_to_jump_changes_no_token(vocabulary: str, name: str, seed: int) -> None:
    assert_jumps_change_nothing(bound(vocabulary), name, seed)


@settings(max_examples=60, deadline=None)
@given(
    vocabulary=st.tuples(st.integers(0, 20), st.sampled_from([5, 40, 150]), st.booleans()),
    name=st.sampled_from(sorted(GRAMMARS)),
    seed=st.integers(0),
)
def test_to_jump_changes_no_token_of_a_random_vocabulary(
    vocabulary: tuple[int, int, bool], name: str, seed: int
) -> None:
    assert_jumps_change_nothing(random_bound(*vocabulary), name, seed)


@pytest.fixture(scope="module")
def real() -> Bound:
    options = options_from({"model": smollm2_or_skip()})
    tokenizer = load_tokenizer(options, open_model(options))
    return Bound(tokenizer, tokenizer.eos_ids[0])


@pytest.mark.parametrize("name", sorted(GRAMMARS))
def test_to_jump_changes_no_token_of_a_real_vocabulary(real: Bound, name: str) -> None:
    for seed in range(20):
        assert_jumps_change_nothing(real, name, seed)


@given(vocabulary=st.sampled_from(sorted(VOCABULARIES)), seed=st.integers(0), back=st.integers(0, 30))
def test_a_matcher_taken_back_into_a_run_is_in_that_run_again(vocabulary: str, seed: int, back: int) -> None:
    at = bound(vocabulary)
    matcher, dice = at.start("call"), random.Random(seed)  # noqa: S311
    tokens = at.draw(matcher, dice, jumps=True)
    back = min(back, len(tokens))
    matcher.roll_back(back)
    again = at.start("call")
    for token in tokens[: len(tokens) - back]:
        again.advance(token)
    assert list(matcher.forced()) == list(again.forced())
    assert list(matcher.fork().forced()) == list(again.forced())
    for token in tokens[len(tokens) - back :]:
        matcher.advance(token)
