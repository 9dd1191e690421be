"""Storage formats as tests name them."""

from __future__ import annotations

from trivium.compile.formats import WeightFormat, format_named
from trivium.plan.program import OPERAND_GROUP, WIDE_GROUP


def form_named(text: str) -> WeightFormat:
    """Return a format by its name: `i8_g64`, or `i8_g64 wide` where activations have a scale per 64 values."""
    name, _, width = text.partition(" ")
    return format_named(name).with_groups(WIDE_GROUP if width == "wide" else OPERAND_GROUP)
