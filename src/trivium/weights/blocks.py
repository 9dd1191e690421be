"""Bits of the GGUF block formats: codes and scales as they lie in a block, taken apart and not yet multiplied.

All functions work on blocks [B, block_bytes] uint8 and write codes [B, block_len] in the order of the row's elements,
as unsigned numbers, into an array of any number type. `weights.formats` makes float32 of them, `weights.codes` the
records that kernels multiply with.

Source: block layouts of the GGUF/GGML formats as the gguf Python package implements them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Codes = NDArray[Any]
Halves = NDArray[np.float16]

CODEBOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""What the sixteen codes of the IQ4 formats stand for, before scaling."""

_LOW = np.uint8(0x0F)
_FOUR = np.uint8(4)


def half(blocks: Bytes, start: int) -> Halves:
    """Return the float16 at byte `start` of each block, [B, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16)


def nibbles(quants: Bytes, out: Codes) -> None:
    """Fill out[B, 32] from 16 bytes: byte j holds elements j (low nibble) and j + 16 (high nibble)."""
    np.bitwise_and(quants, _LOW, out=out[:, :16], casting="unsafe")
    np.right_shift(quants, _FOUR, out=out[:, 16:], casting="unsafe")


def five_bits(high: Bytes, quants: Bytes, out: Codes) -> None:
    """Fill out[B, 32] from nibbles and four bytes `high`, whose bit i is bit 4 of element i."""
    bits = np.unpackbits(high, axis=1, bitorder="little")
    np.left_shift(bits, _FOUR, out=bits)
    np.bitwise_or(bits[:, :16], quants & _LOW, out=bits[:, :16])
    np.bitwise_or(bits[:, 16:], quants >> _FOUR, out=bits[:, 16:])
    out[:] = bits


def two_bits(quants: Bytes, out: Codes) -> None:
    """Fill out[B, 256] from the 64 bytes of Q2_K and Q3_K.

    ::

        byte 32 * h + j, bit pair q   is element 128 * h + 32 * q + j      (h = 0, 1; q = 0 .. 3; j = 0 .. 31)
    """
    halves = quants.reshape(-1, 2, 32)
    rows = out.reshape(-1, 2, 4, 32)
    for pair in range(4):
        rows[:, :, pair] = halves >> np.uint8(2 * pair) & np.uint8(3)


def three_bits(high: Bytes, quants: Bytes, out: Codes) -> None:
    """Fill out[B, 256] from `two_bits` and 32 bytes `high`, of which bit g of byte j is bit 2 of element 32 * g + j."""
    codes = np.empty(out.shape, np.uint8)
    two_bits(quants, codes)
    groups = codes.reshape(-1, 8, 32)
    for group in range(8):
        groups[:, group] |= (high >> np.uint8(group) & np.uint8(1)) << np.uint8(2)
    out[:] = codes


def nibble_pairs(quants: Bytes, out: Codes) -> None:
    """Fill out[B, 256] from the 4 x 32 bytes of Q4_K: low is group 2i, high is group 2i + 1."""
    packed = quants.reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    np.bitwise_and(packed, _LOW, out=pairs[:, :, 0], casting="unsafe")
    np.right_shift(packed, _FOUR, out=pairs[:, :, 1], casting="unsafe")


def five_bit_pairs(high: Bytes, quants: Bytes, out: Codes) -> None:
    """Fill out[B, 256] from `nibble_pairs` and 32 bytes `high`: bit g of byte i is bit 4 of element i of group g."""
    packed = quants.reshape(-1, 4, 32)
    pairs = out.reshape(-1, 4, 2, 32)
    for group in range(8):
        pair, is_odd = divmod(group, 2)
        fifth = (high >> np.uint8(group) & np.uint8(1)) << _FOUR
        low = packed[:, pair] >> _FOUR if is_odd else packed[:, pair] & _LOW
        pairs[:, pair, is_odd] = low | fifth


def six_bits(blocks: Bytes, out: Codes) -> None:
    """Fill out[B, 256] from Q6_K's 128 bytes of low nibbles and 64 bytes of top bit pairs.

    ::

        half h of the block has 64 low bytes and 32 top bytes; its quarter q (32 elements) takes low bytes
        32 * (q % 2) .. + 32, low nibble for q < 2 else high, and bit pair q of the top bytes
    """
    low, top = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 32)
    quarters = out.reshape(-1, 2, 4, 32)
    for quarter in range(4):
        is_high, column = divmod(quarter, 2)
        part = low[:, :, 32 * column : 32 * column + 32]
        nibble = part >> _FOUR if is_high else part & _LOW
        pair = (top >> np.uint8(2 * quarter) & np.uint8(3)) << _FOUR
        quarters[:, :, quarter] = nibble | pair


def scales_and_minima(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return eight 6-bit scales and eight 6-bit minima, [B, 8] each, from the 12 bytes of Q4_K and Q5_K.

    ::

        bytes 0..4    EEAAAAAA   scales 0-3 in the low six bits, top two bits of scales 4-7
        bytes 4..8    eeaaaaaa   minima likewise
        bytes 8..12   eeeeEEEE   low four bits of scales 4-7 (low nibble) and of minima 4-7 (high nibble)
    """
    scale, low, mixed = packed[:, :4], packed[:, 4:8], packed[:, 8:12]
    six, two = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([scale & six, (mixed & _LOW) | ((scale >> np.uint8(2)) & two)], axis=1)
    minima = np.concatenate([low & six, (mixed >> _FOUR) | ((low >> np.uint8(2)) & two)], axis=1)
    return scales, minima


def six_bit_scales(packed: Bytes) -> NDArray[np.int8]:
    """Return sixteen scales of -32 to 31, [B, 16], from the 12 bytes of Q3_K, which store them plus 32.

    ::

        bytes 0..8    low four bits: of scale j in the low nibble, of scale 8 + j in the high one
        bytes 8..12   top two bits: pair q of byte 8 + j belongs to scale 4 * q + j
    """
    low = np.concatenate([packed[:, :8] & _LOW, packed[:, :8] >> _FOUR], axis=1)
    top = np.concatenate([packed[:, 8:] >> np.uint8(2 * pair) & np.uint8(3) for pair in range(4)], axis=1)
    scales: NDArray[np.int8] = (low | top << _FOUR).view(np.int8) - np.int8(32)
    return scales
