r"""`Parameters`: arguments written one by one between marks, each value as it stands, as some XML-like dialects do.

::

    <parameter=city>\nParis\n</parameter>            "city": "Paris"
    <arg_key>days</arg_key>\n<arg_value>3</arg_value>  "days": 3

Only the tool's schema says whether `3` is a number or a text. A text is given out while it comes; anything else when
it is whole. Where the schema does not say, what reads as JSON is that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

from trivium.grammar.pieces import FAILED, Did, LetterByLetter, Step, Types, quoted
from trivium.grammar.stops import START, StopTexts

MAX_KEY_LETTERS = 256
_TEXT = frozenset({"string"})
_WORDS = {"True": "true", "False": "false", "None": "null"}


class _Phase(Enum):
    BETWEEN = "a parameter, or what follows the last"
    KEY = "the rest of a key"
    GAP = "the mark of the value"
    VALUE = "the rest of a value"


class _State(NamedTuple):
    phase: _Phase = _Phase.BETWEEN
    text: str = ""
    """Letters that have not been given out."""
    scan: int = START
    """Of a value's end."""
    is_text: bool = False
    """Whether the value is given out while it comes."""
    is_first_letter: bool = False
    types: frozenset[str] | None = None
    num_values: int = 0


@dataclass(frozen=True, slots=True)
class Parameters(LetterByLetter):
    """Arguments between marks; always the last thing before a mark that begins otherwise."""

    key_begin: str
    key_end: str
    value_end: str
    value_begin: str = ""
    """Stands between `key_end` and the value, where there is such a mark; blanks may stand before it."""
    kind_mark: str = ""
    """Stands between a key and `true` for a text, `false` for JSON, where the model says which."""
    frames_with_lines: bool = False
    """Whether a line break stands before and behind a value."""

    @property
    def start(self) -> _State:
        """Before the first parameter."""
        return _State()

    def accepts(self, letter: str) -> bool:
        """Return whether it begins with this letter; it may be empty."""
        return True

    def step(self, state: _State, letter: str, types: Types) -> Step:
        """Read one letter."""
        match state.phase:
            case _Phase.BETWEEN:
                return self._between(state, letter)
            case _Phase.KEY:
                return self._key(state, letter, types)
            case _Phase.GAP:
                return self._gap(state, letter)
            case _:
                return self._value(state, letter)

    def _between(self, state: _State, letter: str) -> Step:
        if not state.text and letter.isspace():
            return Step(Did.READ, state)
        text = state.text + letter
        if text == self.key_begin:
            return Step(Did.READ, state._replace(phase=_Phase.KEY, text=""))
        if self.key_begin.startswith(text):
            return Step(Did.READ, state._replace(text=text))
        return Step(Did.BEFORE, arguments="}" if state.num_values else "{}", rest=text)

    def _key(self, state: _State, letter: str, types: Types) -> Step:
        text = state.text + letter
        if not text.endswith(self.key_end):
            is_possible = len(text) < MAX_KEY_LETTERS and letter != "\n"
            return Step(Did.READ, state._replace(text=text)) if is_possible else FAILED
        key, known = self._kind_of(text.removesuffix(self.key_end), types)
        if not key:
            return FAILED
        following = state._replace(
            phase=_Phase.GAP if self.value_begin else _Phase.VALUE,
            text="",
            scan=START,
            is_text=known == _TEXT,
            is_first_letter=True,
            types=known,
            num_values=state.num_values + 1,
        )
        lead = ", " if state.num_values else "{"
        return Step(Did.READ, following, arguments=f'{lead}"{quoted(key)}": {_quote(following)}')

    def _kind_of(self, key: str, types: Types) -> tuple[str, frozenset[str] | None]:
        """Return a key without what the model says of its value, and the types that the value may have."""
        name, mark, flag = key.rpartition(self.kind_mark) if self.kind_mark else ("", "", "")
        if not mark:
            return key, types.get(key)
        return name, _TEXT if flag == "true" else None

    def _gap(self, state: _State, letter: str) -> Step:
        if not state.text and letter.isspace():
            return Step(Did.READ, state)
        text = state.text + letter
        if text == self.value_begin:
            return Step(Did.READ, state._replace(phase=_Phase.VALUE, text=""))
        return Step(Did.READ, state._replace(text=text)) if self.value_begin.startswith(text) else FAILED

    def _value(self, state: _State, letter: str) -> Step:
        if state.is_first_letter:
            state = state._replace(is_first_letter=False)
            if self.frames_with_lines and letter == "\n":
                # the line break before the value may also be the one behind it, where the value is empty
                return Step(Did.READ, state._replace(scan=self._ends.step(START, letter)))
        scan = self._ends.step(state.scan, letter)
        text = state.text + letter
        end = self._ends.whole(scan)
        if end is None:
            if not state.is_text:
                return Step(Did.READ, state._replace(scan=scan, text=text))
            num_certain = max(len(text) - self._ends.held(scan), 0)
            following = state._replace(scan=scan, text=text[num_certain:])
            return Step(Did.READ, following, arguments=quoted(text[:num_certain]))
        value = text[: max(len(text) - len(end), 0)]
        written = quoted(value) + '"' if state.is_text else json_of(value, state.types)
        return Step(Did.READ, state._replace(phase=_Phase.BETWEEN, text=""), arguments=written)

    @property
    def _ends(self) -> StopTexts:
        return _ends_of(self.value_end, self.frames_with_lines)


