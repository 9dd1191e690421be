"""From tensors in a checkpoint to records of codes in a panel format, without changing what they mean.

The table `OWN_FORMATS` says which panel format keeps a storage format exactly: dequantizing the record gives the same
float32 as dequantizing the tensor, bit for bit. Formats that no panel format keeps are widened to float32 panels, which
is exact too, and larger:

    F16      its values are not bfloat16's; `--weights bf16` halves it and rounds
    IQ4_XS   a product of float16 scale, 6-bit group scale and codebook value, which no panel format has

Any other panel format is reached through float32 and `weights.quantize`, and loses what that says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError, InternalError, ensure
from trivium.weights import blocks
from trivium.weights.formats import FORMATS, to_float32
from trivium.weights.kinds import Codes
from trivium.weights.quantize import quantize
from trivium.weights.spread import spread
from trivium.weights.stored import StoredTensor, Tensor
from trivium.weights.zero_points import ZeroPointTensor

Bytes = NDArray[np.uint8]
Rows = NDArray[np.intp] | slice | None
Decoder = Callable[[Bytes, Codes], None]
"""Fill a record from blocks [R * blocks per row, block_bytes] of its R rows."""

OWN_FORMATS: Mapping[str, str] = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "Q8_0": "i8_g32", "Q4_0": "i4_g32", "Q4_1": "i4m_g32",
    "Q5_0": "i5_g32", "Q5_1": "i5m_g32", "Q2_K": "q2_k", "Q3_K": "q3_k", "Q4_K": "q4_k", "Q5_K": "q5_k",
    "Q6_K": "q6_k", "IQ4_NL": "iq4", "IQ4_XS": "f32",
}  # fmt: skip
"""Storage format to the panel format that keeps it exactly."""

_CHUNK_ELEMENTS = 1 << 19


def own_format(tensor: Tensor) -> str:
    """Return the panel format that keeps a tensor exactly; nothing of it is read.

    Raises:
        CheckpointError: Its format is not one that can be multiplied with.
    """
    if isinstance(tensor, ZeroPointTensor):
        return tensor.panel_format
    if tensor.format not in OWN_FORMATS:
        raise CheckpointError(
            f"{tensor.name}: format {tensor.format} has no packed form; known are {', '.join(OWN_FORMATS)}"
        )
    return OWN_FORMATS[tensor.format]


def read_codes(tensor: Tensor, panel_format: str, *, rows: Rows = None, offset: float = 0.0) -> Codes:
    """Read a matrix, or some of its rows, as a record.

    Args:
        tensor: A matrix [N, K].
        panel_format: Key of `PANEL_FORMATS`. Exact where it is the tensor's own and there is no offset; otherwise
            what `weights.quantize` makes of the float32 values.
        rows: Which rows, in which order; `None` takes all. Only those are read.
        offset: Added to every value, in float32.

    Returns:
        A record of new arrays, [len(rows), K].

    Raises:
        CheckpointError: A value or scale is not finite, or does not fit `panel_format`.
        InternalError: The tensor is not a matrix.

    Cost: 1 to 3 ns per value and core; large tensors use every usable core. Temporaries stay below about 8 MiB a core.
    """
    ensure(len(tensor.shape) == 2, f"{tensor.name} has shape {list(tensor.shape)}; only matrices are packed")  # noqa: PLR2004
    ids = _row_ids(rows, tensor.shape[0])
    record = Codes.empty(panel_format, len(ids), tensor.shape[1])
    is_exact = offset == 0.0 and panel_format == own_format(tensor)
    step = max(1, _CHUNK_ELEMENTS // max(1, record.depth))

    def fill(start: int) -> None:
        into, chosen = record.part(start, start + step), ids[start : start + step]
        if is_exact:
            _read_exactly(tensor, chosen, into)
        else:
            values = tensor.float32(_compact(chosen))
            quantize(values + np.float32(offset) if offset else values, into, where=tensor.name)
        _require_finite(into, tensor.name)
        _forget(tensor, chosen)

    spread(fill, range(0, len(ids), step), record.codes.size)
    return record


def decode(packed: Bytes, format_name: str, into: Codes) -> None:
    """Fill a record from the bytes of its rows, whatever they say: NaN and infinity included.

    Args:
        packed: The rows' bytes, one row after the other.
        format_name: Key of `OWN_FORMATS`.
        into: Record of the format that it maps to.

    Raises:
        InternalError: The record has another format.
    """
    ensure(OWN_FORMATS[format_name] == into.format, f"{format_name} was asked for as {into.format}")
    _DECODERS[format_name](packed.reshape(-1, FORMATS[format_name].block_bytes), into)


def _read_exactly(tensor: Tensor, ids: NDArray[np.intp], into: Codes) -> None:
    if isinstance(tensor, ZeroPointTensor):
        tensor.fill(ids, into)
    elif isinstance(tensor, StoredTensor):
        by_row = tensor.raw().reshape(tensor.shape[0], -1)
        decode(by_row[_compact(ids)].reshape(-1), tensor.format, into)
    else:
        raise InternalError(f"{tensor.name} is a {type(tensor).__name__}, for which there is no decoder")


def _forget(tensor: Tensor, ids: NDArray[np.intp]) -> None:
    """Give back the memory of rows that were read: packing reads each once, and all of a checkpoint."""
    if isinstance(tensor, StoredTensor):
        row_bytes = tensor.num_bytes // tensor.shape[0]
        start, end = int(ids.min()), int(ids.max()) + 1
        tensor.file.forget(tensor.offset + start * row_bytes, tensor.offset + end * row_bytes)


def _row_ids(rows: Rows, num_rows: int) -> NDArray[np.intp]:
    everything = np.arange(num_rows, dtype=np.intp)
    return everything if rows is None else everything[rows]


def _compact(ids: NDArray[np.intp]) -> NDArray[np.intp] | slice:
    """Return rows that follow each other as a slice, which reads them without a copy."""
    is_run = len(ids) > 0 and ids[-1] - ids[0] == len(ids) - 1 and bool((np.diff(ids) == 1).all())
    return slice(int(ids[0]), int(ids[-1]) + 1) if is_run else ids


def _require_finite(record: Codes, name: str) -> None:
    if record.format == "bf16":
        exponent = np.uint16(0x7F80)
        is_finite = not bool(np.any((record.codes & exponent) == exponent))
    else:
        floats = (array for array in record.arrays.values() if array.dtype.kind == "f")
        is_finite = all(bool(np.isfinite(array).all()) for array in floats)
    if not is_finite:
        raise CheckpointError(f"parameter {name} holds values that are not finite")


def _by_block(into: Codes, name: str, packed: Bytes) -> NDArray[Any]:
    """View an array of a record, which has no gaps, by blocks: [blocks, entries per block]."""
    return into.arrays[name].reshape(len(packed), -1)


def _widened(format_name: str) -> Decoder:
    def fill(packed: Bytes, into: Codes) -> None:
        into.codes[:] = to_float32(packed.reshape(-1), format_name, into.codes.shape)

    return fill


def _f16(packed: Bytes, into: Codes) -> None:
    into.codes[:] = packed.view("<f2").reshape(into.codes.shape)


def _bf16(packed: Bytes, into: Codes) -> None:
    into.codes[:] = packed.view("<u2").reshape(into.codes.shape)


def _q8_0(packed: Bytes, into: Codes) -> None:
    # scale f16 | 32 x int8; flipping the sign bit adds 128
    np.bitwise_xor(packed[:, 2:], np.uint8(0x80), out=_by_block(into, "codes", packed))
    _by_block(into, "scales", packed)[:] = blocks.half(packed, 0)


def _nibbles(packed: Bytes, into: Codes) -> None:
    # scale f16 | 16 bytes of nibbles
    blocks.nibbles(packed[:, 2:], _by_block(into, "codes", packed))
    _by_block(into, "scales", packed)[:] = blocks.half(packed, 0)


def _q4_1(packed: Bytes, into: Codes) -> None:
    # scale f16 | minimum f16 | 16 bytes of nibbles
    blocks.nibbles(packed[:, 4:], _by_block(into, "codes", packed))
    _by_block(into, "scales", packed)[:] = blocks.half(packed, 0)
    _by_block(into, "mins", packed)[:] = blocks.half(packed, 2)


def _q5_0(packed: Bytes, into: Codes) -> None:
    # scale f16 | 4 bytes of fifth bits | 16 bytes of nibbles
    blocks.five_bits(packed[:, 2:6], packed[:, 6:], _by_block(into, "codes", packed))
    _by_block(into, "scales", packed)[:] = blocks.half(packed, 0)


def _q5_1(packed: Bytes, into: Codes) -> None:
    # scale f16 | minimum f16 | 4 bytes of fifth bits | 16 bytes of nibbles
    blocks.five_bits(packed[:, 4:8], packed[:, 8:], _by_block(into, "codes", packed))
    _by_block(into, "scales", packed)[:] = blocks.half(packed, 0)
    _by_block(into, "mins", packed)[:] = blocks.half(packed, 2)


def _q2_k(packed: Bytes, into: Codes) -> None:
    # 16 bytes: scale (low nibble) and minimum (high) of a group | 64 bytes of bit pairs | scale f16 | minimum f16
    blocks.two_bits(packed[:, 16:80], _by_block(into, "codes", packed))
    np.bitwise_and(packed[:, :16], np.uint8(0x0F), out=_by_block(into, "subs", packed))
    np.right_shift(packed[:, :16], np.uint8(4), out=_by_block(into, "sub_mins", packed))
    _by_block(into, "supers", packed)[:] = blocks.half(packed, 80)
    _by_block(into, "super_mins", packed)[:] = blocks.half(packed, 82)


def _q3_k(packed: Bytes, into: Codes) -> None:
    # 32 bytes of third bits | 64 bytes of bit pairs | 12 bytes of group scales | scale f16
    blocks.three_bits(packed[:, :32], packed[:, 32:96], _by_block(into, "codes", packed))
    _by_block(into, "subs", packed)[:] = blocks.six_bit_scales(packed[:, 96:108])
    _by_block(into, "supers", packed)[:] = blocks.half(packed, 108)


def _group_scales(packed: Bytes, into: Codes) -> None:
    # scale f16 | minimum f16 | 12 bytes of group scales and minima
    scales, minima = blocks.scales_and_minima(packed[:, 4:16])
    _by_block(into, "subs", packed)[:] = scales
    _by_block(into, "sub_mins", packed)[:] = minima
    _by_block(into, "supers", packed)[:] = blocks.half(packed, 0)
    _by_block(into, "super_mins", packed)[:] = blocks.half(packed, 2)


def _q4_k(packed: Bytes, into: Codes) -> None:
    # 16 bytes of scales | 128 bytes of nibbles
    blocks.nibble_pairs(packed[:, 16:], _by_block(into, "codes", packed))
    _group_scales(packed, into)


def _q5_k(packed: Bytes, into: Codes) -> None:
    # 16 bytes of scales | 32 bytes of fifth bits | 128 bytes of nibbles
    blocks.five_bit_pairs(packed[:, 16:48], packed[:, 48:], _by_block(into, "codes", packed))
    _group_scales(packed, into)


def _q6_k(packed: Bytes, into: Codes) -> None:
    # 192 bytes of codes | 16 x int8 group scales | scale f16
    blocks.six_bits(packed, _by_block(into, "codes", packed))
    _by_block(into, "subs", packed)[:] = packed[:, 192:208].view(np.int8)
    _by_block(into, "supers", packed)[:] = blocks.half(packed, 208)


_DECODERS: Mapping[str, Decoder] = {
    "F32": _widened("F32"), "F16": _f16, "BF16": _bf16, "Q8_0": _q8_0, "Q4_0": _nibbles, "Q4_1": _q4_1,
    "Q5_0": _q5_0, "Q5_1": _q5_1, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": _nibbles, "IQ4_XS": _widened("IQ4_XS"),
}  # fmt: skip
