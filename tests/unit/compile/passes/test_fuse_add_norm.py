"""Adds, norms and gathers of rows become one op, where the first of them stood."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.fuse_add_norm import fuse_add_norm

Y = EMBED + "%y: f32[T,6] = mul(%x, %x)\n"
CHANGE = "%b: f32[T,6] = rms_norm(%y, norm; eps=0.01)\n"
ADD = "%s: f32[T,6] = add(%x, {})\n"
NORM = "%n: f32[{},6] = rms_norm({}, norm2; eps=0.01)\n"
GATHER = "%g: f32[R,6] = gather_rows({}, logit_rows)\n"
FUSED = "{} = add_norm({}; eps={}, kind=None, gives={})\n"
BOTH, SUM, WIDE = "%s, %n: f32[T,6], f32[T,6]", "%s: f32[T,6]", "%n: f32[T,6]"
ROWS = "%n: f32[R,6]"


def fused(results: str, inputs: str, eps: float | None, gives: str) -> str:
    return FUSED.format(results, inputs, eps, gives)


CASES = {
    "sandwich": (
        CHANGE + ADD.format("%b") + NORM.format("T", "%s") + "output a = %n\noutput b = %s\n",
        fused(BOTH, "%x, %y, norm, norm2", 0.01, "('sum', 'wide')") + "output a = %n\noutput b = %s\n",
    ),
    "sandwich turned": (
        CHANGE + "%s: f32[T,6] = add(%b, %x)\n" + NORM.format("T", "%s") + "output a = %n\noutput b = %s\n",
        fused(BOTH, "%x, %y, norm, norm2", 0.01, "('sum', 'wide')") + "output a = %n\noutput b = %s\n",
    ),
    "sum that only the norm reads": (
        ADD.format("%y") + NORM.format("T", "%s") + "output a = %n\n",
        fused(WIDE, "%x, %y, -, norm2", 0.01, "('wide',)") + "output a = %n\n",
    ),
    "post-norm without a norm behind": (
        CHANGE + ADD.format("%b") + "output a = %s\n",
        fused(SUM, "%x, %y, norm", 0.01, "('sum',)") + "output a = %s\n",
    ),
    "norm alone": (
        NORM.format("T", "%y") + "output a = %n\n",
        fused(WIDE, "%y, -, -, norm2", 0.01, "('wide',)") + "output a = %n\n",
    ),
    "gathered norm": (
        GATHER.format("%y") + NORM.format("R", "%g") + "output a = %n\n",
        fused(ROWS, "%y, -, -, norm2, logit_rows", 0.01, "('wide',)") + "output a = %n\n",
    ),
    "gathered sandwich": (
        CHANGE + ADD.format("%b") + GATHER.format("%s") + NORM.format("R", "%g") + "output a = %n\n",
        fused(ROWS, "%x, %y, norm, norm2, logit_rows", 0.01, "('wide',)") + "output a = %n\n",
    ),
    "gathered sum that others read": (
        ADD.format("%y") + GATHER.format("%s") + NORM.format("R", "%g") + "output a = %n\noutput b = %g\n",
        fused("%g: f32[R,6]", "%x, %y, -, -, logit_rows", None, "('wide',)")
        + fused(ROWS, "%g, -, -, norm2", 0.01, "('wide',)")
        + "output a = %n\noutput b = %g\n",
    ),
    "whole sum and gathered norm": (
        ADD.format("%y") + GATHER.format("%s") + NORM.format("R", "%g") + "output a = %n\noutput b = %s\n",
        ADD.format("%y") + fused(ROWS, "%s, -, -, norm2, logit_rows", 0.01, "('wide',)")
        + "output a = %n\noutput b = %s\n",
    ),
    "gather alone": (
        GATHER.format("%y") + "output a = %g\n",
        fused("%g: f32[R,6]", "%y, -, -, -, logit_rows", None, "('wide',)") + "output a = %g\n",
    ),
    "sum that a product reads": (
        ADD.format("%y") + "%p: f32[T,3] = projection(%s, k; scale=1.0, softcap=None)\noutput a = %p\n",
        fused(SUM, "%x, %y", None, "('sum',)")
        + "%p: f32[T,3] = projection(%s, k; scale=1.0, softcap=None)\noutput a = %p\n",
    ),
    "two norms of one sum": (
        ADD.format("%y") + NORM.format("T", "%s") + "%m: f32[T,6] = rms_norm(%s, norm; eps=0.5)\n"
        "output a = %n\noutput b = %m\n",
        fused(BOTH, "%x, %y, -, norm2", 0.01, "('sum', 'wide')")
        + fused("%m: f32[T,6]", "%s, -, -, norm", 0.5, "('wide',)") + "output a = %n\noutput b = %m\n",
    ),
    "norms of different eps": (
        CHANGE.replace("0.01", "0.5") + ADD.format("%b") + NORM.format("T", "%s") + "output a = %n\n",
        fused(SUM, "%x, %y, norm", 0.5, "('sum',)") + fused(WIDE, "%s, -, -, norm2", 0.01, "('wide',)")
        + "output a = %n\n",
    ),
    "norm whose result others read": (
        CHANGE + ADD.format("%b") + "output a = %s\noutput b = %b\n",
        fused("%b: f32[T,6]", "%y, -, -, norm", 0.01, "('wide',)") + ADD.format("%b")
        + "output a = %s\noutput b = %b\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_rows_are_added_normed_and_picked_at_once(name: str) -> None:
    before, expected = CASES[name]
    assert_becomes(fuse_add_norm, Y + before, Y + expected)


def test_an_add_of_nothing_in_particular_and_norms_of_heads_stay() -> None:
    assert_stays(fuse_add_norm, Y + ADD.format("%y") + "output a = %s\n")
    heads = "%h: f32[T,2,3] = reshape(%y; shape=('T', 2, 3))\n%m: f32[T,2,3] = rms_norm(%h, head_norm; eps=0.01)\n"
    assert_stays(fuse_add_norm, Y + heads + "%s: f32[T,2,3] = add(%h, %m)\noutput a = %s\n")
