"""A product scales and caps itself, in that order."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.fuse_logit_scaling import fuse_logit_scaling

PRODUCT = "%1: f32[T,6] = projection(%x, w, -, -, bias; scale=1.0, softcap=None)\n"
SCALE, CAP = "%2: f32[T,6] = scale(%1; factor=0.25)\n", "%3: f32[T,6] = softcap({}; cap=4.0)\n"


def test_scale_and_cap_enter_the_product() -> None:
    fused = "%3: f32[T,6] = projection(%x, w, -, -, bias; scale={}, softcap={})\noutput a = %3\n"
    end = "output a = %3\n"
    assert_becomes(
        fuse_logit_scaling, EMBED + PRODUCT + SCALE + CAP.format("%2") + end, EMBED + fused.format(0.25, 4.0)
    )
    assert_becomes(fuse_logit_scaling, EMBED + PRODUCT + CAP.format("%1") + end, EMBED + fused.format(1.0, 4.0))
    alone = EMBED + PRODUCT + SCALE + "output a = %2\n"
    assert_becomes(fuse_logit_scaling, alone, EMBED + fused.format(0.25, None))


@pytest.mark.parametrize(
    "body",
    [
        PRODUCT.replace("None", "4.0") + SCALE + "output a = %2\n",
        PRODUCT.replace("1.0", "2.0") + SCALE + "output a = %2\n",
        PRODUCT + SCALE + "output a = %2\noutput b = %1\n",
        "%1: f32[T,6] = add(%x, %x)\n" + SCALE + "output a = %2\n",
    ],
)
def test_another_order_and_other_readers_stay(body: str) -> None:
    assert_stays(fuse_logit_scaling, EMBED + body)
