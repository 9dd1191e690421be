r"""Regular expressions of stops, read in Python's syntax into a program without backtracking.

A program is a row of instructions. One with a matcher waits for a letter and goes on with the next; one without goes on
at once with each of those that it names; the last of a pattern ends it. `b(an)+` is ::

    0 letter b    1 letter a    2 letter n    3 or: 1, 4    4 end

What needs more than the letters of the match itself (`^`, `$`, `\b`, looking around) or memory of them (`\1`) is
refused by name: a stop is looked for in a text that still grows. Lazy repetition is read and means the same: the first
letter at which a match is whole ends the answer.

Source: Thompson 1968, Regular Expression Search Algorithm.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError

MAX_INSTRUCTIONS = 500
"""Most instructions of all patterns of a request; bounds what a letter costs."""
_MAX_DEPTH = 50
"""Deepest nesting of groups."""

_REPEATS: Mapping[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS = re.compile(r"\{([0-9]*)(?:(,)([0-9]*))?\}")
_CLASS_ESCAPES = frozenset("dDwWsS")
_CODES: Mapping[str, int] = {"x": 2, "u": 4, "U": 8}
_PLAIN_ESCAPES = frozenset("ntrfva")
_POSITIONS = frozenset("bBAZz")
_GROUPS: Mapping[str, str] = {
    "=": "looking ahead", "!": "looking ahead", "<=": "looking behind", "<!": "looking behind", ">": "an atomic group",
    "P=": "a reference to a group", "(": "a condition", "#": "a comment",
}  # fmt: skip
_FLAGS = re.compile(r"\(\?([a-zA-Z]+)\)")
_NAME = re.compile(r"\?P<\w+>")
_KNOWN_FLAGS: Mapping[str, re.RegexFlag] = {"i": re.IGNORECASE, "s": re.DOTALL}
_DOUBLED_IN_CLASSES = frozenset("[&|~")
"""Letters that Python may give a meaning in classes one day."""

Matcher: TypeAlias = re.Pattern[str]
"""Says of a single letter whether it matches."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """A step of a program."""

    matcher: Matcher | None
    following: tuple[int, ...]
    """Instructions to go on with: behind the letter where there is a matcher, at once otherwise; none end the match."""


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    branches: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: _Node
    low: int
    high: int | None


_Node: TypeAlias = Matcher | _Sequence | _Choice | _Repeat


class Program:
    """The instructions of several patterns, one after the other."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []

    def add(self, pattern: str) -> tuple[int, int]:
        """Append a pattern's instructions; returns the places of the first and of the one that ends it.

        Raises:
            InvalidParameterError: It is no regular expression, or all together are too large.
            UnsupportedFeatureError: It uses something that a stop cannot; the message names it.
        """
        start = len(self.instructions)
        self._emit(_Reader(pattern).node())
        self._put(None, ())
        return start, len(self.instructions) - 1

    def _put(self, matcher: Matcher | None, following: tuple[int, ...]) -> int:
        if len(self.instructions) == MAX_INSTRUCTIONS:
            raise InvalidParameterError(
                f"stop_regex has more than {MAX_INSTRUCTIONS} parts (letters, branches, and repetitions each time that "
                "they are counted); make it shorter, or count less",
                param="stop_regex",
            )
        self.instructions.append(Instruction(matcher, following))
        return len(self.instructions) - 1

    def _emit(self, node: _Node) -> None:
        match node:
            case _Sequence(parts):
                for part in parts:
                    self._emit(part)
            case _Choice(branches):
                self._emit_choice(branches)
            case _Repeat(part, low, high):
                self._emit_repeat(part, low, high)
            case matcher:
                self._put(matcher, (len(self.instructions) + 1,))

    def _emit_choice(self, branches: tuple[_Node, ...]) -> None:
        fork = self._put(None, ())
        starts, ends = [], []
        for branch in branches:
            starts.append(len(self.instructions))
            self._emit(branch)
            ends.append(self._put(None, ()))
        self.instructions[fork] = Instruction(None, tuple(starts))
        for end in ends:
            self.instructions[end] = Instruction(None, (len(self.instructions),))

    def _emit_repeat(self, part: _Node, low: int, high: int | None) -> None:
        for _ in range(low):
            before = len(self.instructions)
            self._emit(part)
            if len(self.instructions) == before:  # an empty part, however often
                break
        if high is None:
            fork = self._put(None, ())
            self._emit(part)
            self._put(None, (fork,))
            self.instructions[fork] = Instruction(None, (fork + 1, len(self.instructions)))
            return
        forks = []
        for _ in range(high - low):
            forks.append(self._put(None, ()))
            self._emit(part)
        for fork in forks:
            self.instructions[fork] = Instruction(None, (fork + 1, len(self.instructions)))


