"""Reads what `program.printer` writes.

The parser takes values and nodes as they come and leaves names, types and limits to the codec: a text is read into the
same objects as JSON, so both are held to the same rules.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from trivium.base.errors import InvalidParameterError
from trivium.program import limits
from trivium.program.codec import VERSION, from_document
from trivium.program.nodes import NODES, Kind, Program, parts
from trivium.program.printer import BLOCKS, PLACES, SPREAD

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+|//[^\n]*)
    |(?P<end>\n)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)
    |(?P<word>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>==|!=|<=|>=|[-+@$\#.,:=<>(){}\[\]])""",
    re.VERBOSE,
)
_LITERALS = {"null": None, "true": True, "false": False}
_OPERATORS = ("==", "!=", "<", "<=", ">", ">=", "contains", "and", "or")


class _Token(NamedTuple):
    kind: str
    text: str
    line: int


def parse(text: str) -> Program:
    """Read a program and verify it.

    Raises:
        InvalidParameterError: It is no program; the message says in which line, or at which node.
    """
    if len(text.encode("utf-8", "surrogatepass")) > limits.MAX_BYTES:
        raise InvalidParameterError(f"the program is longer than {limits.MAX_BYTES} bytes", param="program")
    return from_document(_Parser(_tokens(text)).program())


def _tokens(text: str) -> list[_Token]:
    found, at, line = [], 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse(line, f"{text[at]!r} is not expected")
        kind, written = str(match.lastgroup), match.group()
        if kind != "space":
            found.append(_Token(kind, written, line))
        line += written.count("\n")
        at = match.end()
    return [*found, _Token("end", "", line), _Token("stop", "the end", line)]


