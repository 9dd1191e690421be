"""Graphs as text: one line per value, stable, readable, diffable; `ir.parser` reads it back.

::

    graph LlamaForCausalLM
    input token_ids: i32[T]
    param norm.weight: f32[576]
    %0: f32[T,576] = embed(token_ids, embed_tokens.weight; scale=1.0)
    %1, %2: f32[T,64], f32[T,32] = split(%0; sizes=(64, 32))
    output logits = %2
"""

from __future__ import annotations

from dataclasses import fields

from trivium.config.model import RopeConfig
from trivium.ir.graph import Attribute, Graph, Node

ABSENT = "-"
"""Stands for an optional operand that is not there, before one that is."""


def to_text(graph: Graph) -> str:
    """Write `graph`, ending in a newline."""
    lines = [f"graph {graph.name}"]
    lines += [f"input {value.name}: {value.type}" for value in graph.inputs]
    lines += [f"param {value.name}: {value.type}" for value in graph.params]
    lines += [node_text(node) for node in graph.nodes]
    lines += [f"output {name} = {value_name}" for name, value_name in graph.outputs.items()]
    return "\n".join(lines) + "\n"


def node_text(node: Node) -> str:
    """Write one node as one line."""
    names = ", ".join(value.name for value in node.outputs)
    types = ", ".join(str(value.type) for value in node.outputs)
    inputs = list(node.inputs)
    while inputs and inputs[-1] is None:
        inputs.pop()
    operands = ", ".join(ABSENT if name is None else name for name in inputs)
    attributes = ", ".join(f"{name}={_attribute_text(value)}" for name, value in node.attributes.items())
    return f"{names}: {types} = {node.op}({operands}{'; ' if attributes else ''}{attributes})"


def _attribute_text(value: Attribute) -> str:
    if not isinstance(value, RopeConfig):
        return repr(value)
    # Fields at their defaults say nothing; required fields have the class's marker as default and always print.
    given = ((field.name, getattr(value, field.name), field.default) for field in fields(RopeConfig))
    return f"rope({', '.join(f'{name}={found!r}' for name, found, default in given if found != default)})"
