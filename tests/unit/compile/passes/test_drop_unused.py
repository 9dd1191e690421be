"""What nobody reads is not computed; what is left is numbered from the first value on."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, graph_of, options_for
from trivium.compile.passes.drop_unused import drop_unused
from trivium.ir.printer import to_text


def test_chains_that_lead_nowhere_vanish_and_effects_stay() -> None:
    heads = "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%t: kv = kv_write(%1, %1; layer=0)\n"
    dead = (
        "%2: f32[T,6] = mul(%x, %x)\n%3: f32[T,6] = add(%2, %x)\n%4, %5: f32[T,2], f32[T,4] = split(%3; sizes=(2, 4))\n"
    )
    alive = "%6, %7: f32[T,2], f32[T,4] = split(%x; sizes=(2, 4))\noutput a = %7\n"
    assert_becomes(drop_unused, EMBED + heads + dead + alive, EMBED + heads + alive)


def test_forms_that_nobody_reads_are_not_given() -> None:
    norm = "%s, %n, %o: f32[T,6], f32[T,6], q8[T,6] = add_norm(%x, embeds, -, norm; eps=0.01, kind='q8', gives=('sum', 'wide', 'operand'))\n"  # noqa: E501
    for read, results, inputs, eps, kind in (
        ("%n", "%n: f32[T,6]", "%x, embeds, -, norm", 0.01, None),
        ("%s", "%s: f32[T,6]", "%x, embeds", None, None),
    ):
        gives = "('wide',)" if read == "%n" else "('sum',)"
        assert_becomes(
            drop_unused,
            EMBED + norm + f"output a = {read}\n",
            EMBED + f"{results} = add_norm({inputs}; eps={eps}, kind={kind}, gives={gives})\noutput a = {read}\n",
        )
    product = "%p: f32[T,6] = projection(%o, w; scale=1.0, softcap=None)\noutput a = %p\n"
    assert_becomes(
        drop_unused,
        EMBED + norm + product,
        EMBED + "%o: q8[T,6] = add_norm(%x, embeds, -, norm; eps=0.01, kind='q8', gives=('operand',))\n" + product,
    )


def test_a_sum_that_needs_the_norm_of_what_is_added_keeps_its_eps() -> None:
    norm = (
        "%s, %n: f32[T,6], f32[T,6] = add_norm(%x, embeds, norm, norm2; eps=0.01, kind=None, gives=('sum', 'wide'))\n"
    )
    assert_becomes(
        drop_unused,
        EMBED + norm + "output a = %s\n",
        EMBED + "%s: f32[T,6] = add_norm(%x, embeds, norm; eps=0.01, kind=None, gives=('sum',))\noutput a = %s\n",
    )


def test_values_are_numbered_in_order() -> None:
    graph = graph_of(EMBED + "%new7: f32[T,6] = mul(%x, %x)\n%a: f32[T,6] = add(%new7, %x)\noutput y = %a\n")
    text = to_text(drop_unused(graph, options_for(graph)))
    assert text.endswith("%1: f32[T,6] = mul(%0, %0)\n%2: f32[T,6] = add(%1, %0)\noutput y = %2\n")
