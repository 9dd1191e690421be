"""Add, norm and pick rows in one go over each row.

::

    s = add(a, rms_norm(b, bw)); n = rms_norm(s, w)    ->  s, n = add_norm(a, b, bw, w)       post-norms: Gemma, OLMo 2
    s = add(a, b);               n = rms_norm(s, w)    ->  s, n = add_norm(a, b, -, w)
    n = rms_norm(x, w)                                 ->  n = add_norm(x, -, -, w)
    n = rms_norm(gather(x, rows), w)                   ->  n = add_norm(x, -, -, w, rows)     the last norm
    g = gather(x, rows)                                ->  g = add_norm(x, -, -, -, rows)

Each part is optional: an add is taken if it has a norm on either side, or if a product reads the sum (which the op can
then round). Everything is put where the add (or the gather, or else the norm) stood, so no value is read later than
before. Norms of heads [T, H, D] are `fuse_rope_kv`'s. Two norms with different eps are not fused.
"""

from __future__ import annotations

from trivium.compile.edit import GraphEditor, operand, result
from trivium.compile.options import PassOptions
from trivium.ir.graph import Attribute, Graph, Node

_PRODUCTS = ("projection", "projection_add", "gated_projection")


def fuse_add_norm(graph: Graph, _options: PassOptions) -> Graph:
    """See the module."""
    editor = GraphEditor(graph)
    for add in editor.nodes("add"):
        if _is_row(add):
            _fuse_sum(editor, add)
    for norm in editor.nodes("rms_norm"):
        if _is_row(norm):
            _fuse_norm(editor, norm)
    for gather in editor.nodes("gather_rows"):
        inputs = {"a": operand(gather, "x"), "rows": operand(gather, "rows")}
        editor.replace([gather], _add_norm(editor, inputs, None, {"wide": result(gather)}), at=gather)
    return editor.build()


def _is_row(node: Node | None) -> bool:
    return node is not None and len(node.outputs[0].type.shape) == 2  # noqa: PLR2004 - [T, M]


def _fuse_sum(editor: GraphEditor, add: Node) -> None:
    """Take an add, the norm of what it adds, and what norms or gathers its sum."""
    olds, total = [add], result(add)
    inputs = {"a": operand(add, "a"), "b": operand(add, "b")}
    eps: Attribute = None
    change = _norm_added(editor, add)
    if change is not None:
        olds.append(change)
        kept = inputs["b"] if inputs["a"] == result(change) else inputs["a"]
        inputs = {"a": kept, "b": operand(change, "x"), "b_weight": operand(change, "weight")}
        eps = change.attributes["eps"]
    gather = editor.only_user(total, "gather_rows")
    if gather is not None and editor.is_before(operand(gather, "rows"), add):
        olds.append(gather)
        inputs["rows"] = operand(gather, "rows")
        total = result(gather)
    norm = _norm_of(editor, total, add, eps)
    forms = {}
    if norm is not None:
        olds.append(norm)
        inputs["weight"] = operand(norm, "weight")
        eps = norm.attributes["eps"]
        forms["wide"] = result(norm)
    is_wanted = norm is None or editor.is_output(total) or editor.only_user(total) is None
    if is_wanted and "rows" in inputs:
        # The sum of the gathered rows alone is not given: norm it apart.
        olds = [node for node in olds if node is not norm]
        inputs.pop("weight", None)
        eps = None if change is None else change.attributes["eps"]
        forms = {"wide": total}
    elif is_wanted:
        forms["sum"] = total
    if len(olds) > 1 or any(user.op in _PRODUCTS for user in editor.users(total)):
        editor.replace(olds, _add_norm(editor, inputs, eps, forms), at=add)


def _norm_added(editor: GraphEditor, add: Node) -> Node | None:
    """Return the norm that is one side of the add and is nobody else's."""
    for side in ("b", "a"):
        norm = editor.only_for(operand(add, side), add)
        if norm is not None and norm.op == "rms_norm":
            return norm
    return None


def _norm_of(editor: GraphEditor, total: str, add: Node, eps: Attribute) -> Node | None:
    """Return the first norm of `total` that can be taken along."""
    for norm in editor.users(total):
        fits = norm.op == "rms_norm" and operand(norm, "x") == total and eps in {None, norm.attributes["eps"]}
        if fits and editor.is_before(operand(norm, "weight"), add):
            return norm
    return None


def _fuse_norm(editor: GraphEditor, norm: Node) -> None:
    """Take a norm, and the gather before it."""
    inputs = {"a": operand(norm, "x"), "weight": operand(norm, "weight")}
    eps, forms = norm.attributes["eps"], {"wide": result(norm)}
    gather = editor.only_for(inputs["a"], norm)
    if gather is None or gather.op != "gather_rows" or not editor.is_before(inputs["weight"], gather):
        editor.replace([norm], _add_norm(editor, inputs, eps, forms), at=norm)
        return
    inputs |= {"a": operand(gather, "x"), "rows": operand(gather, "rows")}
    editor.replace([gather, norm], _add_norm(editor, inputs, eps, forms), at=gather)


def _add_norm(editor: GraphEditor, inputs: dict[str, str], eps: Attribute, forms: dict[str, str]) -> Node:
    gives = tuple(form for form in ("sum", "wide") if form in forms)
    attributes: dict[str, Attribute] = {"eps": eps, "kind": None, "gives": gives}
    return editor.node("add_norm", inputs, attributes, [forms[form] for form in gives])
