"""Read the text that `ir.printer` writes: `parse(to_text(graph)) == graph`.

The grammar is one line per declaration. Attribute values are Python literals, read as syntax and never evaluated.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from trivium.base.errors import InternalError
from trivium.config.model import RopeConfig
from trivium.ir.graph import OPERAND_KINDS, Attribute, Dim, DType, Graph, Node, TensorType, Value
from trivium.ir.ops import OPS
from trivium.ir.printer import ABSENT

_NODE = re.compile(r"^(?P<names>[^:]+): (?P<types>.+?) = (?P<op>\w+)\((?P<inputs>[^;)]*)(?:; (?P<attributes>.*))?\)$")
_DTYPES: dict[str, DType] = {"f32": "f32", "i32": "i32", **{kind: kind for kind in OPERAND_KINDS}}
_TYPE = re.compile(rf"(?P<kv>kv)|(?P<dtype>{'|'.join(_DTYPES)})\[(?P<dims>[^\]]*)\]")


def parse(text: str) -> Graph:
    """Read a graph; it is not verified.

    Raises:
        InternalError: A line is not understood; the message holds its number and text.
    """
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            reader.read(line.strip())
        except (ValueError, SyntaxError, TypeError, InternalError) as error:
            raise InternalError(f"line {number} is no graph text ({error}): {line.strip()}") from error
    return reader.graph()


class _Reader:
    """Collects what the lines declare."""

    def __init__(self) -> None:
        self._name = ""
        self._inputs: list[Value] = []
        self._params: list[Value] = []
        self._nodes: list[Node] = []
        self._outputs: dict[str, str] = {}
        self._declarations: dict[str, Callable[[str], None]] = {
            "graph": self._read_name,
            "input": lambda rest: self._inputs.append(_value(rest)),
            "param": lambda rest: self._params.append(_value(rest)),
            "output": self._read_output,
        }

    def read(self, line: str) -> None:
        keyword, _, rest = line.partition(" ")
        declare = self._declarations.get(keyword)
        if declare is None:
            self._nodes.append(_node(line))
        else:
            declare(rest)

    def graph(self) -> Graph:
        return Graph(self._name, tuple(self._inputs), tuple(self._params), tuple(self._nodes), self._outputs)

    def _read_name(self, rest: str) -> None:
        self._name = rest

    def _read_output(self, rest: str) -> None:
        name, equals, value_name = rest.partition(" = ")
        if not equals:
            raise ValueError("expected NAME = VALUE")
        self._outputs[name] = value_name


def _value(text: str) -> Value:
    name, colon, type_text = text.partition(": ")
    types = _types(type_text) if colon else []
    if len(types) != 1:
        raise ValueError("expected NAME: TYPE")
    return Value(name, types[0])


def _types(text: str) -> list[TensorType]:
    found: list[TensorType] = []
    end = 0
    for match in _TYPE.finditer(text):
        if text[end : match.start()] != (", " if found else ""):
            break
        dims = (match["dims"] or "").split(",") if match["dims"] else []
        shape: tuple[Dim, ...] = tuple(int(dim) if dim.isdigit() else dim for dim in dims)
        found.append(TensorType("kv") if match["kv"] else TensorType(_DTYPES[match["dtype"]], shape))
        end = match.end()
    if end != len(text) or not found:
        raise ValueError(f"expected types, found {text!r}")
    return found


def _node(line: str) -> Node:
    match = _NODE.match(line)
    if match is None:
        raise ValueError("expected NAMES: TYPES = OP(OPERANDS; ATTRIBUTES)")
    op, names, types = match["op"], match["names"].split(", "), _types(match["types"])
    inputs = [None if name == ABSENT else name for name in match["inputs"].split(", ") if name]
    # The printer leaves absent operands at the end unwritten.
    missing = len(OPS[op].inputs) - len(inputs) if op in OPS else 0
    inputs += [None] * missing
    outputs = tuple(Value(name, each) for name, each in zip(names, types, strict=True))
    return Node(op, tuple(inputs), _attributes(match["attributes"]), outputs)


def _attributes(text: str | None) -> dict[str, Attribute]:
    if not text:
        return {}
    call = ast.parse(f"node({text})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("attributes must be NAME=VALUE")
    return {keyword.arg or "": _attribute(keyword.value) for keyword in call.keywords}


def _attribute(tree: ast.expr) -> Attribute:
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "rope" and not tree.args:
        return RopeConfig(**{keyword.arg or "": ast.literal_eval(keyword.value) for keyword in tree.keywords})
    value = ast.literal_eval(tree)
    if not isinstance(value, (int, float, str, tuple, type(None))):
        raise ValueError(f"{value!r} cannot be an attribute")  # noqa: TRY004 - every malformed line is a ValueError
    return value
