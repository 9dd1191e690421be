"""Add a product to the residual where it is made, in the residual's own memory.

::

    add(x, projection(y, w))  ->  projection_add(y, w, x)

The product's epilogue overwrites the residual, so the add must be the last to read it. Declined where somebody reads it
later, where it is an output, input or parameter, and where the product is scaled, capped, merged, or read by somebody
else. The product moves down to the add, so it is also declined where what it multiplies is overwritten in between.

Runs before `fuse_add_norm`, which takes the adds that are left: one write in place is cheaper than reading two rows.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.compile.passes.merge_projections import PLAIN
from trivium.ir.graph import Graph, Node


def fuse_residual_add(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for add in editor.nodes("add"):
        a, b = operand(add, "a"), operand(add, "b")
        for residual, change in ((a, b), (b, a)):
            product = editor.only_for(change, add)
            if product is None or not _is_plain(product) or not _dies_here(editor, residual, add):
                continue
            found = operands(product)
            inputs = {name: found[name] for name in ("x", "weight_0", "bias_0", "delta")}
            if any(_is_overwritten(editor, value) for value in inputs.values() if value is not None):
                continue
            fused = editor.node("projection_add", {**inputs, "residual": residual}, {}, [result(add)])
            editor.replace([product, add], fused, at=add)
            break
    return editor.build()


def _is_plain(product: Node) -> bool:
    return product.op == "projection" and operands(product)["weight_1"] is None and product.attributes == PLAIN


def _dies_here(editor: GraphEditor, residual: str, add: Node) -> bool:
    """Whether nobody needs `residual` after `add`, and its memory is the graph's own."""
    if editor.is_output(residual) or editor.maker(residual) is None:
        return False
    return editor.users(residual)[-1].outputs == add.outputs


def _is_overwritten(editor: GraphEditor, value: str) -> bool:
    return any(user.op == "projection_add" and operand(user, "residual") == value for user in editor.users(value))
