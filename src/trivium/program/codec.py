"""Programs as JSON: what a client sends to a server, and what is stored.

::

    {"version": 1, "name": "capital", "params": [{"name": "country"}],
     "body": [{"kind": "say", "text": {"$text": ["The capital of ", {"$arg": "country"}, " is"]}},
              {"kind": "gen", "name": "city", "options": {"max_tokens": 4, "stop": "."}}]}

A node is an object whose `kind` is a word of `nodes.NODES` and whose other names are its fields; what is left out has
its default. In values, an object with one of the names of `MARKS` is a reference; `{"$literal": ...}` is an object that
only looks like one. Nothing is guessed: unknown names, wrong types and too much of anything are refused by place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, NoReturn

from trivium.base.errors import InvalidParameterError
from trivium.program import limits
from trivium.program.nodes import NODES, WORD_OF, WORDS, Case, Kind, Node, Param, Program, parts
from trivium.program.values import OPERATIONS, Argument, Branch, Operation, Text, Value, Variable, text_of
from trivium.program.verify import verify

VERSION = 1
MARKS = ("$arg", "$var", "$text", "$op", "$literal")
MAX_SHOWN = 60
"""Most characters of what was given that a message repeats."""
_PROGRAM_FIELDS = ("version", "name", "params", "body", "result")


def to_document(program: Program) -> dict[str, Any]:
    """Return a program as JSON's objects."""
    document: dict[str, Any] = {"version": VERSION, "name": program.name}
    if program.params:
        document["params"] = [_param_document(param) for param in program.params]
    document["body"] = _body_document(program.body)
    if program.result is not None:
        document["result"] = _value_document(program.result)
    return document


def to_json(program: Program) -> str:
    """Write a program as JSON."""
    return json.dumps(to_document(program), ensure_ascii=False, separators=(",", ":"))


