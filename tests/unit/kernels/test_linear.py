"""Packed weights as the kernels read them: rows to the bit, products within their bound of float64."""

from __future__ import annotations

import numpy as np
import pytest

from support.stored_blocks import assert_same_bits, random_blocks
from trivium.base.errors import InternalError
from trivium.kernels import linear, native
from trivium.weights.codes import OWN_FORMATS, decode
from trivium.weights.formats import FORMATS, to_float32
from trivium.weights.kinds import PANEL_FORMATS, Codes, dequantize

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs native kernels")

LEVELS = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni")


def levels() -> list[str]:
    """Instruction sets that this processor has."""
    x = np.zeros((1, 32), np.float32)
    panels = linear.Packer().pack(random_record("f32", 1, 32))
    usable = []
    for level in LEVELS:
        try:
            linear.multiply(x, "f32", panels, 1, isa=level)
        except InternalError:
            continue
        usable.append(level)
    return usable


def random_record(format_name: str, num_rows: int, depth: int) -> Codes:
    """A record of any codes, with scales of one size."""
    rng = np.random.default_rng(num_rows * depth)
    record = Codes.empty(format_name, num_rows, depth)
    kind = PANEL_FORMATS[format_name]
    for name, array in record.arrays.items():
        if array.dtype.kind == "f":
            array[:] = rng.uniform(0.01, 0.1, array.shape) if name != "codes" else rng.standard_normal(array.shape)
        elif format_name == "bf16":
            array[:] = rng.standard_normal(array.shape).astype(np.float32).view(np.uint32) >> 16
        else:
            bits = kind.code_bits if name == "codes" else kind.ingredients[name].bits
            least = -(1 << bits - 1) if array.dtype.kind == "i" else 0
            array[:] = rng.integers(least, least + (1 << bits), array.shape)
    return record


@pytest.mark.parametrize("name", OWN_FORMATS)
def test_rows_of_a_storage_format_come_back_to_the_bit(name: str) -> None:
    known = FORMATS[name]
    by_row = random_blocks(name, 45, 3 if known.block_len > 1 else 96, seed=1)
    depth = by_row.size // 45 // known.block_bytes * known.block_len
    record = Codes.empty(OWN_FORMATS[name], 45, depth)
    decode(by_row.reshape(-1), name, record)
    panels = linear.Packer().pack(record)
    ids = np.array([44, 0, 31, 32, 7, 7])
    back = linear.unpack_rows(record.format, panels, 45, depth, ids)
    assert_same_bits(back, to_float32(by_row.reshape(-1), name, (45, depth))[ids])


@pytest.mark.parametrize("format_name", PANEL_FORMATS)
@pytest.mark.parametrize(("num_rows", "depth"), [(33, 256), (64, 1000), (1, 8)])
def test_rows_come_back_to_the_bit(format_name: str, num_rows: int, depth: int) -> None:
    record = random_record(format_name, num_rows, depth)
    panels = linear.Packer().pack(record)
    back = linear.unpack_rows(format_name, panels, num_rows, depth, np.arange(num_rows))
    assert_same_bits(back, dequantize(record))


def rounded(x: np.ndarray, format_name: str) -> np.ndarray:
    """What a product makes of its rows before it multiplies, as float64."""
    if format_name in {"f32", "f16"}:
        return x.astype(np.float64)
    if format_name == "bf16":
        bits = x.view(np.uint32).astype(np.uint64)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(np.float64)
    groups = np.pad(x, ((0, 0), (0, -x.shape[1] % 32))).reshape(len(x), -1, 32)
    greatest = np.abs(groups).max(axis=2, keepdims=True)
    units = np.rint(groups * (np.float32(127) / greatest))
    scales = greatest / np.float32(127)
    return (units.astype(np.float64) * scales).reshape(len(x), -1)[:, : x.shape[1]]


@pytest.mark.parametrize("format_name", PANEL_FORMATS)
@pytest.mark.parametrize(("rows", "cols", "depth"), [(1, 40, 256), (6, 33, 520), (27, 64, 96)])
def test_products_are_near_float64(format_name: str, rows: int, cols: int, depth: int) -> None:
    record = random_record(format_name, cols, depth)
    panels = linear.Packer().pack(record)
    weight = dequantize(record).astype(np.float64)
    x = np.random.default_rng(2).standard_normal((rows, depth), np.float32)
    exact = rounded(x, format_name) @ weight.T
    size = np.abs(rounded(x, format_name)) @ np.abs(weight.T)
    results = {level: linear.multiply(x, format_name, panels, cols, isa=level) for level in levels()}
    for level, result in results.items():
        # sums of K / 32 groups (of K terms in floats), three roundings each; minima cancel against codes
        assert np.all(np.abs(result - exact) <= 2.0**-24 * depth * (4 * size + 1)), level
        if format_name != "bf16":
            assert_same_bits(result, results["scalar"])


def test_every_float16_is_widened_exactly_by_rows_and_by_products() -> None:
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).view(np.float16)
    codes = every[np.isfinite(every)].reshape(-1, 64)
    panels = linear.Packer().pack(Codes(format="f16", codes=codes))
    wide = codes.astype(np.float32)
    assert_same_bits(linear.unpack_rows("f16", panels, len(codes), 64, np.arange(len(codes))), wide)
    for level in levels():
        products = linear.multiply(np.eye(64, dtype=np.float32), "f16", panels, len(codes), isa=level)
        np.testing.assert_array_equal(products.T, wide, err_msg=level)


def test_what_does_not_fit_is_refused() -> None:
    record = random_record("i4_g32", 40, 64)
    panels = linear.Packer().pack(record)
    x = np.zeros((2, 64), np.float32)
    with pytest.raises(InternalError, match=r"take \d+ bytes"):
        linear.multiply(x, "i4_g32", panels[:-1], 40)
    with pytest.raises(InternalError, match="unknown"):
        linear.multiply(x, "i3", panels, 40)
    with pytest.raises(InternalError, match="instruction set"):
        linear.multiply(x, "i4_g32", panels, 40, isa="mmx")
    with pytest.raises(InternalError, match="no row 40 among 40"):
        linear.unpack_rows("i4_g32", panels, 40, 64, np.array([40]))
    record.codes[3, 5] = 16
    with pytest.raises(InternalError, match="does not fit"):
        linear.Packer().pack(record)
