"""What products read is rounded as their weights want it, where it is made or apart."""

from __future__ import annotations

import numpy as np
import pytest

from support.pass_cases import EMBED, assert_becomes, assert_stays, graph_of, options_for, values_of
from trivium.base.errors import InternalError
from trivium.compile.passes.choose_operands import choose_operands
from trivium.ir.rounding import round_operand

PRODUCT = "%{}: f32[T,{}] = projection({}, {}; scale=1.0, softcap=None)\n"
NORM = "%n: f32[T,6] = add_norm(%x, -, -, norm; eps=0.01, kind=None, gives=('wide',))\n"
TWO = (
    "%1: f32[T,6] = projection({}, w; scale=1.0, softcap=None)\n"
    "%2: f32[T,3] = projection({}, k; scale=1.0, softcap=None)\noutput a = %1\noutput b = %2\n"
)
APART = "%{}: {}[T,6] = add_norm({}; eps=None, kind='{}', gives=('operand',))\n"


def test_a_norm_gives_its_result_rounded_too() -> None:
    both = "%n, %o: f32[T,6], {0}[T,6] = add_norm(%x, -, -, norm; eps=0.01, kind='{0}', gives=('wide', 'operand'))\n"
    for form, kind in (
        ("f32", "f32t"),
        ("bf16", "bf16"),
        ("q6_k", "q8"),
        ("i4z_g128", "q8"),
        ("i8_g64 wide", "q8_wide"),
    ):
        assert_becomes(
            choose_operands,
            EMBED + NORM + TWO.format("%n", "%n"),
            EMBED + both.format(kind) + TWO.format("%o", "%o"),
            is_exact=form == "f32",
            w=form,
            k=form,
        )  # fmt: skip


def test_a_sum_without_a_norm_behind_is_its_own_result() -> None:
    add = "%s: f32[T,6] = add_norm(%x, embeds; eps=None, kind=None, gives=('sum',))\n"
    both = "%s, %o: f32[T,6], bf16[T,6] = add_norm(%x, embeds; eps=None, kind='bf16', gives=('sum', 'operand'))\n"
    end = "output a = %1\n"
    assert_becomes(
        choose_operands,
        EMBED + add + PRODUCT.format(1, 6, "%s", "w") + end,
        EMBED + both + PRODUCT.format(1, 6, "%o", "w") + end,
        is_exact=False,
        w="bf16",
    )
    normed = "%s, %n: f32[T,6], f32[T,6] = add_norm(%x, embeds, -, norm; eps=0.01, kind=None, gives=('sum', 'wide'))\n"
    assert_becomes(
        choose_operands,
        EMBED + normed + PRODUCT.format(1, 6, "%s", "w") + end + "output b = %n\n",
        EMBED
        + normed
        + APART.format("o", "bf16", "%s", "bf16")
        + PRODUCT.format(1, 6, "%o", "w")
        + end
        + "output b = %n\n",
        is_exact=False,
        w="bf16",
    )


def test_what_cannot_round_is_rounded_apart_right_behind_it() -> None:
    assert_becomes(
        choose_operands,
        EMBED + "%y: f32[T,6] = mul(%x, %x)\n" + PRODUCT.format(1, 6, "%x", "w") + "output a = %1\noutput b = %y\n",
        EMBED + APART.format("o", "bf16", "%x", "bf16") + "%y: f32[T,6] = mul(%x, %x)\n"
        + PRODUCT.format(1, 6, "%o", "w") + "output a = %1\noutput b = %y\n",
        is_exact=False,
        w="bf16",
    )  # fmt: skip
    assert_becomes(
        choose_operands,
        EMBED + PRODUCT.format(1, 6, "embeds", "w") + "output a = %1\noutput b = %x\n",
        APART.format("o", "f32t", "embeds", "f32t") + EMBED + PRODUCT.format(1, 6, "%o", "w")
        + "output a = %1\noutput b = %x\n",
    )  # fmt: skip


