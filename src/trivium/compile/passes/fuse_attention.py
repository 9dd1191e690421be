"""Let attention write a token's heads side by side, as the next product reads them.

::

    reshape(attention(q, kv); shape=(T, H * D))  ->  attend(q, kv)

Attention whose result is read in another shape is followed by a reshape back, which costs nothing.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operands, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Graph


def fuse_attention(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for attention in editor.nodes("attention"):
        attributes = {**attention.attributes, "kind": None, "gives": ("wide",)}
        heads = result(attention)
        attend = editor.node("attend", operands(attention), attributes, [editor.fresh()])
        reshape = editor.only_user(heads, "reshape")
        if reshape is not None and reshape.outputs[0].type == attend.outputs[0].type:
            attend = editor.node("attend", operands(attention), attributes, [result(reshape)])
            editor.replace([attention, reshape], attend, at=attention)
            continue
        editor.insert_before(attention, attend)
        back = editor.node("reshape", {"x": result(attend)}, {"shape": attention.outputs[0].type.shape}, [heads])
        editor.replace([attention], back, at=attention)
    return editor.build()
