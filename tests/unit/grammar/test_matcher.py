"""A matcher at its limits: who comes to one alone is told, and what others used up is nobody's loss."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.grammars import TOKENIZER, VOCAB_SIZE, allowed, vocabulary
from support.tiny_tokenizers import BYTE_EOS
from trivium.base.errors import ConstraintFailedError, InvalidParameterError
from trivium.config.structured import StructuredOutputs
from trivium.grammar import library, matcher
from trivium.grammar.library import Vocabulary
from trivium.grammar.matcher import Grammar, Matcher

NESTED = "((a{0,50}){0,50}){0,50}"
LATE = f"[0-9]{{70}}{NESTED}"
"""Fails, but not so soon that compiling finds out."""
WORDS = r"([a-z]{0,30} ){0,30}end"


def spell(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def compiled(**fields: Any) -> Grammar:
    return vocabulary().compile(StructuredOutputs(**fields))


def read(of: Matcher, tokens: list[int]) -> None:
    for token in tokens:
        assert token in allowed(of)
        of.advance(token)


def words(seed: int, count: int = 40) -> list[int]:
    dice = random.Random(seed)  # noqa: S311
    tokens = []
    for _ in range(count):
        tokens += spell("".join(dice.choices("abcdefgh", k=dice.randrange(1, 25))) + " ")
    return tokens


def small_vocabulary(monkeypatch: pytest.MonkeyPatch, num_states: int) -> Vocabulary:
    monkeypatch.setattr(library, "_LEXER_STATES", num_states)
    return Vocabulary(TOKENIZER, (BYTE_EOS,), vocab_size=VOCAB_SIZE)


def test_what_soon_outgrows_its_limits_is_refused_when_it_is_compiled() -> None:
    with pytest.raises(InvalidParameterError, match="regex cannot be enforced: the constraint grew beyond") as caught:
        compiled(regex=NESTED)
    assert caught.value.param == "regex"


def test_what_outgrows_them_later_says_where_and_why() -> None:
    one = compiled(regex=LATE).start()
    read(one, spell("7" * 70))
    with pytest.raises(ConstraintFailedError, match=r"after \d\d+ tokens of the answer \(too many .*lower"):
        read(one, spell("a") * 200)
    assert not one.is_complete


def test_answers_that_outgrow_the_lexer_together_all_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    own = small_vocabulary(monkeypatch, 700)
    grammar, wanted = own.compile(StructuredOutputs(regex=WORDS)), StructuredOutputs(regex=WORDS)
    waiting = grammar.start()
    read(waiting, words(99, 2))
    for seed in range(12):
        answer, alone = grammar.start(), own.compile(wanted).start()
        for token in words(seed, 20):
            assert allowed(answer) == allowed(alone)
            answer.advance(token)
            alone.advance(token)
        answer.roll_back(3)
        alone.roll_back(3)
        assert allowed(answer) == allowed(alone) == allowed(answer.fork())
    assert grammar.is_spent
    alone = own.compile(wanted).start()
    read(alone, words(99, 2))
    assert allowed(waiting) == allowed(alone)
    read(waiting, spell("end"))
    assert waiting.is_accepting


def test_a_grammar_that_took_long_to_compile_is_not_compiled_anew_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "_MOST_REMAKE_S", -1.0)
    grammar = small_vocabulary(monkeypatch, 700).compile(StructuredOutputs(regex=WORDS))
    answers = [(grammar.start(), words(seed, 20)) for seed in range(12)]
    with pytest.raises(ConstraintFailedError, match="too many states: 700 >= 700"):
        any(read(one, tokens) for one, tokens in answers)
    assert grammar.is_spent


def test_masks_that_take_ever_longer_end_their_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "_CREDIT_S", 0.02)
    monkeypatch.setattr(matcher, "_CREDIT_PER_TOKEN_S", 0.0001)
    one = compiled(grammar='start: a\na: "x" | a a | a a a\n').start()
    with pytest.raises(ConstraintFailedError, match=r"takes too long to hold the answer to: .* in many ways"):
        read(one, spell("x") * 400)
    simple = compiled(regex="x*y").start()
    read(simple, spell("x") * 400)


def test_a_grammar_takes_more_as_its_lexer_grows() -> None:
    small, large = compiled(regex="[0-9]+"), compiled(choice=tuple(f"choice number {idx}" for idx in range(4000)))
    assert large.num_bytes > 4 * small.num_bytes > 100_000
    before = small.num_bytes
    small.note_mask(0.0001)
    assert small.num_bytes == before
    small.note_mask(0.1)
    assert small.num_bytes > before + 1_000_000


def test_what_all_answers_begin_with_is_settled_once() -> None:
    grammar = compiled(regex="abc(d|e)")
    first, second = grammar.start(), grammar.start()
    assert first._settled_at == second._settled_at == 0  # nothing is left to find out
    assert first.forced() == spell("abc")
    read(first, list(first.forced()))
    assert not first.forced()
    assert second.forced() == spell("abc")
    first.roll_back(len(spell("abc")))
    assert first.forced() == spell("abc")
    assert compiled(regex="[ab]").start().forced() == ()