@pytest.mark.parametrize(("other", "kind"), [("bf16", "bf16"), ("i8_g128", "q8"), ("i8_g64 wide", "q8_wide")])
def test_products_that_need_different_operands_have_one_each(other: str, kind: str) -> None:
    both = "%n, %o: f32[T,6], q8[T,6] = add_norm(%x, -, -, norm; eps=0.01, kind='q8', gives=('wide', 'operand'))\n"
    assert_becomes(
        choose_operands,
        EMBED + NORM + TWO.format("%n", "%n"),
        EMBED + both + APART.format("p", kind, "%n", kind) + TWO.format("%o", "%p"),
        is_exact=False,
        w="i8_g32",
        k=other,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("maker", "product", "form"),
    [
        # Heads of 3 are not whole groups of an operand; attention writes whole heads.
        ("%y: f32[T,6] = attend(%h, %t; layer=0, scale=0.5, window=None, softcap=None, {})\n", "w", "i8_g32"),
        # Blocks of 128 reach past the panels that the product writes.
        ("%y: f32[T,8] = gated_projection(%o, gate, up; activation='silu', {})\n", "down", "i8_g128"),
    ],
)
def test_what_an_op_cannot_write_whole_is_rounded_apart(maker: str, product: str, form: str) -> None:
    start = EMBED + APART.format("o", "f32t", "%x", "f32t") + "%h: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n"
    start += "%t: kv = kv_write(%h, %h; layer=0)\n" + maker.format("kind=None, gives=('wide',)")
    width = 8 if product == "down" else 6
    assert_becomes(
        choose_operands,
        start + PRODUCT.format(1, 6, "%y", product) + "output a = %1\n",
        start
        + f"%p: q8[T,{width}] = add_norm(%y; eps=None, kind='q8', gives=('operand',))\n"
        + PRODUCT.format(1, 6, "%p", product)
        + "output a = %1\n",
        is_exact=False,
        **{product: form},
    )


def test_a_gate_writes_its_own_operand() -> None:
    start = EMBED + APART.format("o", "f32t", "%x", "f32t")
    gated = "%y{}: f32[T,8]{} = gated_projection(%o, gate, up; activation='silu', kind={}, gives={})\n"
    assert_becomes(
        choose_operands,
        start + gated.format("", "", None, "('wide',)") + PRODUCT.format(1, 6, "%y", "down") + "output a = %1\n",
        start + gated.format(", %p", ", bf16[T,8]", "'bf16'", "('wide', 'operand')")
        + PRODUCT.format(1, 6, "%p", "down") + "output a = %1\n",
        is_exact=False,
        down="bf16",
    )  # fmt: skip


def test_the_numbers_are_those_of_rounded_rows() -> None:
    graph = graph_of(EMBED + NORM + PRODUCT.format(1, 6, "%n", "w") + "output a = %1\noutput n = %n\n")
    exact, found = values_of(graph), values_of(choose_operands(graph, options_for(graph, w="q4_k")))
    np.testing.assert_array_equal(found["n"], exact["n"])
    rounded = round_operand(np, exact["n"], "q8").astype(np.float64)
    # exact["a"] = n @ w.T: w is found back by least squares, for n has full rank here only with a bias of rounding.
    w, *_ = np.linalg.lstsq(exact["n"].astype(np.float64), exact["a"].astype(np.float64), rcond=None)
    difference = (rounded - exact["n"]) @ w
    np.testing.assert_allclose(found["a"] - exact["a"], difference, atol=0.05)
    assert np.abs(found["a"] - exact["a"]).max() > 0


def test_operands_that_are_there_stay() -> None:
    assert_stays(
        choose_operands,
        EMBED + APART.format("o", "q8", "%x", "q8") + PRODUCT.format(1, 6, "%o", "w") + "output a = %1\n",
    )


def test_a_merged_product_of_different_operands_is_refused() -> None:
    graph = graph_of(EMBED + "%1: f32[T,9] = projection(%x, w, k; scale=1.0, softcap=None)\noutput a = %1\n")
    with pytest.raises(InternalError, match=r"merges weights that need different operands: \['w', 'k'\]"):
        choose_operands(graph, options_for(graph, k="bf16"))
