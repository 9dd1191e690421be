"""`ArgumentGrammar`: a tool's arguments as rules, in whichever encoding a dialect writes them.

As JSON its schema is enforced whole. Between marks and as literals only some keywords can be, which tables here list;
a strict tool that asks for another is refused by the keyword's name, any other tool is held to its types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from trivium.base.errors import InvalidParameterError
from trivium.config.chat_output import Tool
from trivium.grammar.lark import Rules, literal
from trivium.grammar.literals import GEMMA, Literals
from trivium.grammar.parameters import Parameters, types_of
from trivium.grammar.pieces import NAME_LETTERS, Envelope, Json, Piece
from trivium.grammar.schemas import library_schema

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_SPACED: Mapping[str, Any] = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON as models have seen it written."""
_NOTES = frozenset({"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"})
_OF_OBJECTS = _NOTES | {
    "type",
    "properties",
    "required",
    "additionalProperties",
    "$defs",
    "definitions",
    "$schema",
    "$id",
}
_OF_TEXTS = _NOTES | {"type", "enum", "const"}
_OF_UNIONS = _NOTES | {"type"}
_TEXT_ALONE = frozenset({"string"})
_SCALARS = ("number", "integer", "boolean", "null")
_LITERAL_KINDS = ("string", *_SCALARS, "array", "object")


class _Argument(NamedTuple):
    name: str
    schema: Any
    is_required: bool


class ArgumentGrammar:
    """Writes rules for arguments."""

    def __init__(self, rules: Rules) -> None:
        """Add to these rules."""
        self._rules = rules

    def write(self, piece: Piece, tool: Tool) -> str:
        """Return what reads a tool's arguments as this piece does.

        Raises:
            InvalidParameterError: The tool is strict, and its schema asks for what cannot be enforced.
        """
        if isinstance(piece, Json):
            return self.write_json(tool)
        if isinstance(piece, Envelope):
            head = json.dumps({piece.name_key: tool.name})[:-1]
            opened = self._rules.written(f'{head}, "{piece.arguments_key}": ')
            return f'{opened} {self.write_json(tool)} "}}"'
        if isinstance(piece, Parameters):
            return self._between_marks(piece, tool)
        if isinstance(piece, Literals):
            return self._as_literals(piece, tool)
        raise TypeError(piece)

    def write_json(self, tool: Tool) -> str:
        """Return what reads a tool's arguments as a JSON object."""
        schema = _NO_ARGUMENTS if tool.parameters is None else {"type": "object", **tool.parameters}
        return self._json(schema, tool, {"type": "object"})

    def _json(self, schema: Any, tool: Tool, otherwise: Mapping[str, Any]) -> str:
        """Return what reads JSON of a schema, or, where it can't be enforced and need not be, of another."""
        try:
            enforced = library_schema(schema)
        except InvalidParameterError as error:
            if tool.strict:
                raise _refused(tool, str(error)) from None
            enforced = dict(otherwise)
        return self._rules.named("json", f"%json {json.dumps({**enforced, 'x-guidance': _SPACED})}")

    # ── between marks ─────────────────────────────────────────────────────────────────────────

    def _between_marks(self, piece: Parameters, tool: Tool) -> str:
        types = types_of(tool.parameters)
        written = []
        for name, schema, is_required in _arguments_of(tool, _OF_OBJECTS):
            if piece.key_end in name or "\n" in name:
                raise _refused(tool, f"the name '{name}' cannot be written in this dialect")
            line = "\n" if piece.frames_with_lines else ""
            known = types.get(name)
            is_text = "true" if known is None or "string" in known else "false"
            key = f"{name}{piece.kind_mark}{is_text}" if piece.kind_mark else name
            begin = self._rules.written(f"{piece.key_begin}{key}{piece.key_end}{piece.value_begin}{line}")
            value = self._value_between_marks(piece, tool, _Argument(name, schema, is_required), known)
            one = self._rules.named("parameter", f'{begin} {value} "\\n"')
            written.append(one if is_required else f"{one}?")
        return self._rules.joined(*written)

    def _value_between_marks(
        self, piece: Parameters, tool: Tool, argument: _Argument, types: frozenset[str] | None
    ) -> str:
        line = "\n" if piece.frames_with_lines else ""
        end = self._rules.written(line + piece.value_end)
        schema = argument.schema if isinstance(argument.schema, Mapping) else {}
        if types is not None and "string" not in types:
            json_rule = self._json(_with_definitions(schema, tool), tool, {"type": sorted(types)})
            return f"{json_rule} {end}"
        is_text = types == _TEXT_ALONE
        _check_keywords(tool, argument.name, schema, _OF_TEXTS if is_text else _OF_UNIONS)
        texts = _texts_of(schema) if is_text else ()
        if texts and not any(piece.value_end in text for text in texts):
            return f"({' | '.join(map(_quoted, texts))}) {end}"
        if self._rules.is_special(piece.value_end):
            return f"ANY {end}"
        return self._rules.until(line + piece.value_end, others=[piece.value_end] if line else [])

    # ── literals ──────────────────────────────────────────────────────────────────────────────

    def _as_literals(self, piece: Literals, tool: Tool) -> str:
        arguments = _arguments_of(tool, _OF_OBJECTS)
        return f"{self._members(piece, tool, arguments, piece.equals)} {literal(piece.closer)}"

    def _members(self, piece: Literals, tool: Tool, members: Sequence[_Argument], equals: str) -> str:
        """Return what reads some of the members, in their order, with commas between them.

        ::

            first0: m0 rest1 | first1      (m0 may be left out)     rest1: ("," m1)? rest2
        """
        comma = literal("," if piece is GEMMA else ", ")
        written = []
        for name, schema, _ in members:
            if not NAME_LETTERS.issuperset(name) or not name:
                raise _refused(tool, f"the name '{name}' cannot be written in this dialect")
            value = self._literal(piece, tool, name, schema)
            written.append(self._rules.named("member", f"{literal(name + equals)} {value}"))
        rest, first = "", ""
        for each, one in zip(reversed(members), reversed(written), strict=True):
            head = self._rules.joined(one, rest)
            first = head if each.is_required else f"({head} | {first})" if first else f"({head})?"
            tail = f"({comma} {one})" + ("" if each.is_required else "?")
            rest = self._rules.named("rest", self._rules.joined(tail, rest))
            first = self._rules.named("first", first)
        return first

    def _literal(self, piece: Literals, tool: Tool, name: str, schema: Any) -> str:
        if piece is not GEMMA:
            return self._json(_with_definitions(schema, tool), tool, {})
        schema = schema if isinstance(schema, Mapping) else {}
        kinds = schema.get("type", _LITERAL_KINDS if not schema.keys() - _NOTES else None)
        if kinds is None and ("enum" in schema or "const" in schema):
            kinds = ["string"] if _texts_of(schema) else _SCALARS
        if kinds is None:
            raise _refused(tool, f"'{name}' has no type, which this dialect needs")
        ways = [
            self._of_kind(piece, tool, name, schema, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)
        ]
        return f"({' | '.join(ways)})"

    def _of_kind(self, piece: Literals, tool: Tool, name: str, schema: Mapping[str, Any], kind: str) -> str:
        if kind in _SCALARS:
            return self._json({**schema, "type": kind}, tool, {"type": kind})
        if kind == "string":
            _check_keywords(tool, name, schema, _OF_TEXTS)
            quote = self._rules.written(piece.quotes[0])
            texts = _texts_of(schema)
            if texts:
                return f"{quote} ({' | '.join(map(_quoted, texts))}) {quote}"
            return f"{quote} {self._rules.until(piece.quotes[0])}"
        if kind == "array":
            _check_keywords(tool, name, schema, _OF_UNIONS | {"items"})
            if "items" not in schema:
                raise _refused(tool, f"'{name}' is an array without items, which this dialect needs")
            item = self._rules.named("item", self._literal(piece, tool, name, schema["items"]))
            return f'"[" ({item} ("," {item})*)? "]"'
        _check_keywords(tool, name, schema, _OF_OBJECTS)
        members = _members_of(schema)
        return f'"{{" {self._members(piece, tool, members, ":")} "}}"'


