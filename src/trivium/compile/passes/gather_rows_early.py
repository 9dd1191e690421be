"""Pick the wanted rows before work that treats rows alone: the head, the last norm, the last layer behind attention.

::

    x ──────────────┬─ add ─┬─ norm ─ gate, up ─ down ─ add ─ norm ─ gather ─ gemm
    attention ─ o ──┘       └──────────────────────────┘

    x ─ gather ─────────┬─ add ─┬─ norm ─ gate, up ─ down ─ add ─ norm ─ gemm
    attention ─ gather ─ o ─────┘                         ┘

A prompt's chunk wants one row or none, so of the last layer little more than keys and values is left to compute.

The *cone* of a gather are the nodes that only it (or other nodes of the cone) reads. Of these, products, norms, scales
and caps are moved behind the gather; sums, products of elements and gates are moved if something above them is, for a
gather of one value costs less than of two. Whatever the moved nodes read from outside is gathered; `fuse_add_norm`
takes those gathers into norms, or makes ops of them that `choose_operands` lets round.
"""

from __future__ import annotations

from collections.abc import Mapping

from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph, Node

ROW_OPERANDS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("x", "delta"),
    "rms_norm": ("x",),
    "scale": ("x",),
    "softcap": ("x",),
    "add": ("a", "b"),
    "mul": ("a", "b"),
    "gated": ("gate", "up"),
}
"""Ops that treat rows alone, and which of their operands have rows."""

_ALWAYS = ("gemm", "rms_norm", "scale", "softcap")


def gather_rows_early(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for gather in editor.nodes("gather_rows"):
        cone = _cone(editor, gather)
        moved = _worth_moving(editor, cone)
        if moved:
            _move(editor, gather, moved)
    return editor.build()


def _cone(editor: GraphEditor, gather: Node) -> list[Node]:
    """Find what only the gather needs, from the first node that runs to the last."""
    found: dict[str, Node] = {}
    waiting = [operand(gather, "x")]
    while waiting:
        value = waiting.pop()
        node = editor.maker(value, *ROW_OPERANDS)
        if node is None or value in found or editor.is_output(value) or len(node.outputs[0].type.shape) != 2:  # noqa: PLR2004
            continue
        readers = (user for user in editor.users(value) if user is not gather)
        if all(user.outputs[0].name in found for user in readers):
            found[value] = node
            waiting += _row_values(node)
    return editor.in_order(found.values())


def _row_values(node: Node) -> list[str]:
    values = operands(node)
    return [value for name in ROW_OPERANDS[node.op] if (value := values[name]) is not None]


def _worth_moving(editor: GraphEditor, cone: list[Node]) -> dict[str, Node]:
    """Choose the nodes of the cone that do less work on fewer rows than the gathers cost."""
    moved: dict[str, Node] = {}
    for node in cone:
        if node.op in _ALWAYS or any(value in moved for value in _row_values(node)):
            moved[result(node)] = node
    return moved


def _move(editor: GraphEditor, gather: Node, moved: Mapping[str, Node]) -> None:
    """Rebuild the moved nodes right before the gather, on gathered rows; the last takes the gather's name."""
    rows, last = operand(gather, "rows"), operand(gather, "x")
    picked: dict[str, str] = {}
    for value, node in moved.items():
        for source in _row_values(node):
            if source not in picked:
                earlier = editor.node("gather_rows", {"x": source, "rows": rows}, {}, [editor.fresh()])
                editor.insert_before(gather, earlier)
                picked[source] = result(earlier)
        names = operands(node)
        inputs = {name: picked[names[name] or ""] if names[name] in picked else names[name] for name in names}
        name = result(gather) if value == last else editor.fresh()
        fewer = editor.node(node.op, inputs, node.attributes, [name])
        picked[value] = name
        if value == last:
            editor.replace([gather], fewer, at=gather)
        else:
            editor.insert_before(gather, fewer)
    for node in reversed(tuple(moved.values())):
        editor.remove(node)
