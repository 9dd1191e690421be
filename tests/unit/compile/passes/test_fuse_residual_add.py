"""A product adds itself to a residual that dies there."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.fuse_residual_add import fuse_residual_add

NORM = "%n: f32[T,6] = rms_norm(%x, norm; eps=0.01)\n"
PRODUCT = "%y: f32[T,6] = projection(%n, w, -, -, bias; scale=1.0, softcap=None)\n"
ADD = "%z: f32[T,6] = add(%x, %y)\n"
END = "output a = %z\n"
FUSED = "%z: f32[T,6] = projection_add(%n, w, %x, bias)\n"


def test_the_add_enters_the_product_from_either_side() -> None:
    assert_becomes(fuse_residual_add, EMBED + NORM + PRODUCT + ADD + END, EMBED + NORM + FUSED + END)
    turned = ADD.replace("%x, %y", "%y, %x")
    assert_becomes(fuse_residual_add, EMBED + NORM + PRODUCT + turned + END, EMBED + NORM + FUSED + END)


def test_a_delta_goes_along_and_a_sum_of_products_takes_one_of_them() -> None:
    delta = PRODUCT.replace("bias;", "bias, -, -, %n;")
    fused = FUSED.replace("bias)", "bias, %n)")
    assert_becomes(fuse_residual_add, EMBED + NORM + delta + ADD + END, EMBED + NORM + fused + END)
    other = "%w: f32[T,6] = projection(%n, w2; scale=1.0, softcap=None)\n"
    assert_becomes(
        fuse_residual_add,
        EMBED + NORM + other + PRODUCT + ADD.replace("%x", "%w") + END,
        EMBED + NORM + other + FUSED.replace("%x", "%w") + END,
    )


@pytest.mark.parametrize(
    "body",
    [
        NORM + PRODUCT + ADD + "%l: f32[T,6] = mul(%x, %z)\noutput b = %l\n",
        NORM + PRODUCT + ADD + "output b = %x\n",
        NORM + PRODUCT + ADD + "output b = %y\n",
        NORM + PRODUCT + ADD.replace("%x", "embeds"),
        NORM + PRODUCT.replace("1.0", "2.0") + ADD,
        NORM + PRODUCT.replace("None", "2.0") + ADD,
        NORM + PRODUCT + ADD.replace("%x", "%y"),
        NORM + "%y: f32[T,6] = projection(%n, k, v; scale=1.0, softcap=None)\n" + ADD,
        NORM + "%y: f32[T,6] = mul(%n, %n)\n" + ADD,
    ],
)
def test_a_residual_that_lives_on_and_other_products_stay(body: str) -> None:
    assert_stays(fuse_residual_add, EMBED + body + END)


def test_a_product_does_not_move_past_the_end_of_what_it_multiplies() -> None:
    """Down at its own add, the second product would read x after the first add has written over it."""
    late = "%p: f32[T,6] = projection(%x, w2; scale=1.0, softcap=None)\n"
    end = "%s: f32[T,6] = add(%n, %p)\noutput a = %z\noutput b = %s\n"
    assert_becomes(
        fuse_residual_add,
        EMBED + NORM + late + PRODUCT + ADD + end,
        EMBED + NORM + late + FUSED + end,
    )
