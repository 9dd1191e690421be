"""What a legal graph is: each rule once, each failure with the node's own text.

Rules: names are unique and defined before use; every op is known; operands, attributes and output types agree with
the op's schema; each layer's KV is written once, and read by attention of the same layer; outputs exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trivium.base.errors import InternalError, ensure
from trivium.ir.graph import SYMBOLS, Graph, Node, TensorType, Value
from trivium.ir.ops import OPS
from trivium.ir.printer import node_text
from trivium.ir.schema import OpSchema


def verify(graph: Graph) -> None:
    """Check every rule.

    Raises:
        InternalError: The first rule that does not hold; the message names graph and node.
    """
    known: dict[str, TensorType] = {}
    writers: dict[str, int] = {}
    for value in (*graph.inputs, *graph.params):
        _define(known, value, graph.name)
    for param in graph.params:
        fixed = all(isinstance(dim, int) and dim > 0 for dim in param.type.shape)
        ensure(fixed, f"{graph.name}: parameter {param.name} is {param.type}; its sizes must be positive numbers")
    for node in graph.nodes:
        try:
            _verify_node(node, known)
            _verify_effects(node, writers)
        except InternalError as error:
            raise InternalError(f"{graph.name}: {error}; in: {node_text(node)}") from None
    ensure(graph.outputs, f"{graph.name}: has no output")
    for name, value_name in graph.outputs.items():
        ensure(value_name in known, f"{graph.name}: output {name} is {value_name}, which nothing defines")


def _define(known: dict[str, TensorType], value: Value, where: str) -> None:
    ensure(value.name not in known, f"{where}: {value.name} is defined twice")
    for dim in value.type.shape:
        is_size = isinstance(dim, int) and dim > 0
        ensure(is_size or dim in SYMBOLS, f"{where}: {value.name} is {value.type}; {dim!r} is no size")
    known[value.name] = value.type


def _verify_node(node: Node, known: dict[str, TensorType]) -> None:
    ensure(node.op in OPS, f"unknown op {node.op!r}")
    schema = OPS[node.op]
    _verify_attributes(node, schema)
    outputs = schema.infer(_operands(node, schema, known), node.attributes)
    declared = tuple(value.type for value in node.outputs)
    ensure(outputs == declared, f"{node.op}: gives {_shown(outputs)} but {_shown(declared)} is declared")
    for value in node.outputs:
        _define(known, value, node.op)


def _shown(types: tuple[TensorType, ...]) -> str:
    return ", ".join(str(each) for each in types)


def _operands(node: Node, schema: OpSchema, known: Mapping[str, TensorType]) -> dict[str, TensorType | None]:
    num_inputs = len(schema.inputs)
    ensure(len(node.inputs) == num_inputs, f"{node.op}: has {len(node.inputs)} operands; it takes {num_inputs}")
    operands: dict[str, TensorType | None] = {}
    for declared, name in zip(schema.inputs, node.inputs, strict=True):
        ensure(name is not None or declared.endswith("?"), f"{node.op}: {declared} is missing")
        ensure(name is None or name in known, f"{node.op}: {declared} is {name}, which is not defined before")
        operands[declared.rstrip("?")] = None if name is None else known[name]
    return operands


def _verify_attributes(node: Node, schema: OpSchema) -> None:
    expected, found = sorted(schema.attributes), sorted(node.attributes)
    ensure(expected == found, f"{node.op}: has attributes {found}; it takes {expected}")
    for name, allowed in schema.attributes.items():
        value = node.attributes[name]
        fits = isinstance(value, allowed) and not isinstance(value, bool)
        ensure(fits, f"{node.op}: {name} is {value!r}; it must be {' or '.join(each.__name__ for each in allowed)}")
        is_finite = not isinstance(value, float) or math.isfinite(value)
        ensure(is_finite, f"{node.op}: {name} is {value!r}; it must be finite")


_WRITERS, _READERS = ("kv_write", "rope_kv"), ("attention", "attend")
"""Ops that give a kv token, last of their outputs, and ops that take one, second of their operands."""


def _verify_effects(node: Node, writers: dict[str, int]) -> None:
    layer = node.attributes.get("layer")
    if node.op in _WRITERS and isinstance(layer, int):
        ensure(layer >= 0, f"{node.op}: layer {layer} is negative")
        ensure(layer not in writers.values(), f"{node.op}: the KV of layer {layer} is written twice")
        writers[node.outputs[-1].name] = layer
    if node.op in _READERS:
        token = node.inputs[1]
        written = None if token is None else writers.get(token)
        ensure(written == layer, f"{node.op}: reads layer {layer} with the token of layer {written}")
