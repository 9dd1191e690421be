"""What the storage format of a weight asks of the product that reads it.

The table says of products what `weights.kinds` says of values, and what csrc/ops/linear/format.cpp says of bytes; a
test holds the three together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trivium.base.errors import InternalError
from trivium.base.intmath import align_up
from trivium.ir.graph import OperandKind
from trivium.plan.program import WIDE_GROUP, SumKind

_NUMBERS = 32
"""Values of a block of weights that are numbers."""
_SUPER = 256
"""Values of a block of the K-quants."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """One storage format."""

    name: str
    operand: OperandKind
    """What the left operand of a product is rounded to."""
    block: int
    """Values of a block along K: products run over whole blocks, so their operand is padded to them."""
    sum: SumKind | None = None
    """What the product must know of each group of the operand's units, if anything."""
    span: int = 0
    """Values along K that share a scale, of integers."""

    def padded(self, depth: int) -> int:
        """Return K padded to whole blocks."""
        return align_up(depth, self.block)

    def with_groups(self, group: int) -> WeightFormat:
        """Return the format as products read it whose activations have a scale per `group` values, 32 or 64.

        Formats with a scale for fewer than 64 values take 32 in any case: 64 would save them nothing.
        """
        if group != WIDE_GROUP or self.span < WIDE_GROUP or self.sum is None:
            return self
        return replace(self, operand="q8_wide", sum=SumKind(WIDE_GROUP, self.sum.zero))


def _numbers(name: str, operand: OperandKind) -> WeightFormat:
    return WeightFormat(name, operand, _NUMBERS)


def _codes(name: str, block: int, group: int, zero: int) -> WeightFormat:
    """Enter integers: with an offset that products take off again, or (zero is 0) with a minimum per group."""
    span = group if block == _SUPER else block
    return WeightFormat(name, "q8", block, SumKind(group, zero), span)


FORMATS: Mapping[str, WeightFormat] = {
    each.name: each
    for each in (
        _numbers("f32", "f32t"),
        _numbers("bf16", "bf16"),
        _numbers("f16", "f32t"),
        _codes("i8_c", 32, 32, 128),
        _codes("i8_g32", 32, 32, 128),
        _codes("i8_g64", 64, 32, 128),
        _codes("i8_g128", 128, 32, 128),
        _codes("i4_g32", 32, 32, 8),
        _codes("i4m_g32", 32, 32, 0),
        _codes("i4z_g32", 32, 32, 0),
        _codes("i4z_g64", 64, 32, 0),
        _codes("i4z_g128", 128, 32, 0),
        _codes("i5_g32", 32, 32, 16),
        _codes("i5m_g32", 32, 32, 0),
        _codes("q2_k", _SUPER, 16, 0),
        _codes("q3_k", _SUPER, 16, 4),
        _codes("q4_k", _SUPER, 32, 0),
        _codes("q5_k", _SUPER, 32, 0),
        _codes("q6_k", _SUPER, 16, 32),
        _codes("iq4", 32, 32, 128),
    )
}
"""By name, as the kernels list them."""


def format_named(name: str) -> WeightFormat:
    """Return a format.

    Raises:
        InternalError: There is none of that name; the message lists them.
    """
    if name not in FORMATS:
        raise InternalError(f"no weight format {name!r}; known are: {', '.join(FORMATS)}")
    return FORMATS[name]