def _arguments_of(tool: Tool, keywords: frozenset[str]) -> list[_Argument]:
    parameters = tool.parameters or {}
    _check_keywords(tool, "parameters", parameters, keywords)
    arguments = _members_of(parameters)
    missing = set(parameters.get("required", ())) - {each.name for each in arguments}
    if missing and tool.strict:
        raise _refused(tool, f"it requires '{min(missing)}', which its properties lack")
    return arguments


def _members_of(schema: Mapping[str, Any]) -> list[_Argument]:
    required = schema.get("required", ())
    return [_Argument(name, each, name in required) for name, each in schema.get("properties", {}).items()]


def _check_keywords(tool: Tool, name: str, schema: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse what a strict tool asks for and this encoding cannot enforce."""
    unknown = sorted(schema.keys() - known)
    if tool.strict and unknown:
        raise _refused(tool, f"'{unknown[0]}' of '{name}' has no equal in how this dialect writes arguments")


def _texts_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return tuple(value for value in values if isinstance(value, str))


def _quoted(text: str) -> str:
    return literal(text) or '""'


def _with_definitions(schema: Any, tool: Tool) -> Any:
    """Return an argument's schema with what it may refer to."""
    if not isinstance(schema, Mapping):
        return schema
    parameters = tool.parameters or {}
    return {**{key: parameters[key] for key in ("$defs", "definitions") if key in parameters}, **schema}


def _refused(tool: Tool, reason: str) -> InvalidParameterError:
    message = f"the parameters of tool '{tool.name}' cannot be enforced: {reason}"
    return InvalidParameterError(
        f"{message}. Leave strict out, or change them" if tool.strict else message, param="tools"
    )
