"""Norm, rotate and store what a projection gave for attention, in one go.

::

    projection ─ split ┬ q ─ (norm) ─ heads ─ (norm) ─ (rope) ──────────── attention
                       ├ k ─ (norm) ─ heads ─ (norm) ─ (rope) ─ kv_write ─┘
                       └ v ───────── heads ─────────────────────┘

    ->  q, kv = rope_kv(projection, table, q_norm, k_norm)

A norm stands before the cut into heads (`full`) or behind it (`head`), for q, k or both; rope is there for both or for
none, with one table. Declined where anything differs, or where somebody else reads a value in between.
"""

from __future__ import annotations

from dataclasses import dataclass

from trivium.compile.edit import GraphEditor, operand, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Attribute, Graph, Node


@dataclass(frozen=True, slots=True)
class _Path:
    """What stands between a piece of the split and attention."""

    nodes: tuple[Node, ...]
    source: str
    """The piece."""
    heads: int
    width: int
    table: str | None = None
    norm: tuple[str, str, Attribute] | None = None
    """Kind (head or full), weight, eps."""


def fuse_rope_kv(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for write in editor.nodes("kv_write"):
        attention = editor.only_user(result(write), "attention")
        if attention is None:
            continue
        q = _path(editor, operand(attention, "q"), attention)
        k = _path(editor, operand(write, "k"), write)
        v = _path(editor, operand(write, "v"), write)
        if q is not None and k is not None and v is not None:
            _fuse(editor, write, operand(attention, "q"), (q, k, v))
    return editor.build()


def _path(editor: GraphEditor, value: str, user: Node) -> _Path | None:
    """Follow a value back to the piece it comes from; `None` where something else stands in between."""
    shape = editor.type_of(value).shape
    nodes: list[Node] = []
    table: str | None = None
    norms: dict[str, Node] = {}
    node = editor.only_for(value, user)
    for op, kind in (("rope", ""), ("rms_norm", "head"), ("reshape", ""), ("rms_norm", "full")):
        if node is None or node.op != op:
            if op == "reshape":
                return None
            continue
        nodes.append(node)
        table = operand(node, "table") if op == "rope" else table
        if kind:
            norms[kind] = node
        value = operand(node, "x")
        node = editor.only_for(value, node)
    heads, width = shape[1], shape[2]
    is_whole = editor.type_of(value).shape == ("T", _times(heads, width))
    if len(norms) > 1 or not is_whole or editor.only_user(value) is None:
        return None
    norm = next(((kind, operand(each, "weight"), each.attributes["eps"]) for kind, each in norms.items()), None)
    return _Path(tuple(nodes), value, int(heads), int(width), table, norm)


def _times(heads: int | str, width: int | str) -> int | None:
    return heads * width if isinstance(heads, int) and isinstance(width, int) else None


def _fuse(editor: GraphEditor, write: Node, query: str, paths: tuple[_Path, _Path, _Path]) -> None:
    """Replace the paths by one node, if they belong together."""
    q, k, v = paths
    split = editor.maker(q.source, "split")
    if split is None or [value.name for value in split.outputs] != [path.source for path in paths]:
        return
    norms = {path.norm[0::2] for path in (q, k) if path.norm is not None}
    is_alike = q.table == k.table and q.width == k.width == v.width and k.heads == v.heads
    if not is_alike or len(norms) > 1 or v.table is not None or v.norm is not None:
        return
    if q.table is not None and not editor.is_before(q.table, write):
        return
    kind, eps = norms.pop() if norms else ("none", None)
    inputs = {
        "qkv": operand(split, "x"),
        "table": q.table,
        "q_norm": q.norm[1] if q.norm is not None else None,
        "k_norm": k.norm[1] if k.norm is not None else None,
    }
    attributes = {
        "layer": write.attributes["layer"],
        "num_heads": q.heads,
        "num_kv_heads": k.heads,
        "head_width": q.width,
        "norm": kind,
        "eps": eps,
    }
    fused = editor.node("rope_kv", inputs, attributes, [query, result(write)])
    editor.replace([split, *q.nodes, *k.nodes, *v.nodes, write], fused, at=write)
