"""Multiply by queries', keys' and values' weights at once, and make every other product a projection of its own.

::

    q = gemm(x, wq); k = gemm(x, wk); v = gemm(x, wv)
    ->  qkv = projection(x, wq, wk, wv); q, k, v = split(qkv)

Products are merged where their results become the q, k and v of one attention, since `fuse_rope_kv` reads them from one
row and the split vanishes; elsewhere a split would copy what nobody needed together. Declined where somebody else reads
one of the results, where weights need differently rounded operands, or where some products have a delta that adapters
do not give. The deltas of merged products are merged likewise.
"""

from __future__ import annotations

from collections.abc import Sequence

from trivium.compile.deltas import merged_delta
from trivium.compile.edit import GraphEditor, operand, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph, Node

PLAIN = {"scale": 1.0, "softcap": None}
"""Attributes of a projection that does nothing but multiply."""

_BETWEEN = ("rope", "rms_norm", "reshape")
"""What may stand between a product and attention; each has one use."""


def merge_projections(graph: Graph, options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for write in editor.nodes("kv_write"):
        attention = editor.only_user(result(write), "attention")
        if attention is None:
            continue
        sources = [(operand(attention, "q"), attention), (operand(write, "k"), write), (operand(write, "v"), write)]
        gemms = [_gemm_behind(editor, value, user) for value, user in sources]
        _merge(editor, [gemm for gemm in gemms if gemm is not None], options)
    for gemm in editor.nodes("gemm"):
        found = operands(gemm)
        inputs = {"x": found["x"], "weight_0": found["weight"], "bias_0": found["bias"], "delta": found["delta"]}
        editor.replace([gemm], editor.node("projection", inputs, PLAIN, [result(gemm)]), at=gemm)
    return editor.build()


def _gemm_behind(editor: GraphEditor, value: str, user: Node) -> Node | None:
    """Follow what one user alone reads back to the product that it comes from."""
    node = editor.only_for(value, user)
    while node is not None and node.op in _BETWEEN:
        node = editor.only_for(operand(node, "x"), node)
    return node if node is not None and node.op == "gemm" else None


def _merge(editor: GraphEditor, gemms: Sequence[Node], options: PassOptions) -> None:
    """Replace three products by one and a split, if they may be merged."""
    names = {operand(gemm, "x") for gemm in gemms}
    if len({result(gemm) for gemm in gemms}) != 3 or len(names) != 1:  # noqa: PLR2004 - q, k and v
        return
    depth = editor.type_of(names.pop()).shape[-1]
    if len({options.left_of(operand(gemm, "weight"), depth) for gemm in gemms}) != 1:
        return
    # Where the first of them stands: what they share is defined by then, and nobody reads a result before.
    first = editor.first_of(gemms)
    deltas = [operands(gemm)["delta"] for gemm in gemms]
    can_merge, delta = merged_delta(editor, deltas, before=first)
    if not can_merge:
        return
    inputs = {"x": operand(first, "x"), "delta": delta}
    for part, gemm in enumerate(gemms):
        inputs |= {f"weight_{part}": operand(gemm, "weight"), f"bias_{part}": operands(gemm)["bias"]}
    merged = editor.node("projection", inputs, PLAIN, [editor.fresh()])
    editor.insert_before(first, merged)
    sizes = tuple(gemm.outputs[0].type.shape[-1] for gemm in gemms)
    split = editor.node("split", {"x": result(merged)}, {"sizes": sizes}, [result(gemm) for gemm in gemms])
    editor.replace(gemms, split, at=first)
