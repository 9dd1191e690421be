"""Round what products multiply, as their weights want it, where it is made.

A product's left operand becomes a value of its weights' operand kind, padded to their blocks. Three ops can give their
result rounded beside, or instead of, float32: `add_norm`, `attend` and `gated_projection`. For all other makers, and
where products that need different operands read one value, an `add_norm` that neither adds nor norms does the rounding;
so too where attention's heads are not whole groups of an operand, or a weight's blocks reach past what an op writes.
Forms that nobody reads any more are taken away by `drop_unused`.

::

    n = add_norm(x, w; gives=wide);  projection(n, q)   ->  n, o = add_norm(x, w; gives=wide, operand); projection(o, q)
    projection(x, q)                                    ->  o = add_norm(x; gives=operand); projection(o, q)

This is the one pass that changes numbers.
"""

from __future__ import annotations

from trivium.base.errors import ensure
from trivium.base.intmath import align_up
from trivium.compile.edit import GraphEditor, operand, operands
from trivium.compile.options import LeftOperand, PassOptions
from trivium.ir.graph import Attribute, Graph, Node
from trivium.ir.ops import OPS
from trivium.plan.program import operand_group

_PRODUCTS = ("projection", "projection_add", "gated_projection")
_CAN_ROUND = ("add_norm", "attend", "gated_projection")


def choose_operands(graph: Graph, options: PassOptions) -> Graph:
    """See the module.

    Raises:
        InternalError: A product merges weights that need different operands, or a weight's format is not known.
    """
    editor = GraphEditor(graph)
    rounded: dict[tuple[str, LeftOperand], str] = {}
    for product in editor.nodes(*_PRODUCTS):
        found, x = operands(product), operand(product, "x")
        if editor.type_of(x).dtype != "f32":
            continue
        weights = [weight for name in OPS[product.op].matrices if (weight := found[name]) is not None]
        wanted = {options.left_of(weight, editor.type_of(x).shape[-1]) for weight in weights}
        ensure(len(wanted) == 1, f"{graph.name}: a {product.op} merges weights that need different operands: {weights}")
        (left,) = wanted
        if (x, left) not in rounded:
            rounded[x, left] = _round(editor, x, left)
        names = [value.name for value in product.outputs]
        inputs = {**found, "x": rounded[x, left]}
        editor.replace([product], editor.node(product.op, inputs, product.attributes, names), at=product)
    return editor.build()


def _round(editor: GraphEditor, x: str, left: LeftOperand) -> str:
    """Return the value that is `x` rounded as `left` says, which is new."""
    name, kind = editor.fresh(), left.kind
    maker = editor.maker(x)
    if maker is not None and _can_round(editor, maker, x, left):
        gives = (*_forms(maker), "operand")
        attributes: dict[str, Attribute] = {**maker.attributes, "kind": kind, "gives": gives}
        names = [*(value.name for value in maker.outputs), name]
        editor.replace([maker], editor.node(maker.op, operands(maker), attributes, names), at=maker)
        return name
    apart = editor.node("add_norm", {"a": x}, {"eps": None, "kind": kind, "gives": ("operand",)}, [name])
    if maker is None:
        editor.insert_first(apart)
    else:
        editor.insert_after(maker, apart)
    return name


def _can_round(editor: GraphEditor, maker: Node, x: str, left: LeftOperand) -> bool:
    """Whether the op that makes `x` can write it as this operand."""
    if maker.op not in _CAN_ROUND or maker.attributes["kind"] is not None or not _is_result(maker, x):
        return False
    if maker.op == "add_norm":
        return True
    group = operand_group(left.kind)
    if left.depth != align_up(_width(editor, x), group):
        return False
    # attend writes whole heads, gated_projection whole groups
    return maker.op != "attend" or _width(editor, operand(maker, "q")) % group == 0


def _width(editor: GraphEditor, name: str) -> int:
    width = editor.type_of(name).shape[-1]
    ensure(isinstance(width, int), f"{name} has no fixed width")
    return int(width)


def _is_result(maker: Node, x: str) -> bool:
    """Whether `x` is what the maker's operand would be rounded from: its result, or a sum that is not normed."""
    is_sum = _forms(maker)[[value.name for value in maker.outputs].index(x)] == "sum"
    return not is_sum or operands(maker)["weight"] is None


def _forms(maker: Node) -> tuple[str, ...]:
    gives = maker.attributes["gives"]
    return tuple(str(form) for form in gives) if isinstance(gives, tuple) else ()
