"""What becomes of numbers that are rounded to an operand of a product; the native kernels compute the same.

The array API knows no bits, so bfloat16 is reached through the view method that NumPy and torch share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Array = Any

GROUPS: Mapping[str, int] = {"q8": 32, "q8_wide": 64}
"""Elements of a row that share a scale, of the kinds that are whole numbers; the last group may be shorter."""

LARGEST_UNIT = 127

_TINY = 2.0**-120
"""Below it 127 / a would overflow; groups whose largest element is smaller become zeros."""

_HALF_OF_DROPPED, _DROPPED_BITS, _QUIET = 0x7FFF, 16, 0x400000


def round_operand(xp: Any, x: Array, kind: str) -> Array:
    """Round float32 rows [..., K] to an operand kind, and return what they then mean, as float32.

    Args:
        xp: Array-API namespace, NumPy's or torch's.
        x: Rows; not changed.
        kind: One of `graph.OPERAND_KINDS`.
    """
    return _ROUNDINGS[kind](xp, x)


def _keep(_xp: Any, x: Array) -> Array:
    return x


def _bf16(xp: Any, x: Array) -> Array:
    """Round to the nearest number whose significand has 8 bits, ties to even; NaN stays NaN.

    ::

        bits      sign exponent fraction(7) | dropped(16)
        rounded   + 0x7FFF + lowest kept bit, then dropped := 0: carries upwards exactly where it must
    """
    bits = x.view(xp.int32)
    # A NaN whose fraction is all ones would carry into the sign: make it quiet instead.
    is_nan = xp.isnan(x)
    rounded = bits + _HALF_OF_DROPPED + ((bits >> _DROPPED_BITS) & 1)
    rounded = xp.where(is_nan, bits | _QUIET, rounded)
    return ((rounded >> _DROPPED_BITS) << _DROPPED_BITS).view(xp.float32)


def _q8(xp: Any, x: Array, *, group: int) -> Array:
    """Per group: a = largest |x|, scale = a / 127, unit = round to even(x * (127 / a)), value = unit * scale.

    Groups without a number of at least 2 ** -120 become zeros; a NaN or an infinity makes its whole group NaN.
    """
    depth = x.shape[-1]
    whole = depth - depth % group
    groups = xp.reshape(x[..., :whole], (*x.shape[:-1], whole // group, group))
    pieces = [xp.reshape(_q8_groups(xp, groups), (*x.shape[:-1], whole))] if whole else []
    pieces += [_q8_groups(xp, x[..., whole:])] if whole < depth else []
    return pieces[0] if len(pieces) == 1 else xp.concat(pieces, axis=-1)


def _q8_groups(xp: Any, x: Array) -> Array:
    """Round groups that lie along the last axis."""
    largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
    zeros = xp.zeros_like(largest)
    is_finite = xp.isfinite(largest)
    is_plain = is_finite & (largest >= _TINY)
    divisor = xp.where(is_plain, largest, zeros + 1.0)
    inverse = xp.where(is_plain, LARGEST_UNIT / divisor, zeros)
    scale = xp.where(is_plain, divisor / LARGEST_UNIT, xp.where(is_finite, zeros, zeros + float("nan")))
    units = xp.round(xp.where(is_plain, x, xp.zeros_like(x)) * inverse)
    return units * scale


_ROUNDINGS: Mapping[str, Callable[[Any, Array], Array]] = {
    "f32t": _keep,
    "bf16": _bf16,
    **{kind: partial(_q8, group=group) for kind, group in GROUPS.items()},
}
