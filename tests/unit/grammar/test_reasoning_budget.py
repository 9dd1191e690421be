"""Unit tests of `trivium.grammar.reasoning_budget`."""

from __future__ import annotations

import random

import numpy as np
import pytest

from support.grammars import TOKENIZER, VOCAB_SIZE, allowed, grammar
from trivium.base.errors import InternalError
from trivium.config.chat_output import ChatOutput
from trivium.grammar.reasoning_budget import BudgetedMatcher, ReasoningBudget

END = list(b"</think>")


def budget(most: int, *, starts: bool = True, dialect: str = "qwen3") -> ReasoningBudget:
    wanted = ChatOutput(reasoning_dialect=dialect, starts_in_reasoning=starts, max_reasoning_tokens=most)
    return ReasoningBudget(wanted, TOKENIZER, VOCAB_SIZE)


def read(matcher: BudgetedMatcher, text: str | bytes) -> None:
    for token in TOKENIZER.encode(text, add_special_tokens=False) if isinstance(text, str) else text:
        matcher.advance(token)


def options(matcher: BudgetedMatcher) -> set[int]:
    return allowed(matcher)  # type: ignore[arg-type]  # another kind of matcher


def test_the_end_is_written_when_the_tokens_are_used_up() -> None:
    matcher = budget(3).over(None)
    read(matcher, b"abc")
    forced = matcher.forced()
    assert TOKENIZER.decode(forced) == "</think>"
    assert not matcher.is_accepting
    for token in forced:
        assert options(matcher) == {token}
        matcher.advance(token)
    assert not matcher.forced()
    assert options(matcher) == set(range(VOCAB_SIZE))
    read(matcher, b"abcdefgh")
    assert not matcher.forced()


def test_reasoning_that_ends_by_itself_is_left_alone() -> None:
    matcher = budget(12).over(None)
    read(matcher, b"ab</think>")
    read(matcher, b"0123456789abcdef")
    assert not matcher.forced()


def test_answers_that_do_not_reason_have_no_budget() -> None:
    matcher = budget(2, starts=False).over(None)
    read(matcher, b"\nplain text <think>abcdefgh")
    assert not matcher.forced()


def test_tokens_count_from_the_beginning_of_the_span() -> None:
    matcher = budget(2, starts=False).over(None)
    read(matcher, "\n<think>ab")
    assert TOKENIZER.decode(matcher.forced()) == "</think>"


def test_no_reasoning_at_all() -> None:
    assert TOKENIZER.decode(budget(0).over(None).forced()) == "</think>"
    matcher = budget(0, starts=False).over(None)
    read(matcher, "<think>")
    assert TOKENIZER.decode(matcher.forced()) == "</think>"


def test_no_character_is_cut() -> None:
    matcher = budget(1).over(None)
    read(matcher, "€".encode()[:1])
    assert not matcher.forced()
    read(matcher, "€".encode()[1:])
    assert TOKENIZER.decode(matcher.forced()) == "</think>"


def test_another_token_is_refused_where_the_end_is_due() -> None:
    matcher = budget(0).over(None)
    assert matcher.allows([ord("a")]) == 0
    assert matcher.allows([*matcher.forced(), ord("a")]) == len(matcher.forced()) + 1
    with pytest.raises(InternalError, match="had to end"):
        matcher.advance(ord("a"))


def test_what_the_grammar_forbids_stays_forbidden() -> None:
    inner = grammar(regex="[a-z]{0,40}</think>ok").start()
    matcher = budget(4).over(inner)
    read(matcher, b"abcd")
    for token in matcher.forced():
        matcher.advance(token)
    assert matcher.forced() == list(b"ok")
    read(matcher, b"ok")
    assert matcher.is_complete


def test_going_back_and_forking() -> None:
    dice = random.Random(1)  # noqa: S311
    for _ in range(30):
        text = bytes(dice.choice(b"ab<") for _ in range(dice.randrange(12)))
        fresh, matcher = budget(6).over(None), budget(6).over(None)
        read(fresh, text[:6])
        read(matcher, text[:6])
        twin = matcher.fork()
        extra = matcher.forced()[:3] or list(b"xy")[: max(0, 6 - len(text))]
        for token in extra:
            matcher.advance(token)
        matcher.roll_back(len(extra))
        assert fresh.forced() == matcher.forced() == twin.forced()
    with pytest.raises(InternalError, match="cannot take back"):
        budget(1).over(None).roll_back(1)


def test_masks_end_with_the_vocabulary() -> None:
    mask = np.zeros((VOCAB_SIZE + 31) // 32, np.uint32)
    budget(9).over(None).fill(mask)
    assert int(np.unpackbits(mask.view(np.uint8)).sum()) == VOCAB_SIZE
