"""Rounding to operands: against ml_dtypes for bfloat16, against float64 and by law for eight bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trivium.ir.rounding import GROUPS, round_operand

any_float32 = st.floats(width=32, allow_nan=True, allow_infinity=True)
LARGEST = 2.0**127
"""Above it 127 times the rounded scale may be infinite."""
finite_float32 = st.floats(-LARGEST, LARGEST, width=32)


@given(x=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 70)), elements=any_float32))
def test_bf16_is_the_nearest_bfloat16_to_the_bit(x: np.ndarray) -> None:
    found = round_operand(np, x, "bf16")
    expected = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(x))
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found)[~np.isnan(x)], np.signbit(x)[~np.isnan(x)])


def test_bf16_ties_go_to_even_and_large_numbers_to_infinity() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF], np.uint32)
    found = round_operand(np, bits.view(np.float32), "bf16").view(np.uint32) >> 16
    assert [hex(each) for each in found[:5]] == ["0x3f80", "0x3f82", "0x3f81", "0x7f80", "0xff80"]
    assert np.isnan(np.uint32(found[5] << 16).view(np.float32))


@given(
    x=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 150)), elements=finite_float32),
    kind=st.sampled_from(sorted(GROUPS)),
)
def test_q8_values_are_units_times_the_scale_of_their_group(x: np.ndarray, kind: str) -> None:
    found = round_operand(np, x, kind)
    assert found.dtype == np.float32
    assert found.shape == x.shape
    for start in range(0, x.shape[1], GROUPS[kind]):
        group, rounded = x[:, start : start + GROUPS[kind]], found[:, start : start + GROUPS[kind]]
        largest = np.abs(group).max(axis=1, keepdims=True)
        scale = largest / np.float32(127)
        # Half a unit, and the roundings of 127 / a, of the product, of the scale and of the value.
        bound = scale.astype(np.float64) * (0.5 + 127 * 4 * 2.0**-24)
        is_tiny = largest < 2.0**-120
        error = np.abs(rounded.astype(np.float64) - group)
        assert (error <= np.where(is_tiny, largest, bound)).all()
        assert (rounded[np.broadcast_to(is_tiny, rounded.shape)] == 0).all()
        units = np.divide(rounded, scale, where=~is_tiny, out=np.zeros_like(rounded))
        assert np.abs(units - np.rint(units)).max() <= 127 * 2.0**-22
        assert np.abs(np.rint(units)).max() <= 127


def test_q8_of_known_numbers() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, :4] = [127.0, 0.5, 1.5, -2.4]
    x[0, 32:34] = [-1.0, 0.5]
    found = round_operand(np, x, "q8")
    np.testing.assert_array_equal(found[0, :5], [127.0, 0.0, 2.0, -2.0, 0.0])
    np.testing.assert_array_equal(found[0, 32:35], [-1.0, np.float32(64) * (np.float32(1) / np.float32(127)), 0.0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "group"), GROUPS.items())
def test_a_number_that_is_not_finite_spoils_its_group_and_no_other(bad: float, kind: str, group: int) -> None:
    x = np.ones((2, 3 * group), np.float32)
    x[0, group + 8] = bad
    found = round_operand(np, x, kind)
    assert np.isnan(found[0, group : 2 * group]).all()
    assert np.isfinite(found[0, :group]).all()
    assert np.isfinite(found[0, 2 * group :]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("kind", ["f32t", "bf16", *GROUPS])
@given(x=arrays(np.float32, (3, 50), elements=finite_float32))
def test_rows_are_rounded_alone_and_left_as_they_were(kind: str, x: np.ndarray) -> None:
    before = x.copy()
    whole = round_operand(np, x, kind)
    np.testing.assert_array_equal(x, before)
    for row in range(3):
        np.testing.assert_array_equal(round_operand(np, x[row : row + 1], kind)[0], whole[row])
    if kind == "f32t":
        np.testing.assert_array_equal(whole, x)
