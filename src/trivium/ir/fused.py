"""The fused ops: each is one instruction of a native program, and means a handful of primitives one after the other.

`ir.fused_meaning` says which, in the order of their arithmetic. Passes introduce them, nobody else writes them.

Several of them can give the same rows in more than one form. Their attribute `gives` lists the forms, in this order:

* `sum` (add_norm): the residual sum, float32;
* `wide`: the result as float32 rows;
* `operand`: the result rounded to `kind`, laid out for a product.

`kind` is `None` exactly where no `operand` is given. Letters as in `ir.ops`; S stands for T or R.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

from trivium.base.errors import ensure
from trivium.ir.graph import OPERAND_KINDS, DType, TensorType
from trivium.ir.schema import (
    ACTIVATIONS,
    FLOAT,
    MAYBE_FLOAT,
    MAYBE_TEXT,
    MAYBE_WHOLE,
    TEXT,
    TUPLE,
    WHOLE,
    Operands,
    OpSchema,
    Types,
    op,
)

Form = Literal["sum", "wide", "operand"]

FUSED: dict[str, OpSchema] = {}
"""What passes turn primitives into."""

MAX_PARTS = 3
"""Most weights of a projection."""

_op = partial(op, FUSED)


@_op(
    "add_norm",
    "a b? b_weight? weight? rows?",
    "sum = a + rms_norm(b, b_weight) (or + b, or nothing); the result is rms_norm(sum, weight) (or sum), of `rows`",
    eps=MAYBE_FLOAT,
    kind=MAYBE_TEXT,
    gives=TUPLE,
)
def _add_norm(operands: Operands) -> Types:
    operands.match("a", "S M")
    operands.match_optional("b", "S M")
    operands.match_optional("b_weight", "M")
    operands.match_optional("weight", "M")
    operands.match_optional("rows", "R", "i32")
    ensure(operands.has("b") or not operands.has("b_weight"), "add_norm: b_weight without b")
    has_norm = operands.has("weight") or operands.has("b_weight")
    ensure((operands.attributes["eps"] is not None) == has_norm, "add_norm: eps is there exactly where a weight is")
    gives = _forms(operands, ("sum", "wide", "operand"))
    has_sum = operands.has("b") and not operands.has("rows")
    ensure("sum" not in gives or has_sum, "add_norm: gives a sum only of a and b, all rows")
    return _in_forms(operands, gives, "R M" if operands.has("rows") else "S M")


@_op(
    "projection",
    "x weight_0 weight_1? weight_2? bias_0? bias_1? bias_2? delta?",
    "products with up to three weights, side by side: softcap((x @ weights.T + biases + delta) * scale)",
    matrices="weight_0 weight_1 weight_2",
    scale=FLOAT,
    softcap=MAYBE_FLOAT,
)
def _projection(operands: Operands) -> Types:
    operands.match_left("x", "S K")
    widths = [_part_width(operands, part) for part in range(MAX_PARTS) if _has_part(operands, part)]
    _match_delta(operands, sum(widths))
    return (TensorType("f32", (*operands.shapes.sizes("S"), sum(widths))),)


def _has_part(operands: Operands, part: int) -> bool:
    if operands.has(f"weight_{part}"):
        ensure(part == 0 or operands.has(f"weight_{part - 1}"), f"projection: weight_{part} without those before it")
        return True
    ensure(part > 0, "projection: weight_0 is missing")
    ensure(not operands.has(f"bias_{part}"), f"projection: bias_{part} without its weight")
    return False


def _part_width(operands: Operands, part: int) -> int:
    operands.match(f"weight_{part}", f"N{part} K")
    operands.match_optional(f"bias_{part}", f"N{part}")
    return operands.shapes.number(f"N{part}")


def _match_delta(operands: Operands, width: int) -> None:
    if operands.has("delta"):
        operands.match("delta", "S columns")
        columns = operands.shapes.number("columns")
        ensure(columns == width, f"{operands.op}: delta has {columns} columns; the product has {width}")


@_op(
    "projection_add",
    "x weight_0 residual bias_0? delta?",
    "residual + x @ weight.T + bias + delta",
    matrices="weight_0",
)
def _projection_add(operands: Operands) -> Types:
    operands.match_left("x", "S K")
    operands.match("weight_0", "N K")
    operands.match("residual", "S N")
    operands.match_optional("bias_0", "N")
    operands.match_optional("delta", "S N")
    return operands.give("S N")


@_op(
    "gated_projection",
    "x gate up gate_bias? up_bias? delta?",
    "activation(x @ gate.T + bias + delta) * (x @ up.T + bias + delta); delta holds gate's columns, then up's",
    matrices="gate up",
    activation=TEXT,
    kind=MAYBE_TEXT,
    gives=TUPLE,
)
def _gated_projection(operands: Operands) -> Types:
    operands.match_left("x", "S K")
    for part in ("gate", "up"):
        operands.match(part, "F K")
        operands.match_optional(f"{part}_bias", "F")
    _match_delta(operands, 2 * operands.shapes.number("F"))
    operands.one_of("activation", ACTIVATIONS)
    return _in_forms(operands, _forms(operands, ("wide", "operand")), "S F")


@_op(
    "rope_kv",
    "qkv table? q_norm? k_norm?",
    "norm q and k (over each head, or over all together), rotate both, store k and v: gives q and the kv token",
    has_effect=True,
    layer=WHOLE,
    num_heads=WHOLE,
    num_kv_heads=WHOLE,
    head_width=WHOLE,
    norm=TEXT,
    eps=MAYBE_FLOAT,
)
def _rope_kv(operands: Operands) -> Types:
    heads, kv_heads = operands.whole("num_heads"), operands.whole("num_kv_heads")
    width = operands.whole("head_width")
    ensure(min(heads, kv_heads, width) > 0, "rope_kv: head counts and width must be positive")
    operands.match("qkv", "T qkv")
    columns = operands.shapes.number("qkv")
    expected = (heads + 2 * kv_heads) * width
    ensure(columns == expected, f"rope_kv: qkv has {columns} columns; its heads have {expected}")
    operands.match_optional("table", "T 2 half")
    if operands.has("table"):
        rotated = 2 * operands.shapes.number("half")
        ensure(rotated <= width, f"rope_kv: rotates {rotated} elements of heads that have {width}")
    norm = operands.one_of("norm", ("none", "head", "full"))
    for name, num_heads in (("q_norm", heads), ("k_norm", kv_heads)):
        operands.match_optional(name, str(num_heads * width if norm == "full" else width))
    has_norm = operands.has("q_norm") or operands.has("k_norm")
    ensure((norm != "none") == has_norm, "rope_kv: norm must be none exactly where no weight is there")
    ensure((operands.attributes["eps"] is not None) == has_norm, "rope_kv: eps is there exactly where a weight is")
    return (TensorType("f32", (*operands.shapes.sizes("T"), heads, width)), TensorType("kv"))


@_op(
    "attend",
    "q kv",
    "attention, with the heads of a token side by side in one row",
    layer=WHOLE,
    scale=FLOAT,
    window=MAYBE_WHOLE,
    softcap=MAYBE_FLOAT,
    kind=MAYBE_TEXT,
    gives=TUPLE,
)
def _attend(operands: Operands) -> Types:
    operands.match("q", "T H D")
    ensure(operands.required("kv").dtype == "kv", "attend: kv must be what rope_kv or kv_write gave")
    window = operands.attributes["window"]
    ensure(window is None or operands.whole("window") > 0, f"attend: window {window!r} sees nothing")
    row = operands.shapes.number("H") * operands.shapes.number("D")
    return _in_forms(operands, _forms(operands, ("wide", "operand")), f"T {row}")


def _forms(operands: Operands, allowed: Sequence[Form]) -> tuple[Form, ...]:
    """Return the forms that the node gives, after checking them and `kind`."""
    given = operands.attributes["gives"]
    gives = tuple(form for form in allowed if isinstance(given, tuple) and form in given)
    ensure(gives == given and gives, f"{operands.op}: gives {given!r}; it must be some of {allowed}, in this order")
    kind = operands.attributes["kind"]
    if "operand" in gives:
        operands.one_of("kind", OPERAND_KINDS)
    else:
        ensure(kind is None, f"{operands.op}: kind is {kind!r} but no operand is given")
    return gives


def _in_forms(operands: Operands, gives: tuple[Form, ...], pattern: str) -> Types:
    """Return one type per form; numerals in `pattern` stand for themselves."""
    shape = tuple(int(letter) if letter.isdigit() else operands.shapes.sizes(letter)[0] for letter in pattern.split())
    kind = operands.attributes["kind"]
    rounded: DType = next((each for each in OPERAND_KINDS if each == kind), "f32")
    return tuple(TensorType(rounded if form == "operand" else "f32", shape) for form in gives)
