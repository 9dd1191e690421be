"""`StopPatterns`: regular expressions that end an answer, all followed at once, letter by letter.

A match may begin at any letter, so the state knows, for every place in the program that is reached, the earliest letter
from which it is. Places that the same letter leads to form a run, a set of bits; of two runs that reach the same place
the earlier one keeps it, since it would find the longer match. There are never more runs than places, so a letter costs
no more than the program is long, whatever the pattern.

::

    pattern   <[a-z]*>                     runs of the state
    text      x < a                        began 2 letters ago: { [a-z], > }
    text      x < a <                      began 1 letter ago:  { [a-z], > }
    text      x < a < >                    whole, 2 letters long

Source: Pike's simulation, as told in Cox 2009, Regular Expression Matching: the Virtual Machine Approach.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

from trivium.base.errors import InvalidParameterError
from trivium.grammar.pattern_syntax import Instruction, Program

MAX_PATTERN_LETTERS = 1 << 12
"""Most letters in all patterns of a request; also the most that are held back for them, and cut off with a match."""
_MAX_KNOWN = 1 << 10
"""Letters whose places are remembered."""


class Whole(NamedTuple):
    """A stop that is whole."""

    length: int
    """Letters at the end of the text that belong to it."""
    stop: str


class Run(NamedTuple):
    """Places that may be reached from one letter of the text."""

    length: int
    """Letters since then."""
    places: int
    """Bits of the instructions that wait for a letter."""


class PatternState(NamedTuple):
    """Where the patterns stand; immutable."""

    runs: tuple[Run, ...] = ()
    """The earliest first; no two share a place."""
    whole: Whole | None = None


NOWHERE = PatternState()
"""Before any letter, and wherever no match has begun."""


class StopPatterns:
    """Patterns of one request; immutable but for what it remembers, shared by its choices."""

    __slots__ = ("_after", "_ends", "_first", "_known", "_matchers")

    def __init__(self, patterns: Iterable[str]) -> None:
        """Read the patterns.

        Raises:
            InvalidParameterError: One is no regular expression or matches the empty text, or they are too long.
            UnsupportedFeatureError: One uses what a stop cannot; the message names it.
        """
        distinct = tuple(dict.fromkeys(patterns))
        if (total := sum(map(len, distinct))) > MAX_PATTERN_LETTERS:
            message = f"stop_regex holds {total} letters in all; at most {MAX_PATTERN_LETTERS} are allowed"
            raise InvalidParameterError(message, param="stop_regex")
        program = Program()
        spans = [(pattern, *program.add(pattern)) for pattern in distinct]
        rows = program.instructions
        self._ends = {1 << end: pattern for pattern, _, end in spans}
        self._matchers = [(row.matcher, 1 << idx) for idx, row in enumerate(rows) if row.matcher is not None]
        reached = _reached(rows)
        self._after = [reached[row.following[0]] if row.matcher is not None else 0 for row in rows]
        """Per instruction that waits for a letter: the places behind it that wait or end."""
        self._first = 0
        for pattern, start, end in spans:
            if reached[start] & 1 << end:
                raise InvalidParameterError(
                    f"stop_regex is {pattern!r}, which matches the empty text and would end every answer at once",
                    param="stop_regex",
                )
            self._first |= reached[start]
        self._known: dict[str, int] = {}

    def begins_nowhere_in(self, text: str) -> bool:
        """Return whether no letter of the text can begin a match."""
        return not any(self._first & self._matching(letter) for letter in text)

    def step(self, state: PatternState, letter: str) -> PatternState:
        """Return the state after one more letter."""
        matching = self._matching(letter)
        runs: list[Run] = []
        whole, taken = None, 0
        for length, places in (*state.runs, (0, self._first)):
            hit, new = places & matching, 0
            while hit:
                lowest = hit & -hit
                new |= self._after[lowest.bit_length() - 1]
                hit ^= lowest
            new &= ~taken
            if not new:
                continue
            taken |= new
            length_now = min(length + 1, MAX_PATTERN_LETTERS)
            for end, pattern in self._ends.items():
                if new & end:
                    whole = whole or Whole(length_now, pattern)
                    new ^= end
            if new:
                runs.append(Run(length_now, new))
        return PatternState(tuple(runs), whole) if runs or whole else NOWHERE

    def held(self, state: PatternState) -> int:
        """Return how many letters at the end of the text may still become part of a stop."""
        return state.runs[0].length if state.runs else 0

    def _matching(self, letter: str) -> int:
        known = self._known.get(letter)
        if known is None:
            if len(self._known) == _MAX_KNOWN:
                self._known.clear()
            known = self._known[letter] = sum(bit for matcher, bit in self._matchers if matcher.match(letter))
        return known


def _reached(rows: Sequence[Instruction]) -> list[int]:
    """Return, per instruction, the places that wait for a letter or end a pattern and are reached without one."""
    reached = [1 << idx if row.matcher is not None or not row.following else 0 for idx, row in enumerate(rows)]
    is_settled = False
    while not is_settled:  # backwards, since all but repetitions go on to later ones
        is_settled = True
        for idx in range(len(rows) - 1, -1, -1):
            if rows[idx].matcher is None and rows[idx].following:
                places = reduce(or_, (reached[each] for each in rows[idx].following))
                is_settled &= places == reached[idx]
                reached[idx] = places
    return reached
