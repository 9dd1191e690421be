"""What an op declares: operands, attributes, and the rule that gives the types of its outputs.

Ops are entered in tables by decorating their shape rules:

::

    @op(PRIMITIVES, "gather_rows", "x rows", "x[rows]")
    def _gather_rows(operands: Operands) -> Types:
        operands.match("x", "T M")
        operands.match("rows", "R", "i32")
        return operands.give("R M")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trivium.base.errors import InternalError, ensure
from trivium.ir.graph import OPERAND_KINDS, Attribute, DType, TensorType
from trivium.ir.shapes import Shapes

OperandTypes = Mapping[str, TensorType | None]
Attributes = Mapping[str, Attribute]
Types = tuple[TensorType, ...]

ACTIVATIONS = ("silu", "gelu_tanh")

FLOAT = (float,)
WHOLE = (int,)
TEXT = (str,)
TUPLE = (tuple,)
MAYBE_FLOAT = (float, type(None))
MAYBE_WHOLE = (int, type(None))
MAYBE_TEXT = (str, type(None))


@dataclass(frozen=True, slots=True)
class OpSchema:
    """One line of the vocabulary."""

    name: str
    inputs: tuple[str, ...]
    """Operand names in order; a trailing `?` marks an optional one."""
    attributes: Mapping[str, tuple[type, ...]]
    """Attribute names and the Python types they may have."""
    infer: Callable[[OperandTypes, Attributes], Types]
    """Types of the outputs; raises `InternalError` when operands do not fit."""
    meaning: str
    has_effect: bool = False
    matrices: tuple[str, ...] = ()
    """Operands [N, K] that the op multiplies by: bound as products want them."""
    tables: tuple[str, ...] = ()
    """Operands [V, M] whose rows the op looks up."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Operand names without their marks."""
        return tuple(name.rstrip("?") for name in self.inputs)


@dataclass(frozen=True, slots=True)
class Operands:
    """Reads operands and attributes by name, with the shapes that matched so far."""

    op: str
    types: OperandTypes
    attributes: Attributes
    shapes: Shapes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shapes", Shapes(self.op))

    def match(self, name: str, pattern: str, dtype: DType = "f32") -> None:
        """Match a required operand."""
        self.shapes.match(name, self.required(name), pattern, dtype)

    def match_optional(self, name: str, pattern: str, dtype: DType = "f32") -> None:
        """Match an operand if it is there."""
        if self.has(name):
            self.match(name, pattern, dtype)

    def match_left(self, name: str, pattern: str) -> None:
        """Match the left operand of a product: float32 rows, or rows rounded to any kind of operand."""
        dtype = self.required(name).dtype
        self.shapes.match(name, self.required(name), pattern, dtype if dtype in OPERAND_KINDS else "f32")

    def has(self, name: str) -> bool:
        """Whether an optional operand is there."""
        return self.types.get(name) is not None

    def required(self, name: str) -> TensorType:
        """Return the type of an operand that must be there."""
        found = self.types[name]
        if found is None:
            raise InternalError(f"{self.op}: {name} is missing")
        return found

    def give(self, pattern: str) -> Types:
        """Return one float32 output of these sizes."""
        return (TensorType("f32", self.shapes.sizes(pattern)),)

    def whole(self, attribute: str) -> int:
        """Return a whole-number attribute."""
        value = self.attributes[attribute]
        if not isinstance(value, int):
            raise InternalError(f"{self.op}: {attribute} is {value!r}; it must be a whole number")
        return value

    def one_of(self, attribute: str, allowed: Sequence[str]) -> str:
        """Return a textual attribute that has one of some values."""
        value = self.attributes[attribute]
        ensure(value in allowed, f"{self.op}: {attribute} {value!r} is not one of {', '.join(allowed)}")
        return str(value)


ShapeRule = Callable[[Operands], Types]


def op(
    table: dict[str, OpSchema],
    name: str,
    inputs: str,
    meaning: str,
    *,
    has_effect: bool = False,
    matrices: str = "",
    tables: str = "",
    **attributes: tuple[type, ...],
) -> Callable[[ShapeRule], ShapeRule]:
    """Enter an op whose shape rule is the decorated function.

    Args:
        table: Where it is entered.
        name: Name of the op.
        inputs: Operand names in order, separated by spaces; `?` marks optional ones.
        meaning: What it computes, in one line.
        has_effect: Whether it must run even if nothing reads its outputs.
        matrices: See `OpSchema.matrices`; separated by spaces.
        tables: See `OpSchema.tables`; separated by spaces.
        **attributes: Python types that each attribute may have.
    """

    def enter(rule: ShapeRule) -> ShapeRule:
        def infer(types: OperandTypes, given: Attributes) -> Types:
            return rule(Operands(name, types, given))

        table[name] = OpSchema(
            name,
            tuple(inputs.split()),
            attributes,
            infer,
            meaning,
            has_effect,
            tuple(matrices.split()),
            tuple(tables.split()),
        )
        return rule

    return enter
