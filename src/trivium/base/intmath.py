"""Integer arithmetic with names."""

from __future__ import annotations


def ceil_div(value: int, divisor: int) -> int:
    """Divide and round towards plus infinity; `divisor` is positive."""
    return -(-value // divisor)


def align_up(value: int, multiple: int) -> int:
    """Round `value` up to the next multiple of `multiple`, which is positive."""
    return ceil_div(value, multiple) * multiple
