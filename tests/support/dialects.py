"""Writing calls as a model of a dialect would, by the rows of `grammar.dialects`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from support.tiny_tokenizers import byte_level_metadata
from trivium.config.chat_output import ChatOutput, Tool
from trivium.grammar.dialects import DIALECTS, Form
from trivium.grammar.literals import GEMMA, Literals
from trivium.grammar.parameters import Parameters
from trivium.grammar.part_reader import PartReader
from trivium.grammar.parts import OutputPart, join_parts
from trivium.grammar.pieces import Blank, Envelope, Json, Label, Mark, Name, Number, Piece
from trivium.tokens.gguf_vocab import build_tokenizer
from trivium.tokens.tokenizer import Tokenizer

TEXT_MARKS = {"<tool_call>", "</tool_call>", "<think>", "</think>", "<function_call>", "functools"}
"""Marks that stay text even where others are tokens."""


@cache
def marked_tokenizer() -> Tokenizer:
    """Return the byte-level one, with every mark that looks like a token as a special one."""
    marks = {mark for dialect in DIALECTS.values() for mark in dialect.marks()}
    named = sorted(mark for mark in marks - TEXT_MARKS if re.fullmatch(r"<[^ =\"]+>|\[[A-Z/_]{3,}\]", mark))
    plain = byte_level_metadata()
    tokens, kinds = plain["tokenizer.ggml.tokens"], plain["tokenizer.ggml.token_type"]
    return build_tokenizer(byte_level_metadata(tokens=tokens + named, token_type=kinds + [3] * len(named)))


class Call(NamedTuple):
    """A tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


def written(form: Form, calls: Sequence[Call]) -> str:
    """Return the text of these calls, one after the other."""
    if not form.is_section:
        return "\n".join(_call(form.call, call, index) for index, call in enumerate(calls))
    between = _call(form.between, calls[0], 0)
    inner = between.join(_call(form.call, call, index) for index, call in enumerate(calls))
    return _call(form.begin, calls[0], 0) + inner + _call(form.end, calls[0], 0)


def _call(pieces: Sequence[Piece], call: Call, index: int) -> str:
    return "".join(_piece(piece, call, index) for piece in pieces)


def _piece(piece: Piece, call: Call, index: int) -> str:
    if isinstance(piece, Literals):
        texts = [f"{key}{piece.equals}{literal(piece, value)}" for key, value in call.arguments.items()]
        return ", ".join(texts) + piece.closer
    if isinstance(piece, Parameters):
        return "".join(_parameter(piece, key, value) for key, value in call.arguments.items())
    if isinstance(piece, Envelope):
        return json.dumps({piece.name_key: call.name, piece.arguments_key: call.arguments})
    if isinstance(piece, (Mark, Blank)):
        return piece.text
    if isinstance(piece, Label):
        return f"{piece.mark}{index:09}" if index % 2 else ""
    return {Name: call.name, Number: str(index), Json: json.dumps(call.arguments)}[type(piece)]


def _parameter(piece: Parameters, key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    line = "\n" if piece.frames_with_lines else ""
    kind = f"{piece.kind_mark}{str(isinstance(value, str)).lower()}" if piece.kind_mark else ""
    return f"{piece.key_begin}{key}{kind}{piece.key_end}{piece.value_begin}{line}{text}{line}{piece.value_end}\n"


def literal(piece: Literals, value: Any) -> str:
    """Return a value in a language's notation."""
    if piece is not GEMMA:
        return repr(value)
    if isinstance(value, str):
        return f"<escape>{value}<escape>"
    if isinstance(value, list):
        return "[" + ",".join(literal(piece, each) for each in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{literal(piece, each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def read(wanted: ChatOutput, pieces: Sequence[str], *, content_is_bound: bool = False) -> list[OutputPart]:
    """Read a text that comes in pieces, to its end."""
    reader = PartReader(wanted, content_is_bound=content_is_bound)
    state, parts = reader.start, list[OutputPart]()
    for piece in pieces:
        state, news = reader.read(state, piece)
        parts += news
    return join_parts([*parts, *reader.finish(state)])


def calls_of(parts: Sequence[OutputPart]) -> list[Call]:
    """Return the calls among parts; arguments that are no JSON object are an error."""
    names = {part.call: part.text for part in parts if part.kind == "tool_name"}
    texts = dict.fromkeys(names, "")
    for part in parts:
        if part.kind == "tool_arguments":
            texts[part.call] += part.text
    return [Call(name, json.loads(texts[index])) for index, name in names.items()]


def text_of(parts: Sequence[OutputPart], kind: str = "content") -> str:
    """Return the text of one kind."""
    return "".join(part.text for part in parts if part.kind == kind)


def tools(*names: str, **properties: Any) -> tuple[Tool, ...]:
    """Return tools of these names that all take the same arguments."""
    schema = {"type": "object", "properties": properties}
    return tuple(Tool(name=name, parameters=schema) for name in names)
