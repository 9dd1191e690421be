"""Storage formats of tensors, and their exact conversion to float32.

A format packs a row's elements into blocks of fixed length and size. `FORMATS` is the table of what can be
dequantized; `SIZES` adds formats that may lie in a checkpoint unused. The common GGUF formats have dequantizers
here, vectorised over large runs of blocks; the rare ones use the gguf library. All equal that library bit for bit.

Source: block layouts of the GGUF/GGML formats as the gguf Python package implements them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError
from trivium.base.intmath import ceil_div

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Dequantizer = Callable[[Bytes, Floats], None]
"""Fill out[blocks, block_len] float32 from packed[blocks, block_bytes] uint8."""

_LOW = np.uint8(0x0F)
_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32 out: temporaries stay in the second-level cache
_PARALLEL_ELEMENTS = 1 << 21  # below this a thread costs more than it saves


@dataclass(frozen=True, slots=True)
class Format:
    """How elements are packed: `block_len` elements of a row take `block_bytes` bytes."""

    name: str
    block_len: int
    block_bytes: int
    dequantize: Dequantizer | None = None

    def num_bytes(self, num_elements: int) -> int:
        """Return the size of `num_elements` elements, a multiple of `block_len`."""
        return num_elements // self.block_len * self.block_bytes


def to_float32(packed: Bytes, format_name: str, shape: tuple[int, ...]) -> Floats:
    """Dequantize a whole tensor.

    Args:
        packed: The tensor's bytes, [num_bytes].
        format_name: Key of `FORMATS`.
        shape: Shape of the result; rows (last axis) are whole blocks.

    Returns:
        A new array of `shape`.

    Raises:
        CheckpointError: The format cannot be dequantized.

    Cost: about 1 ns per element and core; tensors over two million elements use every usable core.
    """
    known = FORMATS.get(format_name)
    if known is None or known.dequantize is None:
        raise CheckpointError(f"format {format_name} cannot be dequantized; known are {', '.join(FORMATS)}")
    dequantize = known.dequantize
    out = np.empty(shape, np.float32)
    packed_blocks = packed.reshape(-1, known.block_bytes)
    out_blocks = out.reshape(-1, known.block_len)
    chunk = max(1, _CHUNK_ELEMENTS // known.block_len)
    starts = range(0, len(packed_blocks), chunk)

    def fill(start: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # NaN and infinity in the file stay what they are
            dequantize(packed_blocks[start : start + chunk], out_blocks[start : start + chunk])

    num_threads = min(_usable_cores(), ceil_div(out.size, _PARALLEL_ELEMENTS))
    if num_threads <= 1:
        for start in starts:
            fill(start)
        return out
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in pool.map(fill, starts):
            pass
    return out


def _usable_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _half(packed: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block as float32, [blocks, 1]."""
    return np.ascontiguousarray(packed[:, start : start + 2]).view(np.float16).astype(np.float32)


def _f32(packed: Bytes, out: Floats) -> None:
    np.copyto(out.reshape(-1), packed.reshape(-1).view("<f4"))


def _f16(packed: Bytes, out: Floats) -> None:
    np.copyto(out.reshape(-1), packed.reshape(-1).view("<f2"))


def _bf16(packed: Bytes, out: Floats) -> None:
    np.left_shift(packed.reshape(-1).view("<u2"), np.uint32(16), out=out.reshape(-1).view(np.uint32), dtype=np.uint32)


def _q8_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 32 x int8
    np.multiply(packed[:, 2:].view(np.int8), _half(packed, 0), out=out)


def _nibbles(quants: Bytes, out: Floats) -> None:
    # byte j holds elements j (low nibble) and j + 16 (high nibble)
    np.bitwise_and(quants, _LOW, out=out[:, :16], casting="unsafe")
    np.right_shift(quants, np.uint8(4), out=out[:, 16:], casting="unsafe")


def _q4_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 16 bytes of nibbles, offset by 8
    _nibbles(packed[:, 2:], out)
    np.subtract(out, np.float32(8), out=out)
    np.multiply(out, _half(packed, 0), out=out)


