"""Constraints that are meant to cost as much as they can: exponents, nestings, repetitions, long forced texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema, "b": schema}, "additionalProperties": False}
    return schema


_CHAIN = {f"d{idx}": {"anyOf": [{"$ref": f"#/$defs/d{idx + 1}"}] * 2} for idx in range(24)}

REGEXES: Mapping[str, str] = {
    "nested stars": "((a*)*)*b",
    "nested pluses": "(((((x+)+)+)+)+)+y",
    "counted letters": "a{1,100000}",
    "counted groups": "((ab?){1,1000}){1,1000}",
    "product of counts": "(((a{1,99}){1,99}){1,99}){1,99}",
    "forced text": "x{60000}",
    "far choice": "(a|b)*a(a|b){60}",
    "farther choice": "[ab]*a[ab]{18}c",
    "many options": "|".join(f"option{idx}[a-z]*{idx}" for idx in range(2000)),
    "deep groups": "(" * 900 + "a" + ")" * 900,
    "letters of all scripts": r"(\w\W\w\W){1,400}",
    "optional letters": "a?" * 3000 + "a" * 3000,
}
SCHEMAS: Mapping[str, Any] = {
    "doubling": _nested(15),
    "chain of references": {"$defs": {**_CHAIN, "d24": {"type": "null"}}, "$ref": "#/$defs/d0"},
    "long text": {"type": "string", "minLength": 50_000},
    "hostile pattern": {"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"},
    "many names": {"type": "object", "properties": {f"name{idx}": {"type": "integer"} for idx in range(4000)}},
    "many values": {"enum": [f"value {idx} of very many" for idx in range(8000)]},
    "counted items": {"type": "array", "items": {"type": "string"}, "minItems": 20_000},
    "meeting patterns": {"allOf": [{"type": "string", "pattern": f"^(.{{{idx},}}[a-z])*$"} for idx in range(2, 14)]},
}
FIELDS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"regex": regex} for name, regex in REGEXES.items()},
    **{name: {"json": schema} for name, schema in SCHEMAS.items()},
}
"""Twenty, as values of `structured_outputs`."""
