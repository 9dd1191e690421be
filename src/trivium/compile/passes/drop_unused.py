"""Take out nodes whose results nobody reads, forms that nobody reads, and number values anew.

What has an effect (`kv_write`, `rope_kv`) stays. An `add_norm`, `attend` or `gated_projection` gives only the forms
that are read; an `add_norm` of which only the sum is read loses its norm. Runs backwards, so that what was read
only by dropped nodes is dropped too. Parameters and inputs stay declared.
"""

from __future__ import annotations

from dataclasses import replace

from trivium.compile.edit import GraphEditor, operands
from trivium.compile.options import PassOptions
from trivium.ir.graph import Attribute, Graph, Node, Value
from trivium.ir.ops import OPS


def drop_unused(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for node in reversed(list(editor.nodes())):
        unread = [
            value.name for value in node.outputs if not editor.users(value.name) and not editor.is_output(value.name)
        ]
        if len(unread) == len(node.outputs) and not OPS[node.op].has_effect:
            editor.remove(node)
        elif unread and "gives" in node.attributes:
            editor.replace([node], _without(editor, node, unread), at=node)
    return _renumbered(editor.build())


def _without(editor: GraphEditor, node: Node, unread: list[str]) -> Node:
    """Return the node without some of its forms."""
    given = node.attributes["gives"]
    forms = zip(given if isinstance(given, tuple) else (), node.outputs, strict=True)
    kept = {str(form): value.name for form, value in forms if value.name not in unread}
    attributes: dict[str, Attribute] = {**node.attributes, "gives": tuple(kept)}
    inputs = operands(node)
    if "operand" not in kept:
        attributes["kind"] = None
    if set(kept) == {"sum"}:
        inputs["weight"] = None
        attributes["eps"] = node.attributes["eps"] if inputs["b_weight"] is not None else None
    return editor.node(node.op, inputs, attributes, list(kept.values()))


def _renumbered(graph: Graph) -> Graph:
    """Name the values %0, %1, … in the order in which they are made."""
    names: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(None if name is None else names.get(name, name) for name in node.inputs)
        outputs = []
        for value in node.outputs:
            names[value.name] = f"%{len(names)}"
            outputs.append(Value(names[value.name], value.type))
        nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
    outputs_by_name = {name: names.get(value, value) for name, value in graph.outputs.items()}
    return replace(graph, nodes=tuple(nodes), outputs=outputs_by_name)
