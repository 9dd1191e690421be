"""Reading request fields by table: honoured, bookkeeping, known but unsupported, unknown.

Every endpoint declares a `FieldTable`; nothing in a body is ever dropped in silence. A value of `null` means that the
field was not given. The same tables make the request schemas of `/openapi.json`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trivium.base.errors import InvalidParameterError, UnsupportedFeatureError

Read = Callable[[str, Any], Any]
Schema = Mapping[str, Any]

MAX_SHOWN_CHARS = 60
INT31 = (1 << 31) - 1
MAX_ID_DIGITS = 10


class UnknownFieldError(InvalidParameterError):
    """A field that this API does not know."""

    code = "unknown_parameter"


@dataclass(frozen=True, slots=True)
class Field:
    """An honoured field: how its value is checked and what the documentation says."""

    read: Read
    schema: Schema
    doc: str


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that other servers honour and this one does not: only values that ask for nothing pass."""

    neutral: tuple[Any, ...] = ()
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldTable:
    """All fields of one endpoint."""

    honoured: Mapping[str, Field]
    bookkeeping: Mapping[str, str]
    """Fields without any effect on the answer, accepted with any value, each with what it is for."""
    unsupported: Mapping[str, Unsupported]

    def read(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check every field of a body and return the honoured ones that were given.

        Raises:
            InvalidParameterError: A field is unknown, or its value is refused; `param` names it.
            UnsupportedFeatureError: A field asks for something that is not supported.
        """
        values: dict[str, Any] = {}
        for name, value in body.items():
            field = self.honoured.get(name)
            if field is not None:
                if value is not None:
                    values[name] = field.read(name, value)
            elif name not in self.bookkeeping:
                self._refuse(name, value)
        return values

    def schema(self, *, required: Sequence[str] = ()) -> dict[str, Any]:
        """Draw the JSON schema of a body: honoured and bookkeeping fields, and nothing else."""
        properties: dict[str, Any] = {
            name: {**field.schema, "description": field.doc} for name, field in self.honoured.items()
        }
        properties |= {name: {"description": f"No effect. {purpose}"} for name, purpose in self.bookkeeping.items()}
        drawn: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**drawn, "required": list(required)} if required else drawn

    def _refuse(self, name: str, value: Any) -> None:
        unsupported = self.unsupported.get(name)
        if unsupported is not None:
            if value is None or any(_is_same(value, neutral) for neutral in unsupported.neutral):
                return
            hint = f"; {unsupported.hint}" if unsupported.hint else ""
            raise UnsupportedFeatureError(f"{name} is not supported by this server{hint}", param=name)
        close = difflib.get_close_matches(name, self.honoured, n=3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        shown = name[:MAX_SHOWN_CHARS]
        raise UnknownFieldError(f"unknown field '{shown}'{hint}", param=shown)


def refused(name: str, value: Any, limit: str) -> InvalidParameterError:
    """Make the error for a value outside its limits; long values are shortened."""
    shown = repr(value)
    if len(shown) > MAX_SHOWN_CHARS:
        shown = shown[:MAX_SHOWN_CHARS] + "..."
    return InvalidParameterError(f"{name} is {shown}; it must be {limit}", param=root_field(name))


def root_field(where: str) -> str:
    """Name of the request field that a place such as `messages[0].content` belongs to."""
    return where.split("[", 1)[0].split(".", 1)[0]


def _is_same(value: Any, neutral: Any) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def is_count(value: Any, low: int, high: int) -> bool:
    """Whether `value` is a whole number (no boolean, no 1.0) from `low` to `high`."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def is_number(value: Any, low: float, high: float) -> bool:
    """Whether `value` is a finite number (no boolean) from `low` to `high`."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high and math.isfinite(value)
    )


def count(low: int, high: int, doc: str) -> Field:
    """A whole number."""

    def read(name: str, value: Any) -> int:
        if not is_count(value, low, high):
            raise refused(name, value, f"a whole number from {low} to {high}")
        return int(value)

    return Field(read, {"type": "integer", "minimum": low, "maximum": high}, doc)


def number(low: float, high: float, doc: str, *, above: float | None = None) -> Field:
    """A finite number from `low` to `high`; greater than `above` when that is given."""
    limit = f"a number from {low:g} to {high:g}" if above is None else f"a number above {above:g}, at most {high:g}"

    def read(name: str, value: Any) -> float:
        if not is_number(value, low, high) or (above is not None and value <= above):
            raise refused(name, value, limit)
        return float(value)

    bounds = {"minimum": low} if above is None else {"exclusiveMinimum": above}
    return Field(read, {"type": "number", **bounds, "maximum": high}, doc)


def flag(doc: str) -> Field:
    """A boolean."""

    def read(name: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise refused(name, value, "true or false")
        return value

    return Field(read, {"type": "boolean"}, doc)


def text(doc: str, *, max_chars: int | None = None, is_empty_allowed: bool = True) -> Field:
    """A text."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str):
            raise refused(name, value, "a text")
        if not value and not is_empty_allowed:
            raise refused(name, value, "a text that is not empty")
        if max_chars is not None and len(value) > max_chars:
            raise refused(name, f"{len(value)} characters long", f"at most {max_chars}")
        return value

    return Field(read, {"type": "string"}, doc)


def one_of(options: Sequence[str], doc: str) -> Field:
    """One of several words."""

    def read(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in options:
            raise refused(name, value, " or ".join(f"'{option}'" for option in options))
        return value

    return Field(read, {"type": "string", "enum": list(options)}, doc)


def texts(max_texts: int, doc: str) -> Field:
    """One text or a list of them, none empty; read as a tuple."""

    def read(name: str, value: Any) -> tuple[str, ...]:
        entries = [value] if isinstance(value, str) else value
        if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
            raise refused(name, value, "a text or a list of texts")
        if not all(entries):
            raise refused(name, value, "made of texts that are not empty")
        if len(entries) > max_texts:
            raise refused(name, f"{len(entries)} texts", f"at most {max_texts} texts")
        return tuple(entries)

    strings = {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": max_texts}
    return Field(read, {"anyOf": [{"type": "string", "minLength": 1}, strings]}, doc)


def ids(max_ids: int, doc: str) -> Field:
    """A list of token ids; read as a tuple. The vocabulary's size is checked where it is known."""

    def read(name: str, value: Any) -> tuple[int, ...]:
        if not isinstance(value, list):
            raise refused(name, value, "a list of token ids")
        if len(value) > max_ids:
            raise refused(name, f"{len(value)} ids", f"at most {max_ids} ids")
        for entry in value:
            if not is_count(entry, 0, INT31):
                raise refused(name, entry, "made of token ids, whole numbers from 0")
        return tuple(value)

    return Field(read, {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": max_ids}, doc)


def bias(max_entries: int, doc: str) -> Field:
    """An object from token id, as text, to a number of -100 to 100; read with ids as keys."""

    def read(name: str, value: Any) -> dict[int, float]:
        if not isinstance(value, dict):
            raise refused(name, value, "an object of token ids and biases")
        if len(value) > max_entries:
            raise refused(name, f"{len(value)} entries", f"at most {max_entries} entries")
        entries: dict[int, float] = {}
        for key, entry in value.items():
            if not (key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS):
                raise refused(name, key, 'made of token ids as texts, such as "42"')
            if not is_number(entry, -100.0, 100.0):
                raise refused(f"{name}[{key}]", entry, "a number from -100 to 100")
            entries[int(key)] = float(entry)
        if len(entries) != len(value):
            raise refused(name, value, "made of different token ids")
        return entries

    additional = {"type": "number", "minimum": -100, "maximum": 100}
    return Field(read, {"type": "object", "additionalProperties": additional}, doc)


def mapping(doc: str) -> Field:
    """An object, read as it is."""

    def read(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise refused(name, value, "an object")
        return value

    return Field(read, {"type": "object"}, doc)


def whatever(schema: Schema, doc: str) -> Field:
    """A value that its endpoint checks on its own."""

    def read(_: str, value: Any) -> Any:
        return value

    return Field(read, schema, doc)
