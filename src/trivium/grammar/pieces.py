"""What a tool call is written with: marks, blanks, a name, arguments. Each piece reads text letter by letter.

A piece is data; where it stands is a value that its `step` takes and returns, so that whoever reads can go back by
remembering it. Arguments come out as pieces of JSON text, whatever they are written in.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

Types: TypeAlias = Mapping[str, frozenset[str] | None]
"""JSON types of a tool's arguments, by their names; `None` where the schema does not say."""

_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
"""Letters that stand in a JSON string as they are."""
NAME_LETTERS = frozenset(string.ascii_letters + string.digits + "_.-")


class Did(Enum):
    """What a piece did with a letter."""

    READ = "read"
    DONE = "done"
    """The letter is its last."""
    BEFORE = "before"
    """It was whole before what `rest` holds, which is somebody else's."""
    FAILED = "failed"
    """The letter has no place in it."""


class Step(NamedTuple):
    """What became of one letter."""

    did: Did
    state: Any = None
    name: str = ""
    """Name of the call, once it is known."""
    arguments: str = ""
    """JSON text that became certain."""
    rest: str = ""
    """With `BEFORE`: the letters that do not belong to the piece, this one included."""


FAILED = Step(Did.FAILED)


class Piece(Protocol):
    """A part of how a call is written."""

    @property
    def start(self) -> Any:
        """State before any letter."""
        ...

    def accepts(self, letter: str) -> bool:
        """Return whether it may begin with this letter."""
        ...

    def step(self, state: Any, letter: str, types: Types) -> Step:
        """Read one letter."""
        ...

    def run(self, state: Any, text: str, begin: int) -> int:
        """Return up to where letters from `begin` on are arguments as they stand, and leave the state as it is."""
        ...


class LetterByLetter:
    """A piece of which every letter has to be looked at."""

    __slots__ = ()

    def run(self, state: Any, text: str, begin: int) -> int:
        """Return `begin`."""
        return begin


@dataclass(frozen=True, slots=True)
class Mark(LetterByLetter):
    """A text that is written as it stands."""

    text: str
    is_optional: bool = False
    """Whether it may be left out when read; it is always written."""

    @property
    def start(self) -> int:
        """Letters read."""
        return 0

    def accepts(self, letter: str) -> bool:
        """Return whether it begins with this letter."""
        return self.text[0] == letter

    def step(self, state: int, letter: str, types: Types) -> Step:
        """Read one letter."""
        if self.text[state] == letter:
            return Step(Did.READ if state + 1 < len(self.text) else Did.DONE, state + 1)
        return Step(Did.BEFORE, rest=self.text[:state] + letter) if self.is_optional else FAILED


@dataclass(frozen=True, slots=True)
class Blank(LetterByLetter):
    """Any number of blanks and line breaks; `text` is what is written."""

    text: str = ""

    @property
    def start(self) -> None:
        """Nothing to remember."""
        return None

    def accepts(self, letter: str) -> bool:
        """Return whether the letter is blank."""
        return letter.isspace()

    def step(self, state: None, letter: str, types: Types) -> Step:
        """Read one letter."""
        return Step(Did.READ) if letter.isspace() else Step(Did.BEFORE, rest=letter)


@dataclass(frozen=True, slots=True)
class Name(LetterByLetter):
    """The name of the tool."""

    @property
    def start(self) -> str:
        """Letters read."""
        return ""

    def accepts(self, letter: str) -> bool:
        """Return whether a name has such letters."""
        return letter in NAME_LETTERS

    def step(self, state: str, letter: str, types: Types) -> Step:
        """Read one letter."""
        if letter in NAME_LETTERS:
            return Step(Did.READ, state + letter)
        return Step(Did.BEFORE, name=state, rest=letter) if state else FAILED


@dataclass(frozen=True, slots=True)
class Number(LetterByLetter):
    """Which call of the answer it is, counted from 0; what is written there is not looked at."""

    @property
    def start(self) -> int:
        """Digits read."""
        return 0

    def accepts(self, letter: str) -> bool:
        """Return whether it is a digit."""
        return letter in string.digits

    def step(self, state: int, letter: str, types: Types) -> Step:
        """Read one letter."""
        if letter in string.digits:
            return Step(Did.READ, state + 1)
        return Step(Did.BEFORE, rest=letter) if state else FAILED


