"""Storage formats of tensors, and their exact conversion to float32.

A format packs a row's elements into blocks of fixed length and size. `FORMATS` is the table of what can be
dequantized; `SIZES` adds formats that may lie in a checkpoint unused. The common GGUF formats have dequantizers
here, vectorised over large runs of blocks (layouts: `weights.blocks`); the rare ones use the gguf library. All equal
that library bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trivium.base.errors import CheckpointError
from trivium.weights import blocks
from trivium.weights.spread import spread

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Dequantizer = Callable[[Bytes, Floats], None]
"""Fill out[blocks, block_len] float32 from packed[blocks, block_bytes] uint8."""

_CHUNK_ELEMENTS = 1 << 18  # 1 MiB of float32 out: temporaries stay in the second-level cache


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

    spread(fill, starts, out.size)
    return out


def _half(packed: Bytes, start: int) -> Floats:
    """Return the float16 at byte `start` of each block as float32, [blocks, 1]."""
    return blocks.half(packed, start).astype(np.float32)


def _f32(packed: Bytes, out: Floats) -> None:
    np.copyto(out.reshape(-1), packed.reshape(-1).view("<f4"))


def _f16(packed: Bytes, out: Floats) -> None:
    # Over twice as fast as NumPy's conversion. Sign, exponent and fraction are put where float32 has them, which reads
    # as the value times 2^-112, subnormals included. Exponent 31, infinity and NaN, becomes 255 instead.
    halves = packed.reshape(-1).view("<u2").astype(np.uint32)
    bits = out.reshape(-1).view(np.uint32)
    np.left_shift(halves & np.uint32(0x7FFF), np.uint32(13), out=bits)
    is_special = bits >= np.uint32(31 << 23)
    specials = bits[is_special] + np.uint32((255 - 31) << 23)
    np.multiply(out, np.float32(2.0**112), out=out)
    if len(specials):
        bits[is_special] = specials
    np.bitwise_or(bits, (halves & np.uint32(0x8000)) << np.uint32(16), out=bits)


def _bf16(packed: Bytes, out: Floats) -> None:
    np.left_shift(packed.reshape(-1).view("<u2"), np.uint32(16), out=out.reshape(-1).view(np.uint32), dtype=np.uint32)


def _q8_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 32 x int8
    np.multiply(packed[:, 2:].view(np.int8), _half(packed, 0), out=out)


def _q4_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 16 bytes of nibbles, offset by 8
    blocks.nibbles(packed[:, 2:], out)
    np.subtract(out, np.float32(8), out=out)
    np.multiply(out, _half(packed, 0), out=out)


def _q4_1(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 16 bytes of nibbles
    blocks.nibbles(packed[:, 4:], out)
    np.multiply(out, _half(packed, 0), out=out)
    np.add(out, _half(packed, 2), out=out)


def _q5_0(packed: Bytes, out: Floats) -> None:
    # scale f16 | 4 bytes of fifth bits | 16 bytes of nibbles, offset by 16
    blocks.five_bits(packed[:, 2:6], packed[:, 6:], out)
    np.subtract(out, np.float32(16), out=out)
    np.multiply(out, _half(packed, 0), out=out)


def _q5_1(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 4 bytes of fifth bits | 16 bytes of nibbles
    blocks.five_bits(packed[:, 4:8], packed[:, 8:], out)
    np.multiply(out, _half(packed, 0), out=out)
    np.add(out, _half(packed, 2), out=out)


def _scale_groups(packed: Bytes, out: Floats) -> None:
    # scale f16 | minimum f16 | 12 bytes of group scales and minima, 6 bits each
    scales, minima = blocks.scales_and_minima(packed[:, 4:16])
    groups = out.reshape(-1, 8, 32)
    np.multiply(groups, (_half(packed, 0) * scales.astype(np.float32))[:, :, None], out=groups)
    np.subtract(groups, (_half(packed, 2) * minima.astype(np.float32))[:, :, None], out=groups)


def _q4_k(packed: Bytes, out: Floats) -> None:
    # 16 bytes of scales | 128 bytes of nibbles
    blocks.nibble_pairs(packed[:, 16:], out)
    _scale_groups(packed, out)


def _q5_k(packed: Bytes, out: Floats) -> None:
    # 16 bytes of scales | 32 bytes of fifth bits | 128 bytes of nibbles
    blocks.five_bit_pairs(packed[:, 16:48], packed[:, 48:], out)
    _scale_groups(packed, out)


def _q6_k(packed: Bytes, out: Floats) -> None:
    # 192 bytes of codes | 16 x int8 group scales | scale f16
    blocks.six_bits(packed, out)
    np.subtract(out, np.float32(32), out=out)
    scales = _half(packed, 208) * packed[:, 192:208].view(np.int8).astype(np.float32)
    groups = out.reshape(-1, 16, 16)
    np.multiply(groups, scales[:, :, None], out=groups)


def _iq4_xs(packed: Bytes, out: Floats) -> None:
    # scale f16 | 2 bytes, bit pair g: top two bits of group scale g | 4 bytes, nibble g: its low four bits | 8 x 16
    # bytes of nibbles, a group of 32 each. Group scales are stored plus 32.
    group = np.arange(8)
    top = packed[:, 2:4].copy().view("<u2") >> (2 * group).astype(np.uint16) & np.uint16(3)
    low = packed[:, 4 + group // 2] >> (4 * (group % 2)).astype(np.uint8) & np.uint8(0x0F)
    scales = (low | top << np.uint16(4)).astype(np.float32) - np.float32(32)
    codes = np.empty((8 * len(packed), 32), np.uint8)
    blocks.nibbles(packed[:, 8:].reshape(-1, 16), codes)
    groups = out.reshape(-1, 8, 32)
    np.take(blocks.CODEBOOK, codes.reshape(groups.shape), out=groups, mode="clip")
    np.multiply(groups, (_half(packed, 0) * scales)[:, :, None], out=groups)


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
        Format("IQ4_XS", 256, 136, _iq4_xs),
    )
}
"""Formats that can be dequantized, by name."""

_UNUSED_SIZES = {"F64": 8, "I64": 8, "U64": 8, "I32": 4, "U32": 4, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1,
                 "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8}  # fmt: skip
SIZES: Mapping[str, Format] = {**FORMATS, **{name: Format(name, 1, size) for name, size in _UNUSED_SIZES.items()}}
"""Every format whose size is known: those of `FORMATS`, and those that may lie in a checkpoint unused."""