class _Parser:
    """One pass over the tokens, into the objects of the codec."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def program(self) -> dict[str, Any]:
        self._skip_ends()
        self._word("program")
        document: dict[str, Any] = {"version": VERSION, "name": self._name()}
        document["params"] = self._listed("(", ")", self._param)
        document["body"] = self._body()
        if self._result is not _NOTHING:
            document["result"] = self._result
        self._skip_ends()
        if self._now.kind != "stop":
            _refuse(self._now.line, f"{self._now.text!r} follows the program")
        return document

    # -- nodes

    def _body(self, *, is_outermost: bool = True) -> list[Any]:
        self._enter()
        self._mark("{")
        if is_outermost:
            self._result: Any = _NOTHING
        found: list[Any] = []
        while True:
            self._skip_ends()
            if self._take("}"):
                break
            if is_outermost and self._now.text == "return":
                self._at += 1
                self._result = self._value()
                self._skip_ends()
                self._mark("}")
                break
            found.append(self._node())
        self._depth -= 1
        return found

    def _node(self) -> dict[str, Any]:
        token = self._next()
        if token.kind != "word" or token.text not in NODES:
            _refuse(token.line, f"{token.text!r} is no node; nodes are {', '.join(NODES)}")
        kinds = {each.name: kind for each, kind in parts(NODES[token.text])}
        node: dict[str, Any] = {"kind": token.text}
        for name in PLACES[token.text]:
            if kinds[name] is Kind.NAME_OR_NONE and not self._is_name():
                continue
            if kinds[name] is Kind.WORD and self._now.kind == "end":
                continue
            if name == "value":
                self._mark("=")
            node[name] = self._value() if kinds[name] is Kind.VALUE else self._name()
        while self._now.kind == "word":
            self._field(node, kinds)
        blocks = [name for name, kind in kinds.items() if kind in BLOCKS]
        if blocks:
            node[blocks[0]] = self._block(kinds[blocks[0]])
        if len(blocks) > 1 and self._now.text == "else":
            self._at += 1
            node[blocks[1]] = self._body(is_outermost=False)
        if self._now.kind != "end" and self._now.text != "}":
            _refuse(self._now.line, f"{self._now.text!r} is not expected behind {token.text}")
        return node

    def _field(self, node: dict[str, Any], kinds: dict[str, Kind]) -> None:
        key = self._next()
        self._mark("=")
        kind = kinds.get(key.text)
        is_name = kind in {Kind.NAME, Kind.WORD} and self._now.kind == "word"
        value = self._name() if is_name else self._value()
        if kind is Kind.VALUES and isinstance(value, dict):
            value = value.get("$literal", value)
        held = node if kind is not None or SPREAD not in kinds else node.setdefault(SPREAD, {})
        if key.text in held:
            _refuse(key.line, f"{key.text} is given twice")
        held[key.text] = value

    def _block(self, kind: Kind) -> list[Any]:
        if kind is Kind.BODY:
            return self._body(is_outermost=False)
        self._mark("{")
        found: list[Any] = []
        while True:
            self._skip_ends()
            if self._take("}"):
                return found
            if kind is Kind.BODIES:
                self._word("branch")
                found.append(self._body(is_outermost=False))
            else:
                self._word("case")
                values = [self._value()]
                while self._take(","):
                    values.append(self._value())
                found.append({"values": values, "body": self._body(is_outermost=False)})

    def _param(self) -> dict[str, Any]:
        name = self._name()
        return {"name": name, "default": self._value()} if self._take("=") else {"name": name}

    # -- values

    def _value(self) -> Any:
        self._enter()
        pieces = [self._piece()]
        while self._take("+"):
            pieces.append(self._piece())
        self._depth -= 1
        return pieces[0] if len(pieces) == 1 else {"$text": pieces}

    def _piece(self) -> Any:
        token = self._next()
        if token.kind == "string":
            return _json(token)
        if token.kind == "number":
            return _json(token)
        if token.text in _LITERALS and token.kind == "word":
            return _LITERALS[token.text]
        readers: dict[str, Callable[[], Any]] = {
            "@": self._argument, "$": self._variable, "(": self._operation, "[": self._list, "{": self._object,
        }  # fmt: skip
        if token.kind != "mark" or token.text not in readers:
            _refuse(token.line, f"{token.text.strip() or 'the line ends'!r} where a value is expected")
        return readers[token.text]()

    def _argument(self) -> dict[str, Any]:
        return {"$arg": self._name()} | self._path()

    def _variable(self) -> dict[str, Any]:
        name = self._name()
        found: dict[str, Any] = {}
        if self._take("#"):
            found["branch"] = [name, _json(self._next())]
            self._mark(".")
            name = self._name()
        found["$var"] = name
        if self._take("."):
            self._word("parsed")
            found["parsed"] = True
        return found | self._path()

    def _path(self) -> dict[str, Any]:
        steps = []
        while self._take("["):
            steps.append(_json(self._next()))
            self._mark("]")
        return {"path": steps} if steps else {}

    def _operation(self) -> dict[str, Any]:
        if self._now.text == "not":
            self._at += 1
            found = {"$op": "not", "of": [self._value()]}
            self._mark(")")
            return found
        operands = [self._value()]
        name = self._next()
        if name.text not in _OPERATORS:
            _refuse(name.line, f"{name.text!r} where one of {', '.join(_OPERATORS)} is expected")
        operands.append(self._value())
        while self._take(name.text):
            operands.append(self._value())
        self._mark(")")
        return {"$op": name.text, "of": operands}

    def _list(self) -> list[Any]:
        self._at -= 1
        return self._listed("[", "]", self._value)

    def _object(self) -> dict[str, Any]:
        self._at -= 1
        line = self._now.line
        pairs = self._listed("{", "}", self._pair)
        found = dict(pairs)
        if len(found) != len(pairs):
            _refuse(line, "an object has a key twice")
        return {"$literal": found}

    def _pair(self) -> tuple[str, Any]:
        key = self._next()
        if key.kind != "string":
            _refuse(key.line, f"{key.text!r} where a key in quotes is expected")
        self._mark(":")
        return str(_json(key)), self._value()

    # -- tokens

    @property
    def _now(self) -> _Token:
        return self._tokens[self._at]

    def _next(self) -> _Token:
        token = self._now
        if token.kind == "stop":
            _refuse(token.line, "the text ends too early")
        self._at += 1
        return token

    def _take(self, mark: str) -> bool:
        is_there = self._now.text == mark and self._now.kind in {"mark", "word"}
        self._at += is_there
        return is_there

    def _mark(self, mark: str) -> None:
        if not self._take(mark):
            _refuse(self._now.line, f"{self._now.text.strip() or 'the line ends'!r} where {mark!r} is expected")

    _word = _mark

    def _is_name(self) -> bool:
        following = self._tokens[self._at + 1]
        return self._now.kind in {"word", "string"} and following.text != "="

    def _name(self) -> str:
        token = self._next()
        if token.kind not in {"word", "string"}:
            _refuse(token.line, f"{token.text.strip() or 'the line ends'!r} where a name is expected")
        return str(_json(token)) if token.kind == "string" else token.text

    def _listed(self, begin: str, end: str, one: Callable[[], Any]) -> list[Any]:
        self._mark(begin)
        found: list[Any] = []
        while not self._take(end):
            if found:
                self._mark(",")
            found.append(one())
        return found

    def _skip_ends(self) -> None:
        while self._now.kind == "end":
            self._at += 1

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > limits.MAX_DEPTH + limits.MAX_VALUE_DEPTH + 2:
            _refuse(self._now.line, f"it is nested more than {self._depth - 1} deep")


_NOTHING = object()


def _json(token: _Token) -> Any:
    try:
        return json.loads(token.text)
    except ValueError as error:
        _refuse(token.line, f"{token.text:.40} cannot be read: {error}")


def _refuse(line: int, message: str) -> NoReturn:
    raise InvalidParameterError(f"line {line}: {message}", param="program")
