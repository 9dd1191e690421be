"""Take out nodes that change nothing, and reshapes of reshapes.

* scale by 1; a split into one piece; a reshape to the shape that is there: gone.
* reshape of reshape: one reshape.
* scale of an embedding that is not scaled yet: the embedding's own scale. (Two factors are not multiplied into one:
  that would round differently. Rows of `embeds` are not scaled, so an embedding that may have them is left alone.)
"""

from __future__ import annotations

from dataclasses import replace

from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph


def fold_constants(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for node in editor.nodes("reshape"):
        inner = editor.maker(operand(node, "x"), "reshape")
        if inner is not None:
            editor.replace([node], replace(node, inputs=inner.inputs), at=node)
    for node in editor.nodes("scale", "split", "reshape"):
        x = operand(node, "x")
        is_same_shape = len(node.outputs) == 1 and node.outputs[0].type == editor.type_of(x)
        if is_same_shape and node.attributes.get("factor", 1.0) == 1.0:
            editor.redirect(result(node), x)
            editor.remove(node)
    for node in editor.nodes("scale"):
        table = editor.only_for(operand(node, "x"), node)
        if table is None or table.op != "embed" or table.attributes["scale"] != 1.0:
            continue
        if operands(table)["embeds"] is None:
            scaled = editor.node("embed", operands(table), {"scale": node.attributes["factor"]}, [result(node)])
            editor.replace([table, node], scaled, at=table)
    return editor.build()
