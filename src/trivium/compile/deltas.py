"""Adapters' deltas of products that are merged: one op asks for all of them, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from trivium.compile.edit import GraphEditor, operand, result
from trivium.ir.graph import Attribute, Node


def merged_delta(editor: GraphEditor, deltas: Sequence[str | None], *, before: Node) -> tuple[bool, str | None]:
    """Replace the deltas of several products by one.

    Args:
        editor: The graph; changed only if they can be merged.
        deltas: What each product adds, in the order of its columns; each read by its product alone.
        before: Where the merged delta is put; what adapters look at must be defined by then.

    Returns:
        Whether they can be merged, and the merged delta; `None` where no product has one.
    """
    if not any(deltas):
        return True, None
    nodes = [editor.maker(delta, "adapter_delta") for delta in deltas]
    found = [node for node in nodes if node is not None]
    is_same = len({operand(node, "x") for node in found}) == 1 and len({node.attributes["rows"] for node in found}) == 1
    is_theirs = all(editor.only_user(result(node)) is not None for node in found)
    is_in_time = all(editor.is_before(operand(node, "x"), before) for node in found)
    if len(found) != len(deltas) or not (is_same and is_theirs and is_in_time):
        return False, None
    attributes: dict[str, Attribute] = {
        "parameters": tuple(name for node in found for name in _entries(node, "parameters")),
        "widths": tuple(width for node in found for width in _entries(node, "widths")),
        "rows": found[0].attributes["rows"],
    }
    merged = editor.node("adapter_delta", {"x": operand(found[0], "x")}, attributes, [editor.fresh()])
    editor.insert_before(before, merged)
    return True, result(merged)


def _entries(node: Node, attribute: str) -> tuple[int | str, ...]:
    value = node.attributes[attribute]
    return value if isinstance(value, tuple) else ()