def from_json(text: str | bytes) -> Program:
    """Read a program from JSON and verify it.

    Raises:
        InvalidParameterError: It is too long, no JSON, or no program; the message says where.
    """
    size = len(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    if size > limits.MAX_BYTES:
        _refuse("program", f"is {size} bytes long; at most {limits.MAX_BYTES} are taken")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidParameterError(f"the program is no JSON: {error}", param="program") from None
    return from_document(document)


def from_document(document: object) -> Program:
    """Read a program from JSON's objects and verify it.

    Raises:
        InvalidParameterError: It is no program; the message says where.
    """
    given = _fields_of(document, "program", _PROGRAM_FIELDS, needed=("version", "name", "body"))
    if given["version"] != VERSION or isinstance(given["version"], bool):
        _refuse("program.version", f"is {_short(given['version'])}; {VERSION} is known")
    listed = _list(given.get("params", []), "params", limits.MAX_PARAMS)
    program = Program(
        name=_name(given["name"], "program.name"),
        params=tuple(_param(each, f"params[{idx}]") for idx, each in enumerate(listed)),
        body=_Reader().body(given["body"], "body", 0),
        result=_value(given.get("result"), "result", 0),
    )
    verify(program)
    return program


# -- writing


def _param_document(param: Param) -> dict[str, Any]:
    return {"name": param.name} | ({} if param.is_required else {"default": _value_document(param.default)})


def _body_document(body: tuple[Node, ...]) -> list[Any]:
    return [_node_document(node) for node in body]


def _node_document(node: Node) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": WORD_OF[type(node)]}
    for each, kind in parts(node):
        held = getattr(node, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if held != default or type(held) is not type(default):
            document[each.name] = _WRITERS[kind](held)
    if node.line is not None:
        document["line"] = node.line
    return document


def _value_document(value: Value) -> Any:  # noqa: PLR0911  (one return per class)
    match value:
        case Argument(name, path):
            return {"$arg": name} | ({"path": list(path)} if path else {})
        case Variable(name, path, branch, is_parsed):
            document: dict[str, Any] = {"$var": name} | ({"path": list(path)} if path else {})
            if branch is not None:
                document["branch"] = list(branch)
            return document | ({"parsed": True} if is_parsed else {})
        case Text(pieces):
            return {"$text": [_value_document(piece) for piece in pieces]}
        case Operation(name, operands):
            return {"$op": name, "of": [_value_document(operand) for operand in operands]}
        case list():
            return [_value_document(each) for each in value]
        case dict():
            written = {key: _value_document(each) for key, each in value.items()}
            return {"$literal": written} if any(mark in written for mark in MARKS) else written
    return value


def _same(value: Any) -> Any:
    return value


_WRITERS: Mapping[Kind, Callable[[Any], Any]] = {
    Kind.NAME: _same,
    Kind.NAME_OR_NONE: _same,
    Kind.WORD: _same,
    Kind.COUNT: _same,
    Kind.SECONDS: _same,
    Kind.VALUE: _value_document,
    Kind.VALUES: lambda held: {name: _value_document(value) for name, value in held.items()},
    Kind.BODY: _body_document,
    Kind.BODIES: lambda held: [_body_document(body) for body in held],
    Kind.CASES: lambda held: [
        {"values": [_value_document(each) for each in case.values], "body": _body_document(case.body)} for case in held
    ],
}


# -- reading


class _Reader:
    """Reads bodies, and counts their nodes."""

    def __init__(self) -> None:
        self._num_nodes = 0

    def body(self, given: object, place: str, depth: int) -> tuple[Node, ...]:
        if depth > limits.MAX_DEPTH:
            _refuse(place, f"is nested {depth} deep; at most {limits.MAX_DEPTH} bodies are")
        listed = _list(given, place, limits.MAX_NODES)
        return tuple(self._node(each, f"{place}[{idx}]", depth) for idx, each in enumerate(listed))

    def _node(self, given: object, place: str, depth: int) -> Node:
        self._num_nodes += 1
        if self._num_nodes > limits.MAX_NODES:
            _refuse(place, f"is one node more than the {limits.MAX_NODES} that a program may have")
        word = given.get("kind") if isinstance(given, dict) else None
        if not isinstance(word, str) or word not in NODES:
            _refuse(place, f"has the kind {_short(word)}; a node is an object whose kind is one of {', '.join(NODES)}")
        node = NODES[word]
        known = {each.name: kind for each, kind in parts(node)}
        needed = [each.name for each in fields(node) if each.default is MISSING and each.default_factory is MISSING]
        named = _fields_of(given, place, ("kind", "line", *known), needed=needed)
        held: dict[str, Any] = {}
        for name, kind in known.items():
            if name in named:
                held[name] = self._held(named[name], kind, name, f"{place}.{name}", depth)
        line = named.get("line")
        return node(**held, line=None if line is None else _string(line, f"{place}.line", 4096))

    def _held(self, given: object, kind: Kind, name: str, place: str, depth: int) -> Any:
        match kind:
            case Kind.BODY:
                return self.body(given, place, depth + 1)
            case Kind.BODIES:
                listed = _list(given, place, limits.MAX_BRANCHES)
                return tuple(self.body(each, f"{place}[{idx}]", depth + 1) for idx, each in enumerate(listed))
            case Kind.CASES:
                listed = _list(given, place, limits.MAX_BRANCHES)
                return tuple(self._case(each, f"{place}[{idx}]", depth) for idx, each in enumerate(listed))
            case Kind.WORD:
                if not isinstance(given, str) or given not in WORDS[name]:
                    _refuse(place, f"is {_short(given)}; it must be one of {', '.join(WORDS[name])}")
                return given
        return _READERS[kind](given, place)

    def _case(self, given: object, place: str, depth: int) -> Case:
        named = _fields_of(given, place, ("values", "body"), needed=("values",))
        listed = _list(named["values"], f"{place}.values", limits.MAX_BRANCHES)
        values = tuple(_value(each, f"{place}.values[{idx}]", 0) for idx, each in enumerate(listed))
        return Case(values=values, body=self.body(named.get("body", []), f"{place}.body", depth + 1))


def _param(given: object, place: str) -> Param:
    named = _fields_of(given, place, ("name", "default"), needed=("name",))
    name = _name(named["name"], f"{place}.name")
    if "default" not in named:
        return Param(name=name)
    return Param(name=name, is_required=False, default=_value(named["default"], f"{place}.default", 0))


def _value(given: object, place: str, depth: int) -> Value:
    if depth > limits.MAX_VALUE_DEPTH:
        _refuse(place, f"is nested {depth} deep; at most {limits.MAX_VALUE_DEPTH} are taken")
    if isinstance(given, list):
        return [_value(each, f"{place}[{idx}]", depth + 1) for idx, each in enumerate(given)]
    if not isinstance(given, dict):
        return given
    mark = next((mark for mark in MARKS if mark in given), None)
    if mark is None:
        return {key: _value(each, f"{place}.{key}", depth + 1) for key, each in given.items()}
    return _MARKED[mark](given, place, depth)


def _argument(given: dict[str, Any], place: str, _: int) -> Argument:
    named = _fields_of(given, place, ("$arg", "path"))
    return Argument(_name(named["$arg"], place), _path(named.get("path", []), place))


def _variable(given: dict[str, Any], place: str, _: int) -> Variable:
    named = _fields_of(given, place, ("$var", "path", "branch", "parsed"))
    branch = None
    if "branch" in named:
        match named["branch"]:
            case [fork, index]:
                branch = Branch(_name(fork, f"{place}.branch[0]"), _index(index, f"{place}.branch[1]"))
            case other:
                _refuse(f"{place}.branch", f"is {_short(other)}; it must be a fork's name and the index of a branch")
    is_parsed = named.get("parsed", False)
    if not isinstance(is_parsed, bool):
        _refuse(f"{place}.parsed", f"is {_short(is_parsed)}; it must be true or false")
    return Variable(_name(named["$var"], place), _path(named.get("path", []), place), branch, is_parsed)


def _text(given: dict[str, Any], place: str, depth: int) -> Value:
    named = _fields_of(given, place, ("$text",))
    pieces = _list(named["$text"], f"{place}.$text", limits.MAX_NODES)
    return text_of(*(_value(piece, f"{place}.$text[{idx}]", depth + 1) for idx, piece in enumerate(pieces)))


def _operation(given: dict[str, Any], place: str, depth: int) -> Operation:
    named = _fields_of(given, place, ("$op", "of"), needed=("of",))
    name = named["$op"]
    if not isinstance(name, str) or name not in OPERATIONS:
        _refuse(f"{place}.$op", f"is {_short(name)}; it must be one of {', '.join(OPERATIONS)}")
    operands = _list(named["of"], f"{place}.of", OPERATIONS[name].most)
    return Operation(name, tuple(_value(each, f"{place}.of[{idx}]", depth + 1) for idx, each in enumerate(operands)))


def _literal(given: dict[str, Any], place: str, depth: int) -> Value:
    held = _fields_of(given, place, ("$literal",))["$literal"]
    if not isinstance(held, dict):
        _refuse(f"{place}.$literal", f"is {_short(held)}; it must be an object")
    return {key: _value(each, f"{place}.$literal.{key}", depth + 1) for key, each in held.items()}


_MARKED: Mapping[str, Callable[[dict[str, Any], str, int], Value]] = {
    "$arg": _argument,
    "$var": _variable,
    "$text": _text,
    "$op": _operation,
    "$literal": _literal,
}


def _values(given: object, place: str) -> dict[str, Value]:
    if not isinstance(given, dict):
        _refuse(place, f"is {_short(given)}; it must be an object of values by name")
    return {_name(name, place): _value(value, f"{place}.{name}", 0) for name, value in given.items()}


def _name(given: object, place: str) -> str:
    text = _string(given, place, limits.MAX_NAME_LEN)
    if not text:
        _refuse(place, "is empty; it must be a name")
    return text


def _string(given: object, place: str, most: int) -> str:
    if not isinstance(given, str) or len(given) > most:
        _refuse(place, f"is {_short(given)}; it must be a text of at most {most} characters")
    return given


def _count(given: object, place: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= limits.MAX_STEPS:
        _refuse(place, f"is {_short(given)}; it must be a whole number from 1 to {limits.MAX_STEPS}")
    return given


def _index(given: object, place: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < limits.MAX_BRANCHES:
        _refuse(place, f"is {_short(given)}; it must be a whole number from 0 to {limits.MAX_BRANCHES - 1}")
    return given


def _seconds(given: object, place: str) -> float | None:
    if given is not None and (not isinstance(given, int | float) or isinstance(given, bool) or not given > 0):
        _refuse(place, f"is {_short(given)}; it must be a number of seconds above 0")
    return given


def _path(given: object, place: str) -> tuple[str | int, ...]:
    steps = _list(given, f"{place}.path", limits.MAX_PATH_LEN)
    for idx, step in enumerate(steps):
        if isinstance(step, bool) or not isinstance(step, str | int):
            _refuse(f"{place}.path[{idx}]", f"is {_short(step)}; it must be a key or an index")
    return tuple(steps)


def _list(given: object, place: str, most: int) -> list[Any]:
    if not isinstance(given, list) or len(given) > most:
        found = f"a list of {len(given)}" if isinstance(given, list) else _short(given)
        _refuse(place, f"is {found}; it must be a list of at most {most}")
    return given


def _fields_of(given: object, place: str, known: Sequence[str], needed: Sequence[str] = ()) -> dict[str, Any]:
    if not isinstance(given, dict):
        _refuse(place, f"is {_short(given)}; it must be an object")
    for name in given:
        if name not in known:
            _refuse(place, f"has {_short(name)}, which is not known; known are {', '.join(known)}")
    for name in needed:
        if name not in given:
            _refuse(place, f"has no {name}")
    return given


_READERS: Mapping[Kind, Callable[[Any, str], Any]] = {
    Kind.NAME: _name,
    Kind.NAME_OR_NONE: lambda given, place: None if given is None else _name(given, place),
    Kind.VALUE: lambda given, place: _value(given, place, 0),
    Kind.VALUES: _values,
    Kind.COUNT: _count,
    Kind.SECONDS: _seconds,
}


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"an object has {_short(twice)} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _short(given: object) -> str:
    try:
        text = json.dumps(given, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = type(given).__name__
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _refuse(place: str, message: str) -> NoReturn:
    raise InvalidParameterError(f"{place} {message}", param=place)