@dataclass(frozen=True, slots=True)
class Label(LetterByLetter):
    """An id that some models make up for a call, behind a mark; it may be left out, is not looked at, nor written."""

    mark: str

    @property
    def start(self) -> int:
        """Letters read."""
        return 0

    def accepts(self, letter: str) -> bool:
        """Return whether it begins with this letter."""
        return self.mark[0] == letter

    def step(self, state: int, letter: str, types: Types) -> Step:
        """Read one letter."""
        if state < len(self.mark):
            if letter == self.mark[state]:
                return Step(Did.READ, state + 1)
            return Step(Did.BEFORE, rest=self.mark[:state] + letter)
        if letter in NAME_LETTERS:
            return Step(Did.READ, state + 1)
        return Step(Did.BEFORE, rest=letter) if state > len(self.mark) else FAILED


class Scan(NamedTuple):
    """Where a JSON value that is being passed through stands."""

    depth: int = 0
    is_string: bool = False
    is_escaped: bool = False

    def step(self, letter: str) -> tuple[Scan, str]:
        """Return the state behind a letter, and the letter as JSON has it: a control letter in a string is escaped."""
        depth, is_string, is_escaped = self
        if is_string:
            if is_escaped:
                return Scan(depth, is_string=True), letter
            if letter == '"':
                return Scan(depth), letter
            written = quoted(letter) if letter < " " else letter
            return Scan(depth, is_string=True, is_escaped=letter == "\\"), written
        if letter in "{[":
            return Scan(depth + 1), letter
        if letter in "}]":
            return Scan(depth - 1), letter
        return (Scan(depth, is_string=True) if letter == '"' else self), letter

    def run(self, text: str, begin: int) -> int:
        """Return up to where letters from `begin` on are of a string and change nothing."""
        if not self.is_string or self.is_escaped:
            return begin
        found = _PLAIN.match(text, begin)
        return begin if found is None else found.end()


@dataclass(frozen=True, slots=True)
class Json:
    """Arguments as a JSON object."""

    @property
    def start(self) -> Scan:
        """Before the brace."""
        return Scan()

    def accepts(self, letter: str) -> bool:
        """Return whether an object begins with it."""
        return letter == "{" or letter.isspace()

    def step(self, state: Scan, letter: str, types: Types) -> Step:
        """Read one letter."""
        if state.depth == 0:
            if letter.isspace():
                return Step(Did.READ, state)
            if letter != "{":
                return FAILED
        state, written = state.step(letter)
        return Step(Did.READ if state.depth else Did.DONE, state, arguments=written)

    def run(self, state: Scan, text: str, begin: int) -> int:
        """Return up to where letters are those of a string."""
        return state.run(text, begin)


class _Phase(Enum):
    """What an envelope expects."""

    OPEN = "its brace"
    KEY = "a key, or the end"
    IN_KEY = "the rest of a key"
    COLON = "the colon"
    VALUE = "a value"
    IN_NAME = "the rest of the name"
    IN_ARGUMENTS = "the rest of the arguments"
    IN_TEXT = "the rest of arguments that are written as a text"
    IN_OTHER = "the rest of a value that is not looked at"
    AFTER = "a comma, or the end"


class _EnvelopeState(NamedTuple):
    phase: _Phase = _Phase.OPEN
    text: str = ""
    """Key, name or arguments as a text, as far as it was read."""
    scan: Scan = Scan()
    name: str = ""
    early: str = ""
    """Arguments that came before the name."""
    has_arguments: bool = False


