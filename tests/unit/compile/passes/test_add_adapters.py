"""Every product asks the adapters, on what it multiplies; only where they are asked for."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, graph_of, options_for
from trivium.compile.passes.add_adapters import add_adapters

BODY = (
    EMBED + "%1: f32[T,6] = gemm(%x, w, bias)\n%2: f32[T,6] = gemm(%x, w2, -, %1)\n"
    "%3: f32[R,6] = gather_rows(%2, logit_rows)\n%4: f32[R,3] = gemm(%3, k)\noutput logits = %4\n"
)


def test_products_without_a_delta_get_one() -> None:
    assert_becomes(
        add_adapters,
        BODY,
        EMBED + "%d: f32[T,6] = adapter_delta(%x; parameters=('w',), widths=(6,), rows='T')\n"
        "%1: f32[T,6] = gemm(%x, w, bias, %d)\n%2: f32[T,6] = gemm(%x, w2, -, %1)\n"
        "%3: f32[R,6] = gather_rows(%2, logit_rows)\n"
        "%e: f32[R,3] = adapter_delta(%3; parameters=('k',), widths=(3,), rows='R')\n"
        "%4: f32[R,3] = gemm(%3, k, -, %e)\noutput logits = %4\n",
        has_adapters=True,
        is_exact=False,
    )


def test_the_base_program_is_left_alone() -> None:
    graph = graph_of(BODY)
    assert add_adapters(graph, options_for(graph)) is graph
