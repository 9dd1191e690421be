"""Wanted rows are picked before what treats rows alone."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.gather_rows_early import gather_rows_early

GATHER = "%g: f32[R,6] = gather_rows({}, logit_rows)\noutput logits = %g\n"


def test_the_gather_moves_before_norm_head_scale_and_cap() -> None:
    assert_becomes(
        gather_rows_early,
        EMBED + "%1: f32[T,6] = add(%x, %x)\n%2: f32[T,6] = rms_norm(%1, norm; eps=1e-05)\n"
        "%3: f32[T,6] = gemm(%2, w, bias)\n%4: f32[T,6] = scale(%3; factor=0.5)\n%5: f32[T,6] = softcap(%4; cap=3.0)\n"
        + GATHER.format("%5"),
        EMBED + "%1: f32[T,6] = add(%x, %x)\n%0: f32[R,6] = gather_rows(%1, logit_rows)\n"
        "%2: f32[R,6] = rms_norm(%0, norm; eps=1e-05)\n%3: f32[R,6] = gemm(%2, w, bias)\n"
        "%4: f32[R,6] = scale(%3; factor=0.5)\n%5: f32[R,6] = softcap(%4; cap=3.0)\noutput logits = %5\n",
    )


def test_rows_that_others_read_are_made_whole() -> None:
    norm = EMBED + "%2: f32[T,6] = rms_norm(%x, norm; eps=1e-05)\n"
    assert_stays(gather_rows_early, norm + GATHER.format("%2") + "output all = %2\n")
    used = norm + "%3: f32[T,6] = add(%2, %x)\n"
    assert_stays(gather_rows_early, used + GATHER.format("%2") + "output all = %3\n")


def test_a_product_with_a_delta_and_a_gather_right_after_an_add_stay() -> None:
    assert_stays(gather_rows_early, EMBED + "%1: f32[T,6] = gemm(%x, w, -, %x)\n" + GATHER.format("%1"))
    assert_stays(gather_rows_early, EMBED + "%1: f32[T,6] = add(%x, %x)\n" + GATHER.format("%1"))
    assert_stays(gather_rows_early, GATHER.format("embeds"))
