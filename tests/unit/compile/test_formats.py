"""The table of formats says what the weights' table and the kernels' table say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trivium.base.errors import InternalError
from trivium.compile.formats import FORMATS, format_named
from trivium.compile.options import LeftOperand, PassOptions
from trivium.plan.program import SumKind
from trivium.weights.kinds import PANEL_FORMATS, scale_span

SOURCE = Path(__file__).parents[3] / "csrc" / "ops" / "linear" / "format.cpp"
ROW = re.compile(
    r'(?P<kind>floats|ints)(?:<[^(]*>)?\(FormatId::\w+, "(?P<name>\w+)", (?P<rest>[^)]*)\)'
)  # ints: block, group, zero, has_min


def test_formats_are_those_that_weights_come_in() -> None:
    assert set(FORMATS) == set(PANEL_FORMATS)
    for name, form in FORMATS.items():
        zero = PANEL_FORMATS[name].zero
        if form.sum is not None and name != "iq4":
            assert form.sum.zero == zero


def test_formats_are_those_of_the_kernels() -> None:
    rows = list(ROW.finditer(SOURCE.read_text()))
    assert [row["name"] for row in rows] == list(FORMATS)
    for row in rows:
        form = FORMATS[row["name"]]
        cells = row["rest"].split(", ")
        if row["kind"] == "floats":
            assert (form.operand, form.block, form.sum) == ("bf16" if form.name == "bf16" else "f32t", 32, None)
            continue
        block, group, zero, has_min = cells
        assert form.operand == "q8"
        assert form.block == (256 if block == "kSuper" else int(block))
        assert form.sum == SumKind(int(group), int(zero))
        assert (has_min == "true") == (form.sum.zero == 0)


def test_depths_are_padded_to_whole_blocks() -> None:
    assert [format_named("i8_g128").padded(depth) for depth in (1, 128, 129)] == [128, 128, 256]
    assert format_named("q4_k").padded(576) == 768
    assert format_named("f32").padded(33) == 64


def test_groups_of_64_are_for_formats_whose_scales_span_as_many() -> None:
    for name, form in FORMATS.items():
        assert form.with_groups(32) == form
        wide = form.with_groups(64)
        assert (wide.operand == "q8_wide") == (scale_span(name) >= 64) == (wide != form)
        if wide != form:
            assert form.sum is not None
            assert wide.sum == SumKind(64, form.sum.zero)
            assert (wide.block, wide.padded(200) % 64) == (form.block, 0)
    assert {name for name, form in FORMATS.items() if form.with_groups(64) != form} == {
        "i8_g64",
        "i8_g128",
        "i4z_g64",
        "i4z_g128",
    }


def test_a_name_that_is_no_format_is_refused_with_those_that_are() -> None:
    with pytest.raises(InternalError, match=r"no weight format 'q9'; known are: f32, bf16, f16, i8_c, .*iq4"):
        format_named("q9")


def test_options_say_what_products_must_be_given() -> None:
    options = PassOptions({"w": format_named("q6_k")})
    assert options.left_of("w", 576) == LeftOperand("q8", 768)
    with pytest.raises(InternalError, match="no format is known for parameter v"):
        options.left_of("v", 576)
    with pytest.raises(InternalError, match="parameter w has no fixed depth: T"):
        options.left_of("w", "T")
