"""Pick the wanted rows before work that treats rows alone: the last norm, the head, what scales and caps logits.

::

    gather(op(x))  ->  op(gather(x))      op: rms_norm, gemm, scale, softcap

Repeated upwards as far as it goes. Declined where somebody else wants the rows that are not picked, and for products
with a delta. `fuse_add_norm` later takes the gather into the norm.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph, Node

ROW_BY_ROW = ("rms_norm", "gemm", "scale", "softcap")


def gather_rows_early(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for node in editor.nodes("gather_rows"):
        gather: Node | None = node
        while gather is not None:
            gather = _hoist(editor, gather)
    return editor.build()


def _hoist(editor: GraphEditor, gather: Node) -> Node | None:
    """Move one node behind the gather, and return the gather before it; `None` where there is none to move."""
    treated = editor.only_for(operand(gather, "x"), gather)
    if treated is None or treated.op not in ROW_BY_ROW or operands(treated).get("delta") is not None:
        return None
    earlier = editor.node(
        "gather_rows", {"x": operand(treated, "x"), "rows": operand(gather, "rows")}, {}, [editor.fresh()]
    )
    editor.insert_before(gather, earlier)
    moved = editor.node(treated.op, {**operands(treated), "x": result(earlier)}, treated.attributes, [result(gather)])
    editor.replace([treated, gather], moved, at=gather)
    return earlier
