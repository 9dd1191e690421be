"""Dequantizing equals the gguf library bit for bit, in every format, at every size, on one core or many."""

from __future__ import annotations

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from trivium.base.errors import CheckpointError
from trivium.weights import formats, spread
from trivium.weights.formats import FORMATS, to_float32


def packed_blocks(name: str, num_blocks: int, seed: int = 0) -> np.ndarray:
    """Random blocks whose scales are finite, or all bit patterns where the format has no scale."""
    known = FORMATS[name]
    blocks = np.random.default_rng(seed).integers(0, 256, (num_blocks, known.block_bytes), dtype=np.uint8)
    return blocks.reshape(-1)


def by_library(packed: np.ndarray, name: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        return quants.dequantize(packed.reshape(1, -1), GGMLQuantizationType[name]).reshape(-1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("num_blocks", [1, 2, 33, 1000])
def test_every_bit_pattern_dequantizes_as_the_gguf_library_does(name: str, num_blocks: int) -> None:
    packed = packed_blocks(name, num_blocks)
    ours = to_float32(packed, name, (num_blocks * FORMATS[name].block_len,))
    theirs = by_library(packed, name)
    is_number = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours.view(np.uint32)[is_number], theirs.view(np.uint32)[is_number])
    assert np.isnan(ours[~is_number]).all()


@pytest.mark.parametrize("name", FORMATS)
def test_sizes_are_those_of_the_gguf_library(name: str) -> None:
    assert GGML_QUANT_SIZES[GGMLQuantizationType[name]] == (FORMATS[name].block_len, FORMATS[name].block_bytes)


@pytest.mark.parametrize("name", ["Q4_1", "BF16"])
def test_many_cores_give_the_bits_of_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "PARALLEL_ELEMENTS", 1 << 10)
    monkeypatch.setattr(formats, "_CHUNK_ELEMENTS", 1 << 9)
    packed = packed_blocks(name, 4099)
    shape = (4099 * FORMATS[name].block_len,)
    monkeypatch.setattr(spread, "usable_cores", lambda: 1)
    alone = to_float32(packed, name, shape)
    monkeypatch.setattr(spread, "usable_cores", lambda: 4)
    assert to_float32(packed, name, shape).tobytes() == alone.tobytes()


def test_plain_formats_agree_with_their_number_types() -> None:
    values = np.random.default_rng(1).standard_normal((3, 5), np.float32)
    for name, dtype in (("F32", np.float32), ("F16", np.float16), ("BF16", ml_dtypes.bfloat16)):
        stored = values.astype(dtype)
        packed = np.frombuffer(stored.tobytes(), np.uint8)
        np.testing.assert_array_equal(to_float32(packed, name, (3, 5)), stored.astype(np.float32))


def test_an_empty_tensor_is_an_empty_array() -> None:
    assert to_float32(np.empty(0, np.uint8), "F32", (0, 4)).shape == (0, 4)


def test_a_format_that_cannot_be_dequantized_is_refused_by_name() -> None:
    with pytest.raises(CheckpointError, match="I64 cannot be dequantized; known are F32"):
        to_float32(np.zeros(8, np.uint8), "I64", (1,))


def test_the_library_still_knows_each_format_number() -> None:
    from trivium.weights.gguf_header import _FORMAT_NUMBERS  # noqa: PLC0415

    for number, name in _FORMAT_NUMBERS.items():
        assert gguf.GGMLQuantizationType(number).name == name
