"""`ReasoningBudget`: after so many tokens of reasoning its end is written, whatever the model would.

::

    <think> a b c d e </think> ...        max 5: behind e only the tokens of the end may come
            1 2 3 4 5 forced

It counts tokens between the marks, so it reads bytes beside the grammar, if there is one, and narrows its masks. Inside
of a character nothing is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trivium.base.errors import InternalError, ensure
from trivium.grammar.dialects import dialect_of
from trivium.grammar.stops import START, StopTexts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trivium.config.chat_output import ChatOutput
    from trivium.grammar.matching import Matching
    from trivium.tokens.tokenizer import Tokenizer


class _Phase(Enum):
    BEFORE = "the answer may still begin with reasoning"
    INSIDE = "it reasons"
    CLOSED = "reasoning has ended, or never began"


class _State(NamedTuple):
    phase: _Phase
    text: str = ""
    """Before: what has been read of the beginning, a letter per byte."""
    scan: int = START
    """Inside: of the end."""
    num_tokens: int = 0
    num_missing: int = 0
    """Bytes that the last character still lacks."""
    num_forced: int = 0
    """Tokens of the end that have been written because they had to."""


_CLOSED = _State(_Phase.CLOSED)


class ReasoningBudget:
    """How long a request may reason; shared by its choices."""

    def __init__(self, wanted: ChatOutput, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Prepare to count.

        Args:
            wanted: Says how many tokens there may be, in whose marks.
            tokenizer: Knows the bytes of ids.
            vocab_size: Number of logits.

        Raises:
            InternalError: `wanted` has no budget, or its dialect no reasoning.
        """
        dialect = dialect_of(wanted.reasoning_dialect or "")
        if dialect is None or wanted.max_reasoning_tokens is None:
            raise InternalError("a budget needs a number and the marks of reasoning")
        span = dialect.span()
        self._tokenizer = tokenizer
        self._begin = _bytes_of(span.begin)
        self._ends = StopTexts(map(_bytes_of, (span.end, *(dialect.call_marks() if span.ends_at_calls else ()))))
        self._end_ids = tuple(tokenizer.encode(span.end, add_special_tokens=False))
        self._most = wanted.max_reasoning_tokens
        self._vocab_size = vocab_size
        is_inside = wanted.starts_in_reasoning or span.is_open
        self.start = _State(_Phase.INSIDE if is_inside else _Phase.BEFORE)

    def forced(self, state: _State) -> tuple[int, ...]:
        """Return the tokens that must come next."""
        is_due = state.num_forced or (state.num_tokens >= self._most and not state.num_missing)
        return self._end_ids[state.num_forced :] if state.phase is _Phase.INSIDE and is_due else ()

    def after(self, state: _State, token_id: int) -> _State:
        """Return the state behind a token."""
        if state.phase is _Phase.CLOSED:
            return state
        text = _bytes_of(self._tokenizer.token_bytes(token_id))
        if state.phase is _Phase.BEFORE:
            return self._before(state, text)
        num_forced = state.num_forced + 1 if self.forced(state) else 0
        return self._inside(state._replace(num_forced=num_forced), text)

    def fill_all(self, mask: NDArray[np.uint32]) -> None:
        """Set the bits of all tokens that there are."""
        mask[:] = 0xFFFFFFFF
        if self._vocab_size % 32:
            mask[self._vocab_size // 32] = (1 << self._vocab_size % 32) - 1

    def over(self, inner: Matching | None) -> BudgetedMatcher:
        """Return a matcher at the beginning that keeps this budget within what another allows."""
        return BudgetedMatcher(self, inner, [self.start])

    def _before(self, state: _State, text: str) -> _State:
        text = (state.text + text).lstrip(" \n\r\t")
        if text.startswith(self._begin):
            return self._inside(_State(_Phase.INSIDE, num_tokens=-1), text.removeprefix(self._begin))
        return state._replace(text=text) if self._begin.startswith(text) else _CLOSED

    def _inside(self, state: _State, text: str) -> _State:
        scan, num_missing = state.scan, state.num_missing
        for letter in text:
            scan = self._ends.step(scan, letter)
            if self._ends.whole(scan) is not None:
                return _CLOSED
            num_missing = _missing(num_missing, ord(letter))
        return state._replace(scan=scan, num_missing=num_missing, num_tokens=state.num_tokens + 1)


class BudgetedMatcher:
    """Where one answer stands in its budget, and in its grammar if it is under one."""

    __slots__ = ("_budget", "_inner", "_states")

    def __init__(self, budget: ReasoningBudget, inner: Matching | None, states: list[_State]) -> None:
        self._budget = budget
        self._inner = inner
        self._states = states
        """Before each token, and now."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return not self._forced and (self._inner is None or self._inner.is_accepting)

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but an end token."""
        return self._inner is not None and self._inner.is_complete

    def allows(self, token_ids: Sequence[int]) -> int:
        """Return how many of these tokens, one after the other, may come next."""
        state, num_allowed = self._states[-1], 0
        for token_id in token_ids:
            forced = self._budget.forced(state)
            if forced and forced[0] != token_id:
                break
            state = self._budget.after(state, token_id)
            num_allowed += 1
        return num_allowed if self._inner is None else min(num_allowed, self._inner.allows(token_ids))

    def advance(self, token_id: int) -> None:
        """Read a token.

        Raises:
            InternalError: It is against the budget or the grammar.
        """
        if self._forced and token_id != self._forced[0]:
            raise InternalError(f"token {token_id} came where reasoning had to end with {self._forced[0]}")
        if self._inner is not None:
            self._inner.advance(token_id)
        self._states.append(self._budget.after(self._states[-1], token_id))

    def fill(self, mask: NDArray[np.uint32]) -> None:
        """Set the bit of every token that may come next, and clear all others."""
        if self._forced:
            mask[:] = 0
            mask[self._forced[0] // 32] = np.uint32(1 << self._forced[0] % 32)
        elif self._inner is not None:
            self._inner.fill(mask)
        else:
            self._budget.fill_all(mask)

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, as far as they are known."""
        if self._forced:
            return self._forced
        return () if self._inner is None else self._inner.forced()

    def roll_back(self, num_tokens: int) -> None:
        """Take back the last tokens read.

        Raises:
            InternalError: Fewer were read.
        """
        ensure(0 <= num_tokens < len(self._states), f"cannot take back {num_tokens} tokens of {len(self._states) - 1}")
        if self._inner is not None:
            self._inner.roll_back(num_tokens)
        del self._states[len(self._states) - num_tokens :]

    def fork(self) -> BudgetedMatcher:
        """Return a matcher at the same place that goes on independently."""
        inner = None if self._inner is None else self._inner.fork()
        return BudgetedMatcher(self._budget, inner, list(self._states))

    @property
    def _forced(self) -> tuple[int, ...]:
        return self._budget.forced(self._states[-1])


def _bytes_of(text: str | bytes) -> str:
    """Return bytes as a text of one letter each."""
    return (text.encode() if isinstance(text, str) else text).decode("latin-1")


def _missing(num_missing: int, byte: int) -> int:
    """Return how many bytes a character lacks behind one more byte."""
    if num_missing and 0x80 <= byte < 0xC0:  # noqa: PLR2004
        return num_missing - 1
    return 3 if byte >= 0xF0 else 2 if byte >= 0xE0 else 1 if byte >= 0xC0 else 0  # noqa: PLR2004