class _Reader:
    """Reads one pattern, from left to right."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._flags = re.RegexFlag(0)
        self._at = 0

    def node(self) -> _Node:
        """Return what the whole pattern means."""
        if flags := _FLAGS.match(self._pattern):
            for letter in flags[1]:
                if letter not in _KNOWN_FLAGS:
                    raise self._unsupported(f"the flag '{letter}'")
                self._flags |= _KNOWN_FLAGS[letter]
            self._at = flags.end()
        node = self._choice(0)
        if self._at < len(self._pattern):
            raise self._bad("')' closes nothing")
        return node

    def _choice(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise self._bad(f"its groups nest deeper than {_MAX_DEPTH}")
        branches = [self._sequence(depth)]
        while self._take("|"):
            branches.append(self._sequence(depth))
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            parts.append(self._repeated(depth))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self, depth: int) -> _Node:
        counts = self._counts()
        if counts is not None:
            raise self._bad("there is nothing to repeat")
        node = self._atom(depth)
        counts = self._counts()
        if counts is None:
            return node
        if self._take("+"):
            raise self._unsupported("possessive repetition")
        self._take("?")  # lazy: the same, since the first whole match ends the answer
        if self._counts() is not None:
            raise self._bad("a repetition is repeated")
        return _Repeat(node, *counts)

    def _counts(self) -> tuple[int, int | None] | None:
        """Read how often the part before may come, if that is said here."""
        letter = self._pattern[self._at : self._at + 1]
        if letter in _REPEATS:
            self._at += 1
            return _REPEATS[letter]
        found = _COUNTS.match(self._pattern, self._at)
        if found is None or found[0] == "{}":
            return None
        self._at = found.end()
        low = int(found[1] or 0)
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise self._bad("it repeats at least more often than at most")
        if max(low, high or 0) > MAX_INSTRUCTIONS:
            raise self._bad(f"it counts more than {MAX_INSTRUCTIONS} repetitions")
        return low, high

    def _atom(self, depth: int) -> _Node:
        letter = self._pattern[self._at]
        self._at += 1
        match letter:
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case "\\":
                return self._matcher(self._escape())
            case "^" | "$":
                raise self._unsupported(f"'{letter}'")
            case ".":
                return self._matcher(".")
            case _:
                return self._matcher(re.escape(letter))

    def _group(self, depth: int) -> _Node:
        if named := _NAME.match(self._pattern, self._at):
            self._at = named.end()
        elif self._take("?") and not self._take(":"):
            rest = self._pattern[self._at : self._at + 2]
            raise self._unsupported(next((what for mark, what in _GROUPS.items() if rest.startswith(mark)), "'(?'"))
        node = self._choice(depth + 1)
        if not self._take(")"):
            raise self._bad("a group is not closed")
        return node

    def _class(self) -> _Node:
        written = "[^" if self._take("^") else "["
        first = True
        while first or not self._take("]"):
            if self._at == len(self._pattern):
                raise self._bad("a class is not closed")
            letter = self._pattern[self._at]
            self._at += 1
            if letter == "\\":
                letter = "\\b" if self._take("b") else self._escape()
            elif letter in _DOUBLED_IN_CLASSES or (first and letter == "]"):
                letter = "\\" + letter
            elif letter == "-" and self._pattern.startswith("-", self._at):
                raise self._bad(r"'--' in a class has no sure meaning; write \-")
            written += letter
            first = False
        return self._matcher(written + "]")

    def _escape(self) -> str:
        """Read what follows a backslash and return it as an expression of one letter."""
        letter = self._pattern[self._at : self._at + 1]
        self._at += 1
        if letter in _CODES:
            digits = self._pattern[self._at : self._at + _CODES[letter]]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{_CODES[letter]}}}", digits) or int(digits, 16) > sys.maxunicode:
                raise self._bad(rf"'\{letter}' needs {_CODES[letter]} hexadecimal digits of a letter")
            self._at += _CODES[letter]
            return re.escape(chr(int(digits, 16)))
        if letter in _POSITIONS:
            raise self._unsupported(rf"'\{letter}'")
        if letter.isdigit():
            raise self._unsupported(rf"'\{letter}', a reference to a group")
        if not letter or (letter.isascii() and letter.isalpha() and letter not in _CLASS_ESCAPES | _PLAIN_ESCAPES):
            raise self._bad(rf"'\{letter}' means nothing")
        return "\\" + letter if letter in _CLASS_ESCAPES | _PLAIN_ESCAPES else re.escape(letter)

    def _matcher(self, written: str) -> Matcher:
        try:
            return re.compile(written, self._flags)
        except re.error as error:
            raise self._bad(f"{written}: {error}") from None

    def _take(self, letter: str) -> bool:
        is_next = self._pattern.startswith(letter, self._at)
        self._at += is_next
        return is_next

    def _bad(self, why: str) -> InvalidParameterError:
        return InvalidParameterError(
            f"stop_regex is {self._pattern!r}; it is no regular expression: {why} (before letter {self._at})",
            param="stop_regex",
        )

    def _unsupported(self, what: str) -> UnsupportedFeatureError:
        return UnsupportedFeatureError(
            f"stop_regex is {self._pattern!r}; {what} is not supported in it: a stop is found by its own letters alone",
            param="stop_regex",
        )