def _q4_1(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 16 bytes of nibbles
    _nibbles(packed[:, 4:], out)
    np.multiply(out, _half(packed, 0), out=out)
    np.add(out, _half(packed, 2), out=out)


def _five_bits(high: Bytes, quants: Bytes, out: Floats) -> None:
    # bit i of the four `high` bytes is bit 4 of element i
    bits = np.unpackbits(high, axis=1, bitorder="little")
    np.left_shift(bits, np.uint8(4), out=bits)
    np.bitwise_or(bits[:, :16], quants & _LOW, out=bits[:, :16])
    np.bitwise_or(bits[:, 16:], quants >> np.uint8(4), out=bits[:, 16:])
    out[:] = bits


def _q5_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 4 bytes of fifth bits | 16 bytes of nibbles, offset by 16
    _five_bits(packed[:, 2:6], packed[:, 6:], out)
    np.subtract(out, np.float32(16), out=out)
    np.multiply(out, _half(packed, 0), out=out)


def _q5_1(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 4 bytes of fifth bits | 16 bytes of nibbles
    _five_bits(packed[:, 4:8], packed[:, 8:], out)
    np.multiply(out, _half(packed, 0), out=out)
    np.add(out, _half(packed, 2), out=out)


def _scales_and_minima(packed: Bytes) -> tuple[Floats, Floats]:
    # bytes 4..16 of a block pack eight 6-bit scales and eight 6-bit minima:
    #   bytes 4..8   EEAAAAAA   scales 0-3 in the low six bits, top two bits of scales 4-7
    #   bytes 8..12  eeaaaaaa   minima likewise
    #   bytes 12..16 eeeeEEEE   low four bits of scales 4-7 (low nibble) and of minima 4-7 (high nibble)
    scale, low, mixed = packed[:, 4:8], packed[:, 8:12], packed[:, 12:16]
    six, two = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([scale & six, (mixed & _LOW) | ((scale >> np.uint8(2)) & two)], axis=1)
    minima = np.concatenate([low & six, (mixed >> np.uint8(4)) | ((low >> np.uint8(2)) & two)], axis=1)
    return _half(packed, 0) * scales.astype(np.float32), _half(packed, 2) * minima.astype(np.float32)


def _scale_groups(packed: Bytes, out: Floats) -> None:
    scales, minima = _scales_and_minima(packed)
    groups = out.reshape(-1, 8, 32)
    np.multiply(groups, scales[:, :, None], out=groups)
    np.subtract(groups, minima[:, :, None], out=groups)


def _q4_k(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 12 bytes of group scales | 4 x 32 bytes of nibbles: low is group 2i, high 2i + 1
    quants = packed[:, 16:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    np.bitwise_and(quants, _LOW, out=pairs[:, :, 0], casting="unsafe")
    np.right_shift(quants, np.uint8(4), out=pairs[:, :, 1], casting="unsafe")
    _scale_groups(packed, out)


def _q5_k(packed: Bytes, out: Floats) -> None:
    # as Q4_K, with 32 bytes of fifth bits before the nibbles: bit g of byte i belongs to element i of group g
    high = packed[:, 16:48]
    quants = packed[:, 48:].reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    for group in range(8):
        pair, is_odd = divmod(group, 2)
        fifth = (high >> np.uint8(group) & np.uint8(1)) << np.uint8(4)
        low = quants[:, pair] >> np.uint8(4) if is_odd else quants[:, pair] & _LOW
        pairs[:, pair, is_odd] = low | fifth
    _scale_groups(packed, out)


def _q6_k(packed: Bytes, out: Floats) -> None:
    # 128 bytes of low nibbles | 64 bytes of top bit pairs | 16 x int8 group scales | scale f16
    # half h of the block has 64 low bytes and 32 top bytes; its quarter q (32 elements) takes low bytes
    # 32 * (q % 2) .. + 32, low nibble for q < 2 else high, and bit pair q of the top bytes
    low, top = packed[:, :128].reshape(-1, 2, 64), packed[:, 128:192].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        is_high, column = divmod(quarter, 2)
        part = low[:, :, 32 * column : 32 * column + 32]
        nibble = part >> np.uint8(4) if is_high else part & _LOW
        pair = (top >> np.uint8(2 * quarter) & np.uint8(3)) << np.uint8(4)
        quarters[:, :, quarter] = nibble | pair
    np.subtract(out, np.float32(32), out=out)
    scales = _half(packed, 208) * packed[:, 192:208].view(np.int8).astype(np.float32)
    groups = out.reshape(-1, 16, 16)
    np.multiply(groups, scales[:, :, None], out=groups)


def _from_library(name: str) -> Dequantizer:
    def dequantize(packed: Bytes, out: Floats) -> None:
        # imported here: the library takes long to import, and few checkpoints need it
        from gguf import GGMLQuantizationType, quants  # noqa: PLC0415

        # one long row: the library splits work by rows, and short ones are slow
        out[:] = quants.dequantize(packed.reshape(1, -1), GGMLQuantizationType[name]).reshape(out.shape)

    return dequantize


FORMATS: Mapping[str, Format] = {
    known.name: known
    for known in (
        Format("F32", 1, 4, _f32),
        Format("F16", 1, 2, _f16),
        Format("BF16", 1, 2, _bf16),
        Format("Q8_0", 32, 34, _q8_0),
        Format("Q4_0", 32, 18, _q4_0),
        Format("Q4_1", 32, 20, _q4_1),
        Format("Q5_0", 32, 22, _q5_0),
        Format("Q5_1", 32, 24, _q5_1),
        Format("Q2_K", 256, 84, _from_library("Q2_K")),
        Format("Q3_K", 256, 110, _from_library("Q3_K")),
        Format("Q4_K", 256, 144, _q4_k),
        Format("Q5_K", 256, 176, _q5_k),
        Format("Q6_K", 256, 210, _q6_k),
        Format("IQ4_NL", 32, 18, _from_library("IQ4_NL")),
        Format("IQ4_XS", 256, 136, _from_library("IQ4_XS")),
    )
}
"""Formats that can be dequantized, by name."""

_UNUSED_SIZES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                 "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}  # fmt: skip
SIZES: Mapping[str, Format] = {**FORMATS, **{name: Format(name, 1, size) for name, size in _UNUSED_SIZES.items()}}
"""Every format whose size is known: those of `FORMATS`, and those that may lie in a checkpoint unused."""