@dataclass(frozen=True, slots=True)
class Envelope:
    """A JSON object that holds the name and the arguments, in any order, among other things."""

    name_key: str = "name"
    arguments_key: str = "arguments"
    """As it is written; `arguments` and `parameters` are both read."""

    @property
    def start(self) -> _EnvelopeState:
        """Before the brace."""
        return _EnvelopeState()

    def accepts(self, letter: str) -> bool:
        """Return whether an object begins with it."""
        return letter == "{" or letter.isspace()

    def step(self, state: _EnvelopeState, letter: str, types: Types) -> Step:
        """Read one letter."""
        reader = self._READERS.get(state.phase)
        if reader is not None:
            return reader(self, state, letter)
        return Step(Did.READ, state) if letter.isspace() else self._between(state, letter)

    def run(self, state: _EnvelopeState, text: str, begin: int) -> int:
        """Return up to where letters are those of a string in the arguments."""
        return state.scan.run(text, begin) if state.phase is _Phase.IN_ARGUMENTS and state.name else begin

    def _between(self, state: _EnvelopeState, letter: str) -> Step:
        phase = state.phase
        if phase is _Phase.VALUE:
            return self._begin_value(state, letter)
        if letter == "}" and phase in {_Phase.KEY, _Phase.AFTER}:
            return self._end(state)
        following_phase = _NEXT.get((phase, letter))
        if following_phase is None:
            return FAILED
        text = state.text if following_phase is _Phase.VALUE else ""
        return Step(Did.READ, state._replace(phase=following_phase, text=text, scan=Scan().step(letter)[0]))

    def _in_arguments(self, state: _EnvelopeState, letter: str) -> Step:
        scan, written = state.scan.step(letter)
        following = state._replace(scan=scan, phase=state.phase if scan.depth else _Phase.AFTER)
        if not state.name:
            return Step(Did.READ, following._replace(early=state.early + written))
        return Step(Did.READ, following, name=state.name, arguments=written)

    def _begin_value(self, state: _EnvelopeState, letter: str) -> Step:
        key = state.text
        if key == self.name_key:
            phase = _Phase.IN_NAME if letter == '"' and not state.name else None
        elif key in _ARGUMENTS and not state.has_arguments and letter in '{"':
            phase = _Phase.IN_ARGUMENTS if letter == "{" else _Phase.IN_TEXT
        else:
            phase = None if letter in ",}]:" else _Phase.IN_OTHER
        if phase is None:
            return FAILED
        following = state._replace(phase=phase, text="", scan=Scan().step(letter)[0])
        if phase is not _Phase.IN_ARGUMENTS:
            return Step(Did.READ, following)
        following = following._replace(has_arguments=True)
        if not state.name:
            return Step(Did.READ, following._replace(early=letter))
        return Step(Did.READ, following, name=state.name, arguments=letter)

    def _in_string(self, state: _EnvelopeState, letter: str) -> Step:
        scan, written = state.scan.step(letter)
        if scan.is_string:
            return Step(Did.READ, state._replace(scan=scan, text=state.text + written))
        try:
            text = str(json.loads(f'"{state.text}"'))
        except ValueError:
            return FAILED
        phase, state = state.phase, state._replace(scan=Scan(), text=text, phase=_Phase.AFTER)
        if phase is _Phase.IN_KEY:
            return Step(Did.READ, state._replace(phase=_Phase.COLON))
        return self._take_text(state, text) if phase is _Phase.IN_TEXT else self._take_name(state, text)

    def _take_name(self, state: _EnvelopeState, name: str) -> Step:
        if not name or not NAME_LETTERS.issuperset(name):
            return FAILED
        return Step(Did.READ, state._replace(name=name, early=""), name=name, arguments=state.early)

    def _take_text(self, state: _EnvelopeState, text: str) -> Step:
        """Take arguments that were written as a JSON text of JSON."""
        try:
            text.encode()  # half of a surrogate pair can't be passed on
            arguments = text if isinstance(json.loads(text), dict) else None
        except (ValueError, RecursionError):
            arguments = None
        if arguments is None:
            return FAILED
        state = state._replace(has_arguments=True, early="" if state.name else arguments)
        return Step(Did.READ, state, name=state.name, arguments=arguments if state.name else "")

    def _in_other(self, state: _EnvelopeState, letter: str) -> Step:
        scan = state.scan
        if scan.depth == 0 and not scan.is_string and (letter in ",}" or letter.isspace()):
            return self.step(state._replace(phase=_Phase.AFTER), letter, {})
        following, _ = scan.step(letter)
        return FAILED if following.depth < 0 else Step(Did.READ, state._replace(scan=following))

    def _end(self, state: _EnvelopeState) -> Step:
        if not state.name:
            return FAILED
        return Step(Did.DONE, name=state.name, arguments="" if state.has_arguments else "{}")

    _READERS: ClassVar[Mapping[_Phase, Callable[[Envelope, _EnvelopeState, str], Step]]] = {
        _Phase.IN_KEY: _in_string,
        _Phase.IN_NAME: _in_string,
        _Phase.IN_TEXT: _in_string,
        _Phase.IN_ARGUMENTS: _in_arguments,
        _Phase.IN_OTHER: _in_other,
    }


_ARGUMENTS = ("arguments", "parameters")
_NEXT: Mapping[tuple[_Phase, str], _Phase] = {
    (_Phase.OPEN, "{"): _Phase.KEY,
    (_Phase.KEY, '"'): _Phase.IN_KEY,
    (_Phase.COLON, ":"): _Phase.VALUE,
    (_Phase.AFTER, ","): _Phase.KEY,
}


def quoted(text: str) -> str:
    """Return a text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
