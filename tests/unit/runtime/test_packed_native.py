"""From a checkpoint's blocks to the kernels' panels in a mapped file, and back by their drawings: the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.panel_reader import read_panels
from support.stored_blocks import assert_same_bits, random_blocks, stored
from trivium.kernels import linear, native
from trivium.runtime.packed import PackedCache, PackedSpec, PackedWeights
from trivium.weights.bind import Parameter
from trivium.weights.formats import FORMATS, to_float32
from trivium.weights.kinds import PANEL_FORMATS, Codes, dequantize

pytestmark = pytest.mark.skipif(native.load() is None, reason="needs native kernels")


def packed(tmp_path: Path, records: dict[str, Codes]) -> PackedWeights:
    """Pack records, and map the file that they were packed into."""
    wanted = [
        PackedSpec(name=name, format=record.format, num_cols=record.num_rows, depth=record.depth)
        for name, record in records.items()
    ]
    cache = PackedCache(tmp_path)
    cache.open("m", "f" * 64, wanted, linear.Packer(), lambda spec, start, end: records[spec.name].part(start, end))
    weights = cache.open("m", "f" * 64, wanted, linear.Packer(), lambda spec, start, end: pytest.fail("packed twice"))
    assert weights.path is not None
    return weights


@pytest.mark.parametrize("num_rows", [1, 32, 77])
def test_every_storage_format_survives_packing(tmp_path: Path, num_rows: int) -> None:
    records: dict[str, Codes] = {}
    expected: dict[str, np.ndarray] = {}
    for name, known in FORMATS.items():
        by_row = random_blocks(name, num_rows, 3 if known.block_len > 1 else 70, seed=num_rows)
        tensor = stored(tmp_path, name, by_row)
        parameter = Parameter(name, tensor.shape, tensor, None, 0.0)
        records[name] = parameter.codes(parameter.own_format)
        expected[name] = to_float32(by_row.reshape(-1), name, tensor.shape)
    for name, matrix in packed(tmp_path, records).matrices.items():
        back = read_panels(matrix.panels, matrix.format, matrix.num_cols, matrix.depth)
        assert_same_bits(dequantize(back), expected[name])


def random_record(format_name: str, num_rows: int, depth: int) -> Codes:
    """Every code and scale that the format can hold; numbers are ordinary."""
    rng = np.random.default_rng(depth)
    record = Codes.empty(format_name, num_rows, depth)
    kind = PANEL_FORMATS[format_name]
    bits = {name: part.bits for name, part in kind.ingredients.items()} | {"codes": kind.code_bits}
    for name, array in record.arrays.items():
        if array.dtype.kind == "f":
            array[:] = rng.standard_normal(array.shape)
        else:
            least = -(1 << bits[name] - 1) if array.dtype.kind == "i" else 0
            array[:] = rng.integers(least, least + (1 << bits[name]), array.shape)
    return record


@pytest.mark.parametrize("format_name", PANEL_FORMATS)
@pytest.mark.parametrize(("num_rows", "depth"), [(33, 256), (40, 1024 + 72), (3, 8)])
def test_every_array_of_a_record_survives_packing(tmp_path: Path, format_name: str, num_rows: int, depth: int) -> None:
    record = random_record(format_name, num_rows, depth)
    matrix = packed(tmp_path, {"w": record}).matrices["w"]
    assert matrix.panels.nbytes == linear.matrix_bytes(format_name, num_rows, depth)
    back = read_panels(matrix.panels, format_name, num_rows, depth)
    for name, array in record.arrays.items():
        np.testing.assert_array_equal(back.arrays[name], array, err_msg=name)
    assert_same_bits(dequantize(back), dequantize(record))


def test_the_table_of_formats_is_the_kernels_own() -> None:
    assert set(linear.formats()) == PANEL_FORMATS.keys()
    for name, kind in PANEL_FORMATS.items():
        assert linear.panel_bytes(name, 1024) * 8 / 32 / 1024 == kind.bits_per_weight(1024), name
