"""Let every product take what the step's adapters add to it (the second program of a plan only).

::

    gemm(x, w, bias)  ->  d = adapter_delta(x; parameters=(w,)); gemm(x, w, bias, d)

x is the product's left operand before it is rounded: later passes keep it as float32 beside the rounded one. Products
that have a delta already are left alone.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, operands
from trivium.compile.options import PassOptions
from trivium.ir.graph import Attribute, Graph


def add_adapters(graph: Graph, options: PassOptions) -> Graph:
    """See the module; the graph as it is unless adapters are asked for."""
    if not options.has_adapters:
        return graph
    editor = GraphEditor(graph)
    for gemm in editor.nodes("gemm"):
        if operands(gemm)["delta"] is not None:
            continue
        x, weight = operand(gemm, "x"), operand(gemm, "weight")
        rows = gemm.outputs[0].type.shape[0]
        attributes: dict[str, Attribute] = {
            "parameters": (weight,),
            "widths": gemm.outputs[0].type.shape[1:],
            "rows": str(rows),
        }
        delta = editor.node("adapter_delta", {"x": x}, attributes, [editor.fresh()])
        editor.insert_before(gemm, delta)
        names = {**operands(gemm), "delta": delta.outputs[0].name}
        editor.replace([gemm], editor.node("gemm", names, {}, [gemm.outputs[0].name]), at=gemm)
    return editor.build()
