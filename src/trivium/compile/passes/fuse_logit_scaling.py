"""Scale and cap a product where it is made.

::

    scale(projection(x, w); factor)   ->  projection(x, w; scale=factor)
    softcap(projection(x, w); cap)    ->  projection(x, w; softcap=cap)

A projection scales first and caps then; what stands in the other order, or twice, is left alone, as is a product that
somebody else reads.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph


def fuse_logit_scaling(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for node in editor.nodes("scale", "softcap"):
        product = editor.only_for(operand(node, "x"), node)
        if product is None or product.op != "projection" or product.attributes["softcap"] is not None:
            continue
        attributes = dict(product.attributes)
        if node.op == "softcap":
            attributes["softcap"] = node.attributes["cap"]
        elif attributes["scale"] == 1.0:
            attributes["scale"] = node.attributes["factor"]
        else:
            continue
        fused = editor.node("projection", operands(product), attributes, [result(node)])
        editor.replace([product, node], fused, at=node)
    return editor.build()
