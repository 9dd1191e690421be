"""Gate and up become one product that gates."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.fuse_gated_projection import fuse_gated_projection

GATE, UP = "%g: f32[T,8] = gemm(%x, gate)\n", "%u: f32[T,8] = gemm(%x, up, up_bias)\n"
GATED = "%y: f32[T,8] = gated(%g, %u; activation='silu')\noutput a = %y\n"


def test_gate_and_up_become_one_product() -> None:
    assert_becomes(
        fuse_gated_projection,
        EMBED + GATE + UP + GATED,
        EMBED + "%y: f32[T,8] = gated_projection(%x, gate, up, -, up_bias; activation='silu', kind=None, "
        "gives=('wide',))\noutput a = %y\n",
    )


def test_their_adapters_are_asked_once() -> None:
    ask = "%{}: f32[T,8] = adapter_delta(%x; parameters=('{}',), widths=(8,), rows='T')\n"
    assert_becomes(
        fuse_gated_projection,
        EMBED
        + ask.format("dg", "gate")
        + ask.format("du", "up")
        + GATE.replace("gate)", "gate, -, %dg)")
        + UP.replace("bias)", "bias, %du)")
        + GATED,
        EMBED
        + ask.format("dg", "gate")
        + ask.format("du", "up")
        + "%d: f32[T,16] = adapter_delta(%x; parameters=('gate', 'up'), widths=(8, 8), rows='T')\n"
        "%y: f32[T,8] = gated_projection(%x, gate, up, -, up_bias, %d; activation='silu', kind=None, gives=('wide',))\n"
        "output a = %y\n",
    )


@pytest.mark.parametrize(
    "body",
    [
        EMBED + GATE + UP + GATED + "output b = %g\n",
        EMBED + GATE + UP + GATED + "%z: f32[T,8] = add(%u, %u)\noutput b = %z\n",
        EMBED + GATE + GATED.replace("%u", "%g"),
        EMBED + "%n: f32[T,6] = rms_norm(%x, norm; eps=0.1)\n" + GATE + UP.replace("%x", "%n") + GATED,
        EMBED + GATE + "%u: f32[T,8] = add(%g, %g)\n" + GATED,
        EMBED + GATE + UP.replace("bias)", "bias, %g)") + GATED,
    ],
)
def test_products_that_do_not_belong_together_stay(body: str) -> None:
    assert_stays(fuse_gated_projection, body)


def test_a_delta_that_adapters_do_not_give_stays() -> None:
    body = EMBED + "%d: f32[T,8] = gemm(%x, up)\n" + GATE.replace("gate)", "gate, -, %d)") + UP + GATED
    assert_stays(fuse_gated_projection, body)


def test_weights_that_need_different_operands_stay() -> None:
    assert_stays(fuse_gated_projection, EMBED + GATE + UP + GATED, gate="bf16", up="i8_g32")
    assert_stays(fuse_gated_projection, EMBED + GATE + UP + GATED, gate="i8_g128", up="i8_g32")
