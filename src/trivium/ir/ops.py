"""The ops: what each takes, what it gives, and in one line what it means.

`OPS` is the whole vocabulary of graphs: the primitives below, in which models are written, and the fused ops of
`ir.fused`, into which passes turn them. The arithmetic behind each line is in `ir.meaning`, once, for every array
library; which kernels run it is decided by executors.

Letters: T tokens, R wanted rows, M model width, N and K the sizes of a product, H query heads, G KV heads, D head
width, V vocabulary. Rows never mix: row t of every output depends on row t of the inputs, save in `attention`, which
reads the KV of the row's own request, and `gather_rows`, which picks rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trivium.base.errors import ensure
from trivium.config.model import RopeConfig
from trivium.ir.fused import FUSED
from trivium.ir.graph import Dim, TensorType
from trivium.ir.schema import (
    ACTIVATIONS,
    FLOAT,
    MAYBE_FLOAT,
    MAYBE_WHOLE,
    TEXT,
    TUPLE,
    WHOLE,
    Operands,
    OpSchema,
    Types,
    op,
)

PRIMITIVES: dict[str, OpSchema] = {}
"""What model definitions are written in."""

_op = partial(op, PRIMITIVES)


@_op(
    "embed",
    "token_ids weight embeds?",
    "weight[token_ids] * scale; rows of embeds win where not NaN",
    tables="weight",
    scale=FLOAT,
)
def _embed(operands: Operands) -> Types:
    operands.match("token_ids", "T", "i32")
    operands.match("weight", "V M")
    operands.match_optional("embeds", "T M")
    return operands.give("T M")


@_op("rms_norm", "x weight", "x / sqrt(mean(x**2) + eps) * weight, over the last axis", eps=FLOAT)
def _rms_norm(operands: Operands) -> Types:
    operands.match("x", "... N")
    operands.match("weight", "N")
    return operands.give("... N")


@_op(
    "gemm",
    "x weight bias? delta?",
    "x @ weight.T + bias + delta; each element one sum over k in ascending order",
    matrices="weight",
)
def _gemm(operands: Operands) -> Types:
    operands.match("x", "T K")
    operands.match("weight", "N K")
    operands.match_optional("bias", "N")
    operands.match_optional("delta", "T N")
    return operands.give("T N")


@_op("split", "x", "consecutive pieces of the last axis", sizes=TUPLE)
def _split(operands: Operands) -> Types:
    operands.match("x", "... N")
    sizes = operands.attributes["sizes"]
    if not isinstance(sizes, tuple):
        return ()
    pieces = [size for size in sizes if isinstance(size, int)]
    total = operands.shapes.number("N")
    ensure(sum(pieces) == total and min(pieces) > 0, f"split: sizes {sizes} do not add up to {total}")
    leading = operands.shapes.sizes("...")
    return tuple(TensorType("f32", (*leading, size)) for size in pieces)


@_op("reshape", "x", "the same elements in row-major order under another shape", shape=TUPLE)
def _reshape(operands: Operands) -> Types:
    operands.match("x", "...")
    shape = operands.attributes["shape"]
    found = operands.shapes.sizes("...")
    if not isinstance(shape, tuple):
        return ()
    ensure(_elements(found) == _elements(shape), f"reshape: {found} and {shape} hold different numbers of elements")
    return (TensorType("f32", shape),)


def _elements(shape: tuple[Dim, ...]) -> tuple[int, tuple[str, ...]]:
    """Return the product of the numbers and the symbols, sorted."""
    product = 1
    for dim in shape:
        product *= dim if isinstance(dim, int) else 1
    return product, tuple(sorted(dim for dim in shape if isinstance(dim, str)))


@_op(
    "rope_table",
    "positions reach",
    "[T, 2, rotary_dim / 2]: cos and sin of each position's angles, times the attention factor",
    rope=(RopeConfig,),
)
def _rope_table(operands: Operands) -> Types:
    operands.match("positions", "T", "i32")
    operands.match("reach", "T", "i32")
    rope = operands.attributes["rope"]
    if not isinstance(rope, RopeConfig):
        return ()
    ensure(rope.rotary_dim % 2 == 0, f"rope_table: rotary_dim {rope.rotary_dim} is odd")
    return (TensorType("f32", (*operands.shapes.sizes("T"), 2, rope.rotary_dim // 2)),)


@_op("rope", "x table", "rotate the pairs (i, i + rotary_dim / 2) of each head's first rotary_dim elements")
def _rope(operands: Operands) -> Types:
    operands.match("x", "T H D")
    operands.match("table", "T 2 half")
    width, half = operands.shapes.number("D"), operands.shapes.number("half")
    ensure(2 * half <= width, f"rope: rotates {2 * half} elements of heads that have {width}")
    return operands.give("T H D")


@_op("kv_write", "k v", "store K and V of the step's tokens in the KV store", has_effect=True, layer=WHOLE)
def _kv_write(operands: Operands) -> Types:
    operands.match("k", "T G D")
    operands.match("v", "T G D")
    return (TensorType("kv"),)


@_op(
    "attention",
    "q kv",
    "per head: softmax(softcap(q . K * scale) over the request's positions p - window < j <= p) . V",
    layer=WHOLE,
    scale=FLOAT,
    window=MAYBE_WHOLE,
    softcap=MAYBE_FLOAT,
)
def _attention(operands: Operands) -> Types:
    operands.match("q", "T H D")
    token = operands.types["kv"]
    ensure(token is not None and token.dtype == "kv", "attention: kv must be what kv_write gave")
    window = operands.attributes["window"]
    ensure(window is None or operands.whole("window") > 0, f"attention: window {window!r} sees nothing")
    return operands.give("T H D")


@_op("gated", "gate up", "activation(gate) * up", activation=TEXT)
def _gated(operands: Operands) -> Types:
    operands.match("gate", "...")
    operands.match("up", "...")
    operands.one_of("activation", ACTIVATIONS)
    return operands.give("...")


@_op("add", "a b", "a + b")
def _add(operands: Operands) -> Types:
    operands.match("a", "...")
    operands.match("b", "...")
    return operands.give("...")


@_op("mul", "a b", "a * b")
def _mul(operands: Operands) -> Types:
    operands.match("a", "...")
    operands.match("b", "...")
    return operands.give("...")


@_op("scale", "x", "x * factor", factor=FLOAT)
def _scale(operands: Operands) -> Types:
    operands.match("x", "...")
    return operands.give("...")


@_op("softcap", "x", "cap * tanh(x / cap)", cap=FLOAT)
def _softcap(operands: Operands) -> Types:
    operands.match("x", "...")
    return operands.give("...")


@_op("gather_rows", "x rows", "x[rows]")
def _gather_rows(operands: Operands) -> Types:
    operands.match("x", "T M")
    operands.match("rows", "R", "i32")
    return operands.give("R M")


@_op(
    "adapter_delta",
    "x",
    "for each row what its request's adapter adds to the products with `parameters`, one after the other; mostly zeros",
    parameters=TUPLE,
    widths=TUPLE,
    rows=TEXT,
)
def _adapter_delta(operands: Operands) -> Types:
    operands.match("x", "S K")
    operands.one_of("rows", [str(dim) for dim in operands.shapes.sizes("S")])
    parameters, widths = operands.attributes["parameters"], operands.attributes["widths"]
    if not isinstance(parameters, tuple) or not isinstance(widths, tuple):
        return ()
    ensure(len(parameters) == len(widths) > 0, f"adapter_delta: {len(parameters)} parameters, {len(widths)} widths")
    return (TensorType("f32", (*operands.shapes.sizes("S"), sum(int(width) for width in widths))),)


OPS: Mapping[str, OpSchema] = {**PRIMITIVES, **FUSED}
