"""`StopTexts`: several stop texts as one machine that reads a text letter by letter; `StopConditions`: with patterns.

After any text the machine's state is a number, and the state alone says how many letters at the end of the text may
be the beginning of a stop text. So searching costs the length of the new text whatever the number of stop texts, and
going back is remembering a number.

::

    stop texts  "abcd", "bc"
    text        x a b        state of "ab": the last 2 letters are held back
    text        x a b c      state of "abc": its ending "bc" is whole, so the answer ends before its b

Source: Aho and Corasick 1975, Efficient String Matching.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from trivium.base.errors import InvalidParameterError
from trivium.grammar.stop_patterns import NOWHERE, PatternState, StopPatterns, Whole

MAX_STOP_LETTERS = 1 << 13
"""Most letters in all stop texts of a request together; bounds the machine's memory."""

START = 0
"""The state before any letter."""


class StopTexts:
    """Stop texts of one request; immutable, shared by its choices.

    States are numbers; `START` begins a text. A state stands for the longest ending of the text that begins some stop
    text.
    """

    __slots__ = ("_fall_back", "_first_letters", "_held", "_next", "_whole", "texts")

    def __init__(self, texts: Iterable[str]) -> None:
        """Build the machine.

        Args:
            texts: Stop texts, none of them empty; perhaps no text at all.

        Raises:
            InvalidParameterError: A text is empty, or all together are longer than `MAX_STOP_LETTERS`.

        Cost: the number of letters in `texts`.
        """
        self.texts = tuple(dict.fromkeys(texts))
        if "" in self.texts:
            raise InvalidParameterError("stop holds an empty text, which would end every answer at once", param="stop")
        if (total := sum(map(len, self.texts))) > MAX_STOP_LETTERS:
            message = f"stop holds {total} letters in all; at most {MAX_STOP_LETTERS} are allowed"
            raise InvalidParameterError(message, param="stop")
        self._next: list[dict[str, int]] = [{}]
        self._whole: list[str | None] = [None]
        """Per state: the longest stop text that ends here."""
        self._fall_back: list[int] = [START]
        """Per state: the state of the next shorter ending."""
        self._held: list[int] = [0]
        """Per state: letters at the end of the text that begin a stop text which is not whole yet."""
        for text in self.texts:
            self._enter(text)
        self._link()
        self._first_letters = frozenset(self._next[START])

    def begins_nowhere_in(self, text: str) -> bool:
        """Return whether reading `text` from `START` passes through no other state; cheaper than to read it."""
        return self._first_letters.isdisjoint(text)

    def step(self, state: int, letter: str) -> int:
        """Return the state after one more letter."""
        while state and letter not in self._next[state]:
            state = self._fall_back[state]
        return self._next[state].get(letter, START)

    def whole(self, state: int) -> str | None:
        """Return the longest stop text that ends exactly at this state, or `None`."""
        return self._whole[state]

    def held(self, state: int) -> int:
        """Return how many letters at the end of the text may still become part of a stop."""
        return self._held[state]

    def _enter(self, text: str) -> None:
        state = START
        for letter in text:
            following = self._next[state].get(letter)
            if following is None:
                following = self._next[state][letter] = len(self._next)
                self._next.append({})
                self._whole.append(None)
            state = following
        self._whole[state] = text

    def _link(self) -> None:
        """Fill fall-backs and held lengths, short endings first, so that each refers to finished ones."""
        self._fall_back = [START] * len(self._next)
        self._held = [0] * len(self._next)
        depths = [0] * len(self._next)
        waiting = deque([START])
        while waiting:
            state = waiting.popleft()
            for letter, following in self._next[state].items():
                shorter = self.step(self._fall_back[state], letter) if state else START
                depths[following] = depths[state] + 1
                self._fall_back[following] = shorter
                self._whole[following] = self._whole[following] or self._whole[shorter]
                self._held[following] = depths[following] if self._next[following] else self._held[shorter]
                waiting.append(following)


class StopState(NamedTuple):
    """Where the stops of an answer stand; immutable."""

    texts: int = START
    patterns: PatternState = NOWHERE


class StopConditions:
    """All that ends an answer by its text: stop texts and patterns of one request, shared by its choices."""

    __slots__ = ("_patterns", "_texts")

    start = StopState()
    """The state before any letter."""

    def __init__(self, texts: Iterable[str], patterns: Iterable[str] = ()) -> None:
        """Build the machines.

        Raises:
            InvalidParameterError: A stop is empty or no regular expression, or they are too long.
            UnsupportedFeatureError: A pattern uses what a stop cannot.
        """
        self._texts = StopTexts(texts)
        given = tuple(patterns)
        self._patterns = StopPatterns(given) if given else None

    def begins_nowhere_in(self, text: str) -> bool:
        """Return whether reading `text` from `start` passes through no other state; cheaper than to read it."""
        is_nowhere = self._texts.begins_nowhere_in(text)
        return is_nowhere and (self._patterns is None or self._patterns.begins_nowhere_in(text))

    def step(self, state: StopState, letter: str) -> StopState:
        """Return the state after one more letter."""
        patterns = NOWHERE if self._patterns is None else self._patterns.step(state.patterns, letter)
        return StopState(self._texts.step(state.texts, letter), patterns)

    def whole(self, state: StopState) -> Whole | None:
        """Return the longest stop that ends exactly at this state, a text among equals, or `None`."""
        text, pattern = self._texts.whole(state.texts), state.patterns.whole
        if text is None or (pattern is not None and pattern.length > len(text)):
            return pattern
        return Whole(len(text), text)

    def held(self, state: StopState) -> int:
        """Return how many letters at the end of the text may still become part of a stop."""
        held = self._texts.held(state.texts)
        return held if self._patterns is None else max(held, self._patterns.held(state.patterns))