@cache
def _ends_of(mark: str, frames_with_lines: bool) -> StopTexts:  # noqa: FBT001
    return StopTexts((mark, "\n" + mark) if frames_with_lines else (mark,))


def _quote(state: _State) -> str:
    return '"' if state.is_text else ""


def json_of(value: str, types: frozenset[str] | None) -> str:
    """Return JSON text for a value as it was written, given what types it may have, if that is known."""
    stripped = value.strip()
    written = _WORDS.get(stripped, stripped)
    try:
        parsed = json.loads(written, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return f'"{quoted(value)}"'
    kind = _KINDS[type(parsed)]
    if kind == "string":
        return f'"{quoted(value)}"'
    fits = types is None or kind in types or (kind in {"integer", "number"} and "number" in types)
    if not fits and kind == "number" and "integer" in types and parsed == int(parsed):  # type: ignore[operator]
        return str(int(parsed))
    return written if fits else f'"{quoted(value)}"'


_KINDS: Mapping[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _refuse(name: str) -> Any:
    raise ValueError(name)


def types_of(parameters: Mapping[str, Any] | None) -> Types:
    """Return what JSON types the arguments of a tool may have, as far as its schema says."""
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, Mapping):
        return {}
    return {name: _types_of(schema, parameters or {}, depth=0) for name, schema in properties.items()}


_MAX_REFERENCES = 16


def _types_of(schema: Any, root: Mapping[str, Any], *, depth: int) -> frozenset[str] | None:
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
        return None
    kinds = schema.get("type")
    if kinds is not None:
        return frozenset({kinds} if isinstance(kinds, str) else map(str, kinds))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, (list, tuple)):
        return frozenset(_KINDS[type(each)] for each in values if type(each) in _KINDS)
    if isinstance(reference := schema.get("$ref"), str):
        return _types_of(_at(root, reference), root, depth=depth + 1)
    either = schema.get("anyOf", schema.get("oneOf"))
    if not isinstance(either, (list, tuple)):
        return None
    found = [_types_of(each, root, depth=depth + 1) for each in either]
    return None if None in found else frozenset().union(*(each for each in found if each is not None))


def _at(root: Mapping[str, Any], reference: str) -> Any:
    """Return what a reference inside the document points at, or `None`."""
    place: Any = root
    for step in reference.removeprefix("#/").split("/") if reference.startswith("#/") else ():
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return None if place is root else place
