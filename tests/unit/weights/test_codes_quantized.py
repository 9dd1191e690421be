"""Quantizing at load: codes are the nearest ones, none clips, errors stay within what is stated."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trivium.base.errors import CheckpointError, InternalError
from trivium.weights.kinds import Codes, dequantize
from trivium.weights.quantize import WeightsChoice, chosen_format, quantize

INT8 = {"i8_g32": 32, "i8_g64": 64, "i8_g128": 128, "i8_c": 0}
SLACK = 1 + 2.0**-20
"""For the rounding of the float32 operations themselves."""


def quantized(values: np.ndarray, panel_format: str) -> Codes:
    record = Codes.empty(panel_format, *values.shape)
    quantize(values, record, where="w")
    record.check()
    return record


def groups_of(values: np.ndarray, span: int) -> list[np.ndarray]:
    span = span or values.shape[1]
    return [values[:, start : start + span] for start in range(0, values.shape[1], span)]


@pytest.mark.parametrize(("panel_format", "span"), INT8.items())
@pytest.mark.parametrize("depth", [32, 128, 200, 5])
@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_int8_keeps_within_half_a_step(panel_format: str, span: int, depth: int, size: float) -> None:
    values = np.random.default_rng(depth).standard_normal((7, depth)).astype(np.float32) * np.float32(size)
    record = quantized(values, panel_format)
    assert record.codes.min() >= 1  # -127 .. 127, stored plus 128
    assert record.scales is not None
    errors = groups_of(np.abs(dequantize(record).astype(np.float64) - values), span)
    for column, (group, error) in enumerate(zip(groups_of(values, span), errors, strict=True)):
        scale = record.scales[:, column].astype(np.float64)
        assert (error.max(axis=1) <= scale / 2 * SLACK).all()
        assert (scale <= np.abs(group).max(axis=1) / 127 * (1 + 2**-10) + 2**-24).all()


@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=32, max_size=32))
def test_no_int8_code_clips_and_the_nearest_is_taken(row: list[float]) -> None:
    values = np.array([row], np.float32)
    record = quantized(values, "i8_g32")
    assert record.scales is not None
    scale = float(record.scales[0, 0])
    if scale == 0:
        assert not values.any()
        return
    steps = values.astype(np.float64) / scale
    assert np.abs(steps).max() <= 127.5 * SLACK
    assert np.abs(record.codes.astype(np.int64) - 128 - steps).max() <= 0.5 * SLACK + 127 * 2**-22


@pytest.mark.parametrize("greatest", [2.0**-30, 1e-7, 3e-6, 1e-4])
def test_tiny_weights_get_a_scale_that_is_not_zero(greatest: float) -> None:
    values = np.linspace(-greatest, greatest, 32, dtype=np.float32)[None]
    record = quantized(values, "i8_g32")
    assert record.scales is not None
    assert record.scales[0, 0] > 0
    assert np.abs(dequantize(record) - values).max() <= float(record.scales[0, 0]) / 2 * SLACK


@pytest.mark.parametrize("depth", [32, 96, 40, 7])
@pytest.mark.parametrize("shift", [0.0, 5.0, -100.0])
def test_int4_keeps_within_half_a_step_and_the_rounding_of_its_minimum(depth: int, shift: float) -> None:
    values = np.random.default_rng(depth).standard_normal((9, depth)).astype(np.float32) + np.float32(shift)
    record = quantized(values, "i4m_g32")
    assert record.codes.max() <= 15
    assert record.scales is not None
    errors = groups_of(np.abs(dequantize(record).astype(np.float64) - values), 32)
    for column, (group, error) in enumerate(zip(groups_of(values, 32), errors, strict=True)):
        least, scale = group.min(axis=1).astype(np.float64), record.scales[:, column].astype(np.float64)
        rounding = 2**-11 * np.abs(least)
        assert (error.max(axis=1) <= (scale / 2 + rounding) * SLACK + 1e-6 * abs(shift)).all()
        assert (scale <= (group.max(axis=1) - least + rounding) / 15 * (1 + 2**-10) + 2**-24).all()


def test_int4_of_equal_values_is_their_float16() -> None:
    values = np.full((2, 32), 0.75, np.float32)
    np.testing.assert_array_equal(dequantize(quantized(values, "i4m_g32")), values)
    np.testing.assert_array_equal(dequantize(quantized(np.zeros((2, 32), np.float32), "i8_g32")), 0)


def test_bf16_rounds_to_nearest_even() -> None:
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    ties = (np.arange(1 << 12, dtype=np.uint32) + np.uint32(0x3F00)) << np.uint32(16) | np.uint32(0x8000)
    values = np.concatenate([bits, ties]).view(np.float32)
    values = values[np.isfinite(values) & (np.abs(values) < 1e38)].reshape(1, -1)
    record = quantized(values, "bf16")
    np.testing.assert_array_equal(record.codes, values.astype(ml_dtypes.bfloat16).view(np.uint16))


@pytest.mark.parametrize("panel_format", ["f32", "bf16", "i8_g32", "i8_c", "i4m_g32"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_values_that_are_not_finite_are_refused(panel_format: str, bad: float) -> None:
    values = np.zeros((2, 32), np.float32)
    values[1, 3] = bad
    with pytest.raises(CheckpointError, match="parameter w holds values that are not finite"):
        quantized(values, panel_format)


@pytest.mark.parametrize(("panel_format", "value"), [("i8_g32", 1e7), ("i4m_g32", -70000.0), ("i4m_g32", 1.2e6)])
def test_values_beyond_float16_scales_are_refused(panel_format: str, value: float) -> None:
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = value
    with pytest.raises(CheckpointError, match=r"parameter w holds values too large for float16 scales; use --weights"):
        quantized(values, panel_format)
    np.testing.assert_array_equal(dequantize(quantized(values, "f32")), values)


def test_nothing_quantizes_to_a_format_of_files() -> None:
    with pytest.raises(InternalError, match="nothing quantizes to q4_k"):
        quantized(np.zeros((1, 256), np.float32), "q4_k")


def test_a_choice_holds_whatever_the_checkpoint_has() -> None:
    layer, head = "layers.0.mlp.up_proj.weight", "lm_head.weight"
    assert chosen_format("auto", "q4_k", layer) == chosen_format("auto", "q4_k", head) == "q4_k"
    choices: tuple[WeightsChoice, ...] = ("f32", "bf16", "int8", "int4")
    assert [chosen_format(each, "q4_k", layer) for each in choices] == ["f32", "bf16", "i8_g32", "i4m_g32"]
    assert [chosen_format(each, "q4_k", head) for each in choices] == ["f32", "bf16", "i8_g32", "i8_g32"]
    assert chosen_format("int4", "f32", "embed_tokens.weight") == "i8_g32"
    with pytest.raises(InternalError, match="weights is 'int3'"):
        chosen_format("int3", "f32", layer)  # type: ignore[arg-type]
