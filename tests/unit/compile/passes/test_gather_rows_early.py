"""Wanted rows are picked before what treats rows alone."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.gather_rows_early import gather_rows_early

GATHER = "%g: f32[R,6] = gather_rows({}, logit_rows)\noutput logits = %g\n"
SOURCES = EMBED + "%a: f32[T,6] = gemm(%x, w2)\n%b: f32[T,6] = rms_norm(%x, norm2; eps=1e-05)\n"
READ = "output a = %a\noutput b = %b\n"


def test_the_gather_moves_before_norm_head_scale_and_cap() -> None:
    assert_becomes(
        gather_rows_early,
        SOURCES + "%2: f32[T,6] = rms_norm(%a, norm; eps=1e-05)\n%3: f32[T,6] = gemm(%2, w, bias)\n"
        "%4: f32[T,6] = scale(%3; factor=0.5)\n%5: f32[T,6] = softcap(%4; cap=3.0)\n" + GATHER.format("%5") + READ,
        SOURCES + "%0: f32[R,6] = gather_rows(%a, logit_rows)\n%2: f32[R,6] = rms_norm(%0, norm; eps=1e-05)\n"
        "%3: f32[R,6] = gemm(%2, w, bias)\n%4: f32[R,6] = scale(%3; factor=0.5)\n"
        "%g: f32[R,6] = softcap(%4; cap=3.0)\noutput logits = %g\n" + READ,
    )


def test_a_whole_residual_block_moves_and_gathers_each_source_once() -> None:
    layer = (
        "%o{i}: f32[{s},6] = gemm({a}, w)\n%s{i}: f32[{s},6] = add({b}, %o{i})\n"
        "%n{i}: f32[{s},6] = rms_norm(%s{i}, norm; eps=0.1)\n%u{i}: f32[{s},8] = gemm(%n{i}, gate)\n"
        "%v{i}: f32[{s},8] = gemm(%n{i}, up, up_bias, {d})\n"
        "%y{i}: f32[{s},8] = gated(%u{i}, %v{i}; activation='silu')\n"
        "%d{i}: f32[{s},6] = gemm(%y{i}, down)\n%m{i}: f32[{s},6] = mul(%d{i}, {b})\n"
    )
    delta = "%delta: f32[T,8] = gemm(%x, gate)\n"
    before = layer.format(i=1, s="T", a="%a", b="%b", d="%delta") + "%z: f32[T,6] = add(%s1, %m1)\n"
    end = "output delta = %delta\n" + READ
    after = layer.format(i=2, s="R", a="%ga", b="%gb", d="%gd") + "%z: f32[R,6] = add(%s2, %m2)\noutput logits = %z\n"
    after = after.replace("%s2: f32[R,6] = add", "%gb: f32[R,6] = gather_rows(%b, logit_rows)\n%s2: f32[R,6] = add")
    after = after.replace("%v2: f32", "%gd: f32[R,8] = gather_rows(%delta, logit_rows)\n%v2: f32")
    assert_becomes(
        gather_rows_early,
        SOURCES + delta + before + GATHER.format("%z") + end,
        SOURCES + delta + "%ga: f32[R,6] = gather_rows(%a, logit_rows)\n" + after + end,
    )


def test_rows_that_others_read_are_made_whole() -> None:
    norm = SOURCES + "%2: f32[T,6] = rms_norm(%a, norm; eps=1e-05)\n"
    assert_stays(gather_rows_early, norm + GATHER.format("%2") + "output all = %2\n" + READ)
    used = norm + "%3: f32[T,6] = add(%2, %a)\n"
    assert_stays(gather_rows_early, used + GATHER.format("%2") + "output all = %3\n" + READ)
    twice = norm + "%h: f32[R,6] = gather_rows(%2, logit_rows)\noutput all = %h\n"
    assert_stays(gather_rows_early, twice + GATHER.format("%2") + READ)


def test_a_sum_of_what_others_read_is_gathered_once() -> None:
    assert_stays(gather_rows_early, SOURCES + "%1: f32[T,6] = add(%a, %b)\n" + GATHER.format("%1") + READ)
    assert_stays(gather_rows_early, GATHER.format("embeds"))
    heads = "%1: f32[T,2,3] = reshape(%a; shape=('T', 2, 3))\n%2: f32[T,2,3] = rms_norm(%1, head_norm; eps=0.1)\n"
    heads += "%3: f32[T,6] = reshape(%2; shape=('T', 6))\n"
    assert_stays(gather_rows_early, SOURCES + heads + GATHER.format("%3") + READ)
