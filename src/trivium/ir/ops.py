"""The ops: what each takes, what it gives, and in one line what it means.

`OPS` is the whole vocabulary of graphs. The arithmetic behind each line is in `ir.meaning`, once, for every array
library; which kernels run it is decided by executors.

Letters: T tokens, R wanted rows, M model width, N and K the sizes of a product, H query heads, G KV heads, D head
width, V vocabulary. Rows never mix: row t of every output depends on row t of the inputs, save in `attention`, which
reads the KV of the row's own request, and `gather_rows`, which picks rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from trivium.base.errors import InternalError, ensure
from trivium.config.model import RopeConfig
from trivium.ir.graph import Attribute, Dim, TensorType
from trivium.ir.shapes import Shapes

Operands = Mapping[str, TensorType | None]
Attributes = Mapping[str, Attribute]
ShapeRule = Callable[[Operands, Attributes], tuple[TensorType, ...]]

ACTIVATIONS = ("silu", "gelu_tanh")


@dataclass(frozen=True, slots=True)
class OpSchema:
    """One line of the vocabulary."""

    name: str
    inputs: tuple[str, ...]
    """Operand names in order; a trailing `?` marks an optional one."""
    attributes: Mapping[str, tuple[type, ...]]
    """Attribute names and the Python types they may have."""
    infer: ShapeRule
    """Types of the outputs; raises `InternalError` when operands do not fit."""
    meaning: str
    has_effect: bool = False

    @property
    def input_names(self) -> tuple[str, ...]:
        """Operand names without their marks."""
        return tuple(name.rstrip("?") for name in self.inputs)


OPS: dict[str, OpSchema] = {}


@dataclass(frozen=True, slots=True)
class _Operands:
    """Reads operands and attributes by name, with the shapes that matched so far."""

    op: str
    types: Operands
    attributes: Attributes
    shapes: Shapes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", Shapes(self.op))

    def match(self, name: str, pattern: str, dtype: str = "f32") -> None:
        """Match a required operand."""
        found = self.types[name]
        if found is None:
            raise InternalError(f"{self.op}: {name} is missing")
        self.shapes.match(name, found, pattern, "i32" if dtype == "i32" else "f32")

    def match_optional(self, name: str, pattern: str) -> None:
        """Match an operand if it is there."""
        if self.types.get(name) is not None:
            self.match(name, pattern)

    def give(self, pattern: str) -> tuple[TensorType, ...]:
        """Return one float output of these sizes."""
        return (TensorType("f32", self.shapes.sizes(pattern)),)

    def whole(self, attribute: str) -> int:
        """Return a whole-number attribute."""
        value = self.attributes[attribute]
        if not isinstance(value, int):
            raise InternalError(f"{self.op}: {attribute} is {value!r}; it must be a whole number")
        return value


def _op(
    name: str, inputs: str, meaning: str, *, has_effect: bool = False, **attributes: tuple[type, ...]
) -> Callable[[Callable[[_Operands], tuple[TensorType, ...]]], Callable[[_Operands], tuple[TensorType, ...]]]:
    """Enter an op whose shape rule is the decorated function."""

    def enter(rule: Callable[[_Operands], tuple[TensorType, ...]]) -> Callable[[_Operands], tuple[TensorType, ...]]:
        def infer(types: Operands, given: Attributes) -> tuple[TensorType, ...]:
            return rule(_Operands(name, types, given))

        OPS[name] = OpSchema(name, tuple(inputs.split()), attributes, infer, meaning, has_effect)
        return rule

    return enter


_FLOAT = (float,)
_WHOLE = (int,)
_MAYBE_FLOAT = (float, type(None))
_MAYBE_WHOLE = (int, type(None))


@_op("embed", "token_ids weight embeds?", "weight[token_ids] * scale; rows of embeds win where not NaN", scale=_FLOAT)
def _embed(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("token_ids", "T", "i32")
    operands.match("weight", "V M")
    operands.match_optional("embeds", "T M")
    return operands.give("T M")


@_op("rms_norm", "x weight", "x / sqrt(mean(x**2) + eps) * weight, over the last axis", eps=_FLOAT)
def _rms_norm(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "... N")
    operands.match("weight", "N")
    return operands.give("... N")


@_op("gemm", "x weight bias? delta?", "x @ weight.T + bias + delta; each element one sum over k in ascending order")
def _gemm(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "T K")
    operands.match("weight", "N K")
    operands.match_optional("bias", "N")
    operands.match_optional("delta", "T N")
    return operands.give("T N")


@_op("split", "x", "consecutive pieces of the last axis", sizes=(tuple,))
def _split(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "... N")
    sizes = operands.attributes["sizes"]
    if not isinstance(sizes, tuple):
        return ()
    pieces = [size for size in sizes if isinstance(size, int)]
    total = operands.shapes.number("N")
    ensure(sum(pieces) == total and min(pieces) > 0, f"split: sizes {sizes} do not add up to {total}")
    leading = operands.shapes.sizes("...")
    return tuple(TensorType("f32", (*leading, size)) for size in pieces)


@_op("reshape", "x", "the same elements in row-major order under another shape", shape=(tuple,))
def _reshape(operands: _Operands) -> tuple[TensorType, ...]:
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
def _rope_table(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("positions", "T", "i32")
    operands.match("reach", "T", "i32")
    rope = operands.attributes["rope"]
    if not isinstance(rope, RopeConfig):
        return ()
    ensure(rope.rotary_dim % 2 == 0, f"rope_table: rotary_dim {rope.rotary_dim} is odd")
    return (TensorType("f32", (*operands.shapes.sizes("T"), 2, rope.rotary_dim // 2)),)


@_op("rope", "x table", "rotate the pairs (i, i + rotary_dim / 2) of each head's first rotary_dim elements")
def _rope(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "T H D")
    operands.match("table", "T 2 half")
    width, half = operands.shapes.number("D"), operands.shapes.number("half")
    ensure(2 * half <= width, f"rope: rotates {2 * half} elements of heads that have {width}")
    return operands.give("T H D")


@_op("kv_write", "k v", "store K and V of the step's tokens in the KV store", has_effect=True, layer=_WHOLE)
def _kv_write(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("k", "T G D")
    operands.match("v", "T G D")
    return (TensorType("kv"),)


@_op(
    "attention",
    "q kv",
    "per head: softmax(softcap(q . K * scale) over the request's positions p - window < j <= p) . V",
    layer=_WHOLE,
    scale=_FLOAT,
    window=_MAYBE_WHOLE,
    softcap=_MAYBE_FLOAT,
)
def _attention(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("q", "T H D")
    token = operands.types["kv"]
    ensure(token is not None and token.dtype == "kv", "attention: kv must be what kv_write gave")
    window = operands.attributes["window"]
    ensure(window is None or operands.whole("window") > 0, f"attention: window {window!r} sees nothing")
    return operands.give("T H D")


@_op("gated", "gate up", "activation(gate) * up", activation=(str,))
def _gated(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("gate", "...")
    operands.match("up", "...")
    activation = operands.attributes["activation"]
    ensure(activation in ACTIVATIONS, f"gated: activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    return operands.give("...")


@_op("add", "a b", "a + b")
def _add(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("a", "...")
    operands.match("b", "...")
    return operands.give("...")


@_op("mul", "a b", "a * b")
def _mul(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("a", "...")
    operands.match("b", "...")
    return operands.give("...")


@_op("scale", "x", "x * factor", factor=_FLOAT)
def _scale(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "...")
    return operands.give("...")


@_op("softcap", "x", "cap * tanh(x / cap)", cap=_FLOAT)
def _softcap(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "...")
    return operands.give("...")


@_op("gather_rows", "x rows", "x[rows]")
def _gather_rows(operands: _Operands) -> tuple[TensorType, ...]:
    operands.match("x", "T M")
    operands.match("rows", "R", "i32")
    return operands.give("R M")
