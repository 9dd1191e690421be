"""Multiply by gate's and up's weights at once, and gate the results where they are made.

::

    gated(gemm(x, gate), gemm(x, up))  ->  gated_projection(x, gate, up)

Declined where somebody else reads one of the products, where they multiply different values, where the weights need
differently rounded operands, or where one has a delta that adapters do not give.
"""

from __future__ import annotations

from trivium.compile.deltas import merged_delta
from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph


def fuse_gated_projection(graph: Graph, options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for gated in editor.nodes("gated"):
        gate = editor.only_for(operand(gated, "gate"), gated)
        up = editor.only_for(operand(gated, "up"), gated)
        if gate is None or up is None or gate.op != "gemm" or up.op != "gemm":
            continue
        weights = [operand(gate, "weight"), operand(up, "weight")]
        depth = editor.type_of(operand(gate, "x")).shape[-1]
        if operand(gate, "x") != operand(up, "x") or len({options.left_of(each, depth) for each in weights}) != 1:
            continue
        can_merge, delta = merged_delta(editor, [operands(gate)["delta"], operands(up)["delta"]], before=gated)
        if not can_merge:
            continue
        inputs = {
            "x": operand(gate, "x"),
            "gate": weights[0],
            "up": weights[1],
            "gate_bias": operands(gate)["bias"],
            "up_bias": operands(up)["bias"],
            "delta": delta,
        }
        attributes = {"activation": gated.attributes["activation"], "kind": None, "gives": ("wide",)}
        fused = editor.node("gated_projection", inputs, attributes, [result(gated)])
        editor.replace([gate, up, gated], fused, at=gated)
    return editor.build()
