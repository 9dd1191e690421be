"""Queries, keys and values are one product; others are projections of their own."""

from __future__ import annotations

import pytest

from support.pass_cases import EMBED, ROPE, assert_becomes, graph_of, options_for, uses_of
from trivium.compile.passes.merge_projections import merge_projections

PRODUCTS = "%q: f32[T,6] = gemm(%x, w, bias)\n%k: f32[T,3] = gemm(%x, k)\n%v: f32[T,3] = gemm(%x, v, k_bias)\n"
PATHS = (
    "%q1: f32[T,2,3] = reshape(%q; shape=('T', 2, 3))\n%k1: f32[T,1,3] = reshape(%k; shape=('T', 1, 3))\n"
    "%v1: f32[T,1,3] = reshape(%v; shape=('T', 1, 3))\n%q2: f32[T,2,3] = rope(%q1, %r)\n"
    "%k2: f32[T,1,3] = rope(%k1, %r)\n%t: kv = kv_write(%k2, %v1; layer=0)\n"
    "%o: f32[T,2,3] = attention(%q2, %t; layer=0, scale=0.5, window=None, softcap=None)\noutput a = %o\n"
)
NORM = "%n: f32[T,6] = rms_norm(%x, norm; eps=0.1)\n"
PLAIN = "scale=1.0, softcap=None"


def test_q_k_and_v_become_one_product_and_a_split() -> None:
    assert_becomes(
        merge_projections,
        EMBED + ROPE + PRODUCTS + PATHS,
        EMBED + ROPE + f"%h: f32[T,12] = projection(%x, w, k, v, bias, -, k_bias; {PLAIN})\n"
        "%q, %k, %v: f32[T,6], f32[T,3], f32[T,3] = split(%h; sizes=(6, 3, 3))\n" + PATHS,
    )


def test_every_other_product_is_a_projection_alone() -> None:
    assert_becomes(
        merge_projections,
        EMBED + "%1: f32[T,6] = gemm(%x, w, bias, %x)\n%2: f32[T,6] = gemm(%x, w2)\noutput a = %1\noutput b = %2\n",
        EMBED + f"%1: f32[T,6] = projection(%x, w, -, -, bias, -, -, %x; {PLAIN})\n"
        f"%2: f32[T,6] = projection(%x, w2; {PLAIN})\noutput a = %1\noutput b = %2\n",
    )


def test_deltas_of_merged_products_are_asked_for_at_once() -> None:
    ask = "%d{}: f32[T,{}] = adapter_delta(%x; parameters=('{}',), widths=({},), rows='T')\n"
    asks = ask.format("q", 6, "w", 6) + ask.format("k", 3, "k", 3) + ask.format("v", 3, "v", 3)
    products = PRODUCTS.replace("bias)\n%k:", "bias, %dq)\n%k:").replace("(%x, k)", "(%x, k, -, %dk)")
    assert_becomes(
        merge_projections,
        EMBED + ROPE + asks + products.replace("k_bias)", "k_bias, %dv)") + PATHS,
        EMBED
        + ROPE
        + asks
        + "%d: f32[T,12] = adapter_delta(%x; parameters=('w', 'k', 'v'), widths=(6, 3, 3), rows='T')\n"
        f"%h: f32[T,12] = projection(%x, w, k, v, bias, -, k_bias, %d; {PLAIN})\n"
        "%q, %k, %v: f32[T,6], f32[T,3], f32[T,3] = split(%h; sizes=(6, 3, 3))\n" + PATHS,
    )


@pytest.mark.parametrize(
    ("products", "formats"),
    [
        (PRODUCTS.replace("%v: f32[T,3] = gemm(%x", NORM + "%v: f32[T,3] = gemm(%n"), {}),
        (PRODUCTS + "%z: f32[T,3] = add(%k, %k)\n", {}),
        (PRODUCTS.replace("(%x, k)", "(%x, k, -, %v0)").replace("%k:", "%v0: f32[T,3] = gemm(%x, v)\n%k:"), {}),
        (PRODUCTS, {"k": "bf16"}),
        (PRODUCTS, {"w": "i8_g32", "k": "q4_k", "v": "i8_g32"}),
    ],
)  # fmt: skip
def test_products_that_do_not_belong_together_stay_apart(products: str, formats: dict[str, str]) -> None:
    graph = graph_of(EMBED + ROPE + products + PATHS + ("output z = %z\n" if "%z" in products else ""))
    found = merge_projections(graph, options_for(graph, **formats))
    assert uses_of(found, "split") == uses_of(found, "gemm") == 0
    assert uses_of(found, "projection") == products.count("gemm(")
