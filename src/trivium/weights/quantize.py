"""Quantizing at load: float32 values to records of codes, and what `--weights` asks for.

    choice   panel format      what is lost
    auto     the tensor's own  nothing
    f32      f32               nothing
    bf16     bf16              rounded to nearest even: up to 2^-8 of a value
    int8     i8_g32            rounded to nearest: up to half a step, which is greatest |w| of 32 values / 127
             i8_g64            likewise of 64, where activations have groups of 64 too
    int4     i4m_g32           rounded to nearest: up to half a step, which is (greatest - least) of 32 values / 15, and
                               the rounding of the least value to float16. Lossy: for when memory decides
             i8_g32 (i8_g64)   for the embedding and the head, where four bits cost more than in all layers together

A choice holds for every matrix, whatever format the checkpoint has it in; vectors (norms, biases) stay float32.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError, ensure
from trivium.weights.kinds import PANEL_FORMATS, Codes

Floats = NDArray[np.float32]
WeightsChoice = Literal["auto", "f32", "bf16", "int8", "int4"]

_CHOSEN = {"f32": "f32", "bf16": "bf16", "int8": "i8_g32", "int4": "i4m_g32"}
_VOCABULARY = frozenset({"embed_tokens.weight", "lm_head.weight"})
_CHOSEN_VOCABULARY = {"int4": "i8_g32"}
_WIDE = {"i8_g32": "i8_g64"}
"""What is made instead where activations have groups of 64 values: fewer scales on both sides."""
_WIDE_GROUP = 64
_LARGEST_HALF = np.float32(65504)


def chosen_format(choice: WeightsChoice, own: str, name: str, activation_group: int = 32) -> str:
    """Return the panel format that `choice` gives to the matrix `name` (canonical) whose own is `own`.

    Args:
        choice: As `--weights` says it.
        own: The checkpoint's format.
        name: Canonical name of the matrix.
        activation_group: Values of the activations that share a scale: 32 or 64.
    """
    ensure(choice in get_args(WeightsChoice), f"weights is {choice!r}")
    if choice == "auto":
        return own
    known = _CHOSEN[choice]
    made = _CHOSEN_VOCABULARY.get(choice, known) if name in _VOCABULARY else known
    return _WIDE.get(made, made) if activation_group == _WIDE_GROUP else made


def quantize(values: Floats, into: Codes, *, where: str) -> None:
    """Fill a record with the nearest codes of `values`.

    Args:
        values: [N, K] float32.
        into: Record of f32, bf16, i8_c, i8_g32, i8_g64, i8_g128 or i4m_g32. The last group of a row may be shorter.
        where: Names the values in errors.

    Raises:
        CheckpointError: A value is not finite, or so large that its scale is beyond float16.
        InternalError: The record has another format.

    Error: int8 |w - v| <= d / 2, with d <= greatest |w| / 127 * (1 + 2^-10) + 2^-24. int4 |w - v| <= d / 2 + e, with
    e = 2^-11 |least| and d <= (greatest - least + e) / 15 * (1 + 2^-10) + 2^-24; 2^-24 is float16's least step.
    """
    if not np.isfinite(values).all():
        raise CheckpointError(f"parameter {where} holds values that are not finite")
    if into.format == "f32":
        into.codes[:] = values
    elif into.format == "bf16":
        into.codes[:] = _to_bf16(values)
    elif into.format.startswith("i8_"):
        _symmetric(values, into, where)
    else:
        ensure(into.format == "i4m_g32", f"nothing quantizes to {into.format}")
        _asymmetric(values, into, where)


def _to_bf16(values: Floats) -> NDArray[np.uint16]:
    # round to nearest even: add just under half a unit, and the lowest bit that stays
    bits = np.ascontiguousarray(values).view(np.uint32)
    lowest = bits >> np.uint32(16) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + lowest >> np.uint32(16)).astype(np.uint16)


def _grouped(values: Floats, span: int) -> Floats:
    """View rows by groups, [N, groups, span]; a last, shorter group is filled up with its own first value."""
    num_rows, depth = values.shape
    missing = -depth % span
    if missing:
        start = depth - depth % span
        values = np.concatenate([values, np.repeat(values[:, start : start + 1], missing, axis=1)], axis=1)
    return values.reshape(num_rows, -1, span)


def _ungrouped(codes: NDArray[Any], depth: int) -> NDArray[Any]:
    return codes.reshape(len(codes), -1)[:, :depth]


def _symmetric(values: Floats, into: Codes, where: str) -> None:
    span = PANEL_FORMATS[into.format].ingredients["scales"].span or into.depth
    groups = _grouped(values, span)
    greatest = np.abs(groups).max(axis=2)
    scales = greatest / np.float32(127)
    if into.arrays["scales"].dtype == np.float16:
        scales = _as_halves(scales, where)
        # Rounding a scale down may push the greatest value past code 127: then the next float16 is the scale.
        with np.errstate(divide="ignore", invalid="ignore"):  # a scale rounded to 0 clips; 0 / 0 does not
            clips = np.rint(greatest / scales) > np.float32(127)
        scales = np.where(clips, np.nextafter(scales.astype(np.float16), np.float16(np.inf)), scales).astype(np.float32)
    codes = np.rint(_divide(groups, scales[:, :, None])) + np.float32(128)
    into.codes[:] = _ungrouped(codes, into.depth)
    into.arrays["scales"][:] = scales


def _asymmetric(values: Floats, into: Codes, where: str) -> None:
    groups = _grouped(values, PANEL_FORMATS[into.format].ingredients["scales"].span)
    least = _as_halves(groups.min(axis=2), where)
    scales = _as_halves((groups.max(axis=2) - least) / np.float32(15), where)
    codes = np.clip(np.rint(_divide(groups - least[:, :, None], scales[:, :, None])), 0, 15)
    into.codes[:] = _ungrouped(codes, into.depth)
    into.arrays["scales"][:] = scales
    into.arrays["mins"][:] = least


def _as_halves(values: Floats, where: str) -> Floats:
    """Round to float16 numbers, still as float32."""
    if np.abs(values).max(initial=0) > _LARGEST_HALF:
        raise CheckpointError(f"parameter {where} holds values too large for float16 scales; use --weights bf16 or f32")
    return values.astype(np.float16).astype(np.float32)


def _divide(values: Floats, scales: Floats) -> Floats:
    """Divide, with 0 where the scale is 0: there all values are."""
    out = np.zeros(np.broadcast_shapes(values.shape, scales.shape), np.float32)
    return np.divide(values, scales, out=out, where=scales != 0)
