"""A record in a tensor's own panel format means what the tensor means, bit for bit; rows and offsets are honoured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.stored_blocks import HALVES_AT, assert_same_bits, random_blocks, stored
from trivium.base.errors import CheckpointError, InternalError
from trivium.weights import codes as codes_module
from trivium.weights import spread
from trivium.weights.bind import Parameter
from trivium.weights.codes import OWN_FORMATS, decode, own_format, read_codes
from trivium.weights.formats import FORMATS, to_float32
from trivium.weights.kinds import PANEL_FORMATS, Codes, dequantize
from trivium.weights.stored import StoredTensor


def test_every_format_that_can_be_dequantized_has_a_panel_format() -> None:
    assert OWN_FORMATS.keys() == FORMATS.keys()
    assert set(OWN_FORMATS.values()) <= PANEL_FORMATS.keys()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("num_rows", "blocks_per_row"), [(1, 1), (3, 2), (37, 5)])
def test_a_record_means_what_the_blocks_mean(tmp_path: Path, name: str, num_rows: int, blocks_per_row: int) -> None:
    by_row = random_blocks(name, num_rows, blocks_per_row, seed=num_rows)
    tensor = stored(tmp_path, name, by_row)
    record = read_codes(tensor, own_format(tensor))
    record.check()
    assert_same_bits(dequantize(record), to_float32(by_row.reshape(-1), name, tensor.shape))


@pytest.mark.parametrize("name", FORMATS)
def test_every_bit_pattern_is_decoded(name: str) -> None:
    num_rows, blocks_per_row = 200, 3
    known = FORMATS[name]
    packed = np.random.default_rng(5).integers(0, 256, num_rows * blocks_per_row * known.block_bytes, dtype=np.uint8)
    depth = blocks_per_row * known.block_len
    record = Codes.empty(OWN_FORMATS[name], num_rows, depth)
    decode(packed, name, record)
    assert_same_bits(dequantize(record), to_float32(packed, name, (num_rows, depth)))


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K", "BF16"])
@pytest.mark.parametrize(
    "rows",
    [slice(3, 17), np.array([5, 0, 0, 30], np.intp), np.arange(36, -1, -1), np.arange(4, 9), np.arange(0)],
    ids=["slice", "picked", "reversed", "run", "none"],
)
def test_only_the_rows_asked_for_are_read_and_in_their_order(
    tmp_path: Path, name: str, rows: slice | np.ndarray
) -> None:
    by_row = random_blocks(name, 37, 2)
    tensor = stored(tmp_path, name, by_row)
    whole = to_float32(by_row.reshape(-1), name, tensor.shape)
    assert_same_bits(dequantize(read_codes(tensor, own_format(tensor), rows=rows)), whole[rows])


def test_many_threads_and_small_runs_give_the_same_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = stored(tmp_path, "Q4_K", random_blocks("Q4_K", 101, 2))
    alone = read_codes(tensor, "q4_k")
    monkeypatch.setattr(spread, "PARALLEL_ELEMENTS", 1 << 10)
    monkeypatch.setattr(spread, "usable_cores", lambda: 4)
    monkeypatch.setattr(codes_module, "_CHUNK_ELEMENTS", 1 << 11)
    cut = read_codes(tensor, "q4_k")
    for name, array in alone.arrays.items():
        np.testing.assert_array_equal(cut.arrays[name], array, err_msg=name)


def test_rows_that_were_read_and_given_back_can_be_read_again(tmp_path: Path) -> None:
    by_row = random_blocks("Q8_0", 300, 20)
    tensor = stored(tmp_path, "Q8_0", by_row)
    view = tensor.raw()
    for rows in (slice(0, 150), slice(100, 300), np.array([299, 0], np.intp), None):
        read_codes(tensor, "i8_g32", rows=rows)
        np.testing.assert_array_equal(view, by_row.reshape(-1))
        np.testing.assert_array_equal(tensor.raw(), view)


def test_a_parameter_reads_its_own_rows_part_by_part(tmp_path: Path) -> None:
    by_row = random_blocks("Q5_1", 12, 1)
    tensor = stored(tmp_path, "Q5_1", by_row)
    order = np.array([3, 1, 2, 0, 7, 6], np.intp)
    parameter = Parameter("p", (6, 32), tensor, order, 0.0)
    assert parameter.own_format == "i5m_g32"
    parts = [dequantize(parameter.codes("i5m_g32", start, start + 2)) for start in range(0, 6, 2)]
    assert_same_bits(np.concatenate(parts), parameter.float32())
    sliced = Parameter("p", (4, 32), tensor, slice(5, 9), 0.0)
    assert_same_bits(dequantize(sliced.codes("i5m_g32", 1)), sliced.float32()[1:])


def test_an_offset_is_added_in_float32(tmp_path: Path) -> None:
    tensor = stored(tmp_path, "Q4_0", random_blocks("Q4_0", 5, 1))
    parameter = Parameter("p", (5, 32), tensor, None, 1.0)
    assert parameter.own_format == "f32"
    assert_same_bits(dequantize(parameter.codes("f32")), parameter.float32())


@pytest.mark.parametrize("panel_format", ["f32", "bf16", "i8_g32", "i4m_g32"])
def test_other_formats_are_made_of_the_float32_values(tmp_path: Path, panel_format: str) -> None:
    values = np.random.default_rng(2).standard_normal((9, 64), np.float32)
    tensor = stored(tmp_path, "F32", values.view(np.uint8).reshape(9, -1))
    record = read_codes(tensor, panel_format, rows=slice(2, 9))
    record.check()
    steps = {"f32": 0.0, "bf16": 2**-7, "i8_g32": 1 / 64, "i4m_g32": 0.3}
    assert np.abs(dequantize(record) - values[2:]).max() <= steps[panel_format] * np.abs(values).max() / 2


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_by_name(tmp_path: Path, name: str, bad: float) -> None:
    by_row = random_blocks(name, 4, 2)
    block_bytes = FORMATS[name].block_bytes
    widths = {"F32": np.float32(bad).tobytes(), "BF16": np.float32(bad).tobytes()[2:]}
    spelled = np.frombuffer(widths.get(name, np.float16(bad).tobytes()), np.uint8)
    at = block_bytes + HALVES_AT.get(name, [0])[-1]
    by_row[2, at : at + len(spelled)] = spelled
    tensor = stored(tmp_path, name, by_row)
    with pytest.raises(CheckpointError, match=r"some\.weight holds values that are not finite"):
        read_codes(tensor, own_format(tensor))
    read_codes(tensor, own_format(tensor), rows=slice(0, 2))


def test_only_matrices_and_known_formats_are_packed(tmp_path: Path) -> None:
    vector = stored(tmp_path, "F32", np.zeros((1, 32), np.uint8), shape=(8,))
    with pytest.raises(InternalError, match=r"some\.weight has shape \[8\]; only matrices"):
        read_codes(vector, "f32")
    unknown = StoredTensor("odd.weight", (2, 2), "I64", vector.file, 0)
    with pytest.raises(CheckpointError, match=r"odd\.weight: format I64 has no packed form"):
        own_format(unknown)
    with pytest.raises(InternalError, match="Q4_0 was asked for as q4_k"):
        decode(np.zeros(18, np.uint8), "Q4_0", Codes.empty("q4_k", 1, 256))


def test_a_record_knows_when_it_is_wrong() -> None:
    record = Codes.empty("q4_k", 2, 256)
    record.check()
    assert {name: array.shape for name, array in record.arrays.items()} == {
        "codes": (2, 256), "supers": (2, 1), "subs": (2, 8), "super_mins": (2, 1), "sub_mins": (2, 8),
    }  # fmt: skip
    with pytest.raises(InternalError, match="subs is float32"):
        Codes(**{"format": "q4_k", **record.arrays, "subs": np.zeros((2, 8), np.float32)}).check()
    with pytest.raises(InternalError, match="q6_k has"):
        Codes(**{"format": "q6_k", **record.arrays}).check()


BITS = {
    "f32": 32, "bf16": 16, "f16": 16, "i8_c": 8 + 32 / 1024, "i8_g32": 8.5, "i8_g64": 8.25, "i8_g128": 8.125,
    "i4_g32": 4.5,
    "i4m_g32": 5, "i4z_g32": 4.75, "i4z_g64": 4.375, "i4z_g128": 4.1875, "i5_g32": 5.5, "i5m_g32": 6, "q2_k": 2.625,
    "q3_k": 3.4375, "q4_k": 4.5, "q5_k": 5.5, "q6_k": 6.5625, "iq4": 4.5,
}  # fmt: skip


def test_bits_per_weight_are_those_of_the_files() -> None:
    assert {name: kind.bits_per_weight(1024) for name, kind in PANEL_FORMATS.items()} == BITS
    for name, own in OWN_FORMATS.items():
        if own != "f32":
            assert FORMATS[name].block_bytes * 8 / FORMATS[name].block_len == BITS[own], name
