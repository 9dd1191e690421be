"""What holds of every matcher, whatever its grammar and whichever way it goes."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.grammars import TOKENIZER, VOCAB_SIZE, allowed, grammar, walk
from support.tiny_tokenizers import BYTE_EOS
from trivium.base.errors import InternalError

GRAMMARS = {
    "regex": {"regex": "(hello|he) w[a-c]{1,3}(é|llo)*"},
    "choice": {"choice": ("hello", "hell", 'a "b"\\\n', "é")},
    "object": {
        "json": {
            "type": "object",
            "properties": {"hello": {"type": "integer"}, "w": {"enum": ["a", "b", None]}},
            "required": ["hello"],
            "additionalProperties": False,
        }
    },
    "array": {"json": {"type": "array", "items": {"type": "string", "maxLength": 4}, "minItems": 1, "maxItems": 3}},
    "tree": {
        "json": {
            "$defs": {"node": {"type": "object", "properties": {"he": {"$ref": "#/$defs/node"}},
                               "additionalProperties": False}},
            "$ref": "#/$defs/node",
        }
    },
    "lark": {"grammar": 'start: a*\na: "hello" | "w" a "w"'},
    "tag": {
        "structural_tag": {
            "structures": [{"begin": "w(", "schema": {"enum": ["he", 12, None]}, "end": ")"}], "triggers": ["w"]
        }
    },
    "gbnf": {"grammar": 'root ::= "he" x+\nx ::= [0-9] | "(" x ")"'},
}  # fmt: skip
names = st.sampled_from(sorted(GRAMMARS))
seeds = st.integers(0, 1000)


@given(name=names, seed=seeds)
def test_a_mask_has_exactly_the_tokens_that_can_be_read(name: str, seed: int) -> None:
    matcher = grammar(**GRAMMARS[name]).start()
    walk(matcher, seed, most=seed % 20)
    mask = allowed(matcher)
    if matcher.is_complete:
        assert mask == {BYTE_EOS}
        return
    readable = {token for token in range(VOCAB_SIZE) if matcher.allows([token])}
    if forced := matcher.forced():
        assert mask == {forced[0]} <= readable  # of several ways to write forced bytes one is allowed
    else:
        assert mask == readable
    assert (BYTE_EOS in mask) == matcher.is_accepting


@given(name=names, seed=seeds)
def test_forced_tokens_are_those_that_would_be_drawn(name: str, seed: int) -> None:
    matcher = grammar(**GRAMMARS[name]).start()
    walk(matcher, seed, most=seed % 20)
    for token in matcher.forced():
        assert allowed(matcher) == {token}
        matcher.advance(token)


@given(name=names, seed=seeds, back=st.integers(0, 50))
def test_what_is_taken_back_never_was(name: str, seed: int, back: int) -> None:
    compiled = grammar(**GRAMMARS[name])
    matcher = compiled.start()
    tokens = walk(matcher, seed, most=40)
    back = min(back, len(tokens))
    matcher.roll_back(back)
    fresh = compiled.start()
    for token in tokens[: len(tokens) - back]:
        fresh.advance(token)
    assert allowed(matcher) == allowed(fresh)
    assert (matcher.is_accepting, matcher.is_complete) == (fresh.is_accepting, fresh.is_complete)
    for token in tokens[len(tokens) - back :]:
        matcher.advance(token)
    assert matcher.is_accepting == _end_of(compiled.start(), tokens)


@given(name=names, seed=seeds)
def test_a_fork_goes_its_own_way(name: str, seed: int) -> None:
    matcher = grammar(**GRAMMARS[name]).start()
    walk(matcher, seed, most=seed % 10)
    before = allowed(matcher)
    walk(matcher.fork(), seed + 1)
    assert allowed(matcher) == before


@settings(max_examples=200)
@given(name=names, seed=seeds)
def test_whole_sentences_are_what_was_asked_for(name: str, seed: int) -> None:
    matcher = grammar(**GRAMMARS[name]).start()
    text = TOKENIZER.decode(walk(matcher, seed))
    if not matcher.is_accepting:
        return
    fields = GRAMMARS[name]
    if "regex" in fields:
        assert re.fullmatch(fields["regex"], text)
    elif "choice" in fields:
        assert text in fields["choice"]
    elif "structural_tag" in fields:
        assert all(re.match(r'\(("he"|12|null)\)', after) for after in text.split("w")[1:])
    elif "json" in fields:
        value = json.loads(text)
        assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', '""', text)), "no space outside texts"
        assert isinstance(value, {"object": dict, "array": list, "tree": dict}[name])


def test_a_token_against_the_grammar_is_an_error_of_that_matcher_alone() -> None:
    compiled = grammar(regex="a+")
    first, second = compiled.start(), compiled.start()
    with pytest.raises(InternalError, match="token 98 is against the grammar"):
        first.advance(ord("b"))
    second.advance(ord("a"))
    assert second.is_accepting


def _end_of(matcher: object, tokens: list[int]) -> bool:
    for token in tokens:
        matcher.advance(token)  # type: ignore[attr-defined]
    return bool(matcher.is_accepting)  # type: ignore[attr-defined]
