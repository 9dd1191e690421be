"""What the text of an answer may be: one constraint, spelled as vLLM's `StructuredOutputsParams` spells it."""

from __future__ import annotations

import json as json_library
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trivium.base.errors import InvalidParameterError
from trivium.config.structural_tag import format_of

MAX_BYTES = 1 << 18
"""Most bytes of a schema, grammar or regular expression."""
MAX_CHOICES = 4096
MAX_CHOICE_BYTES = 1 << 14
MAX_DEPTH = 64
"""Deepest nesting of a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputs:
    """A constraint on the text of an answer; exactly one field says what it is."""

    json: str | Mapping[str, Any] | bool | None = None
    """JSON Schema that the answer satisfies: a document, or its text. Keywords that cannot be enforced are refused."""
    json_object: bool = False
    """Whether the answer is any JSON object."""
    regex: str | None = None
    """Regular expression that the whole answer matches."""
    choice: tuple[str, ...] | None = None
    """Texts of which the answer is one."""
    grammar: str | None = None
    """Context-free grammar in Lark's or llama.cpp's (GBNF) notation; the answer is a sentence of `start` or `root`."""
    structural_tag: str | Mapping[str, Any] | None = None
    """Free text with constrained spans, as vLLM and SGLang spell it: a structural tag, or its text."""
    any_whitespace: bool = False
    """Whether JSON may have spaces and line breaks between its parts, instead of none."""

    def validate(self) -> None:
        """Check every field against its limits.

        Raises:
            InvalidParameterError: No field, or more than one, says what the constraint is; or one of them is of a wrong
                type or outside its limits.
        """
        if len(self._named) != 1:
            found = ", ".join(self._named) or "none"
            raise _bad("structured_outputs", found, f"exactly one of {', '.join(KINDS)}")
        _CHECKS[self.kind](getattr(self, self.kind))
        if self.any_whitespace and self.kind not in {"json", "json_object"}:
            raise _bad("any_whitespace", True, "left out, since it is of JSON")  # noqa: FBT003

    @property
    def kind(self) -> str:
        """The field that says what the constraint is."""
        return self._named[0]

    @property
    def _named(self) -> list[str]:
        return [name for name in KINDS if getattr(self, name) not in (None, False)]

    @property
    def schema_text(self) -> str:
        """The schema of `json` as text."""
        return self.json if isinstance(self.json, str) else json_library.dumps(self.json, separators=(",", ":"))


KINDS = tuple(each.name for each in fields(StructuredOutputs) if each.name != "any_whitespace")


def _check_json(value: Any) -> None:
    schema = value
    if isinstance(value, str):
        _check_text("json", value)
        try:
            schema = json_library.loads(value)
        except (ValueError, RecursionError) as error:
            raise _bad("json", _short(value), f"a JSON Schema ({error})") from None
    check_schema("json", schema)


def check_schema(name: str, schema: Any, *, param: str | None = None) -> None:
    """Check the kind, depth and size of a JSON Schema; what it means is checked where it is compiled.

    Args:
        name: What it is called in a message.
        schema: The document.
        param: Field of the request that it came in, if it isn't called the same.

    Raises:
        InvalidParameterError: It is no object and no truth value, or too deep or too long.
    """
    if not isinstance(schema, (Mapping, bool)):
        raise _bad(name, _short(schema), "a JSON Schema, which is an object, true or false", param)
    if _is_surely_too_long(schema):  # found out without writing it: megabytes would hold up the streams of others
        raise _bad(name, f"a text of more than {MAX_BYTES} bytes", f"at most {MAX_BYTES} bytes", param)
    if _depth_of(schema) > MAX_DEPTH:
        raise _bad(name, "a schema nested more deeply", f"nested at most {MAX_DEPTH} deep", param)
    try:
        text = json_library.dumps(schema)
    except (TypeError, ValueError) as error:
        raise _bad(name, _short(schema), f"a JSON Schema ({error})", param) from None
    _check_text(name, text, param)


def _check_structural_tag(value: Any) -> None:
    if isinstance(value, str):
        _check_text("structural_tag", value)
    elif not isinstance(value, Mapping):
        raise _bad("structural_tag", _short(value), "a structural tag, which is an object, or its text")
    if _depth_of(value) > MAX_DEPTH:
        raise _bad("structural_tag", "nested more deeply", f"nested at most {MAX_DEPTH} deep")
    root = format_of(value)
    if _depth_of(root) > MAX_DEPTH:
        raise _bad("structural_tag", "nested more deeply", f"nested at most {MAX_DEPTH} deep")
    _check_text("structural_tag", json_library.dumps(root))


def _is_surely_too_long(value: Any) -> bool:
    """Return whether a document has more letters than `MAX_BYTES`, of which it looks at no more."""
    left, open_values = MAX_BYTES, [value]
    while open_values and left >= 0:
        each = open_values.pop()
        left -= 2  # a value has a letter, and something behind it
        if isinstance(each, str):
            left -= len(each)
        elif isinstance(each, Mapping):
            left -= sum(len(name) + 3 for name in each if isinstance(name, str))
            open_values.extend(each.values())
        elif isinstance(each, (list, tuple)):
            open_values.extend(each)
    return left < 0


def _depth_of(value: Any) -> int:
    """Return how deeply a document is nested, without recursion; a little more than `MAX_DEPTH` at most."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH:
        depth += 1
        level = [
            child
            for each in level
            if isinstance(each, (Mapping, list, tuple))
            for child in (each.values() if isinstance(each, Mapping) else each)
        ]
    return depth


def _check_choice(value: Any) -> None:
    if not isinstance(value, (tuple, list)) or not all(isinstance(each, str) and each for each in value):
        raise _bad("choice", _short(value), "a list of texts that are not empty")
    if not 1 <= len(value) <= MAX_CHOICES:
        raise _bad("choice", f"{len(value)} texts", f"1 to {MAX_CHOICES} texts")
    longest = max(len(each.encode()) for each in value)
    if longest > MAX_CHOICE_BYTES:
        raise _bad("choice", f"a text of {longest} bytes", f"at most {MAX_CHOICE_BYTES} bytes each")


def _check_text(name: str, value: Any, param: str | None = None) -> None:
    if not isinstance(value, str) or not value.strip():
        raise _bad(name, _short(value), "a text that is not empty", param)
    size = len(value.encode("utf-8", "replace"))
    if size > MAX_BYTES:
        raise _bad(name, f"a text of {size} bytes", f"at most {MAX_BYTES} bytes", param)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _bad(name, value, "true or false")


_CHECKS: Mapping[str, Any] = {
    "json": _check_json,
    "json_object": lambda value: _check_flag("json_object", value),
    "regex": lambda value: _check_text("regex", value),
    "choice": _check_choice,
    "grammar": lambda value: _check_text("grammar", value),
    "structural_tag": _check_structural_tag,
}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."  # noqa: PLR2004


def _bad(name: str, value: Any, limit: str, param: str | None = None) -> InvalidParameterError:
    return InvalidParameterError(f"{name} is {value!r}; it must be {limit}", param=param or name)
