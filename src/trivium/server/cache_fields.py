"""Request fields of the prefix cache that have a shape of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.program_share import MAX_ID_CHARS, ProgramShare
from trivium.config.retention import MAX_PRIORITY, RangeRetention, Retention
from trivium.server.fields import INT31, Field, is_count, refused

_PRIORITY = {"type": "integer", "minimum": 0, "maximum": MAX_PRIORITY}
_DURATION = {"type": ["number", "null"], "exclusiveMinimum": 0}
_BOUND = {"type": "integer", "minimum": 0, "maximum": INT31}
_RANGE = {
    "type": "array",
    "prefixItems": [_BOUND, {**_BOUND, "type": ["integer", "null"]}],
    "minItems": 2,
    "maxItems": 2,
}


def retention(doc: str) -> Field:
    """A priority, for a while or for good."""

    def read(name: str, value: Any) -> Retention:
        found = Retention(**_known(name, value, ("priority", "duration_s")))
        found.validate(name)
        return found

    properties = {"priority": _PRIORITY, "duration_s": _DURATION}
    return Field(read, _object(properties, required=("priority",)), doc)


def retention_ranges(max_ranges: int, doc: str) -> Field:
    """A list of token ranges with their priorities; read as a tuple."""

    def read(name: str, value: Any) -> tuple[RangeRetention, ...]:
        if not isinstance(value, list) or len(value) > max_ranges:
            raise refused(name, value, f"a list of at most {max_ranges} objects")
        return tuple(_range(f"{name}[{idx}]", entry) for idx, entry in enumerate(value))

    properties = {"token_range": _RANGE, "priority": _PRIORITY, "duration_s": _DURATION}
    items = _object(properties, required=("token_range", "priority"))
    return Field(read, {"type": "array", "items": items, "maxItems": max_ranges}, doc)


def program_share(doc: str) -> Field:
    """The share of a request in a program."""

    def read(name: str, value: Any) -> ProgramShare:
        parts = _parts(name, value, ("id", "remaining_tokens", "ends"))
        found = ProgramShare(program_id=parts.pop("id", ""), **parts)
        found.validate(name)
        return found

    properties = {
        "id": {"type": "string", "minLength": 1, "maxLength": MAX_ID_CHARS},
        "remaining_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": INT31},
        "ends": {"type": "boolean"},
    }
    return Field(read, _object(properties, required=("id",)), doc)


def _range(name: str, value: Any) -> RangeRetention:
    parts = _known(name, value, ("token_range", "priority", "duration_s"))
    bounds = parts.pop("token_range", None)
    is_pair = isinstance(bounds, list) and len(bounds) == 2  # noqa: PLR2004
    if not is_pair or not is_count(bounds[0], 0, INT31) or not (bounds[1] is None or is_count(bounds[1], 0, INT31)):
        raise refused(f"{name}.token_range", bounds, "[start, end], the end null for the prompt's end")
    found = RangeRetention(start=bounds[0], end=bounds[1], **parts)
    found.validate(name)
    return found


def _known(name: str, value: Any, parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the parts of an object, of which `priority` must be one."""
    found = _parts(name, value, parts)
    if "priority" not in found:
        raise refused(f"{name}.priority", None, f"a whole number from 0 to {MAX_PRIORITY}")
    return found


def _parts(name: str, value: Any, parts: tuple[str, ...]) -> dict[str, Any]:
    """Return the parts of an object that are not null."""
    if not isinstance(value, dict):
        raise refused(name, value, "an object")
    for key in value:
        if key not in parts:
            field = name.split("[", maxsplit=1)[0]
            raise InvalidParameterError(f"unknown field '{name}.{key[:60]}'; known are {', '.join(parts)}", param=field)
    return {key: entry for key, entry in value.items() if entry is not None}


def _object(properties: Mapping[str, Any], *, required: tuple[str, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }
