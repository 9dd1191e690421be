"""The template of a pass works, so that it can be copied."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes._template import double_instead_of_add
from trivium.compile.pipeline import PASSES


def test_a_value_added_to_itself_is_doubled() -> None:
    assert_becomes(
        double_instead_of_add,
        EMBED + "%1: f32[T,6] = add(%x, %x)\n%2: f32[T,6] = add(%1, %1)\noutput a = %2\n",
        EMBED + "%1: f32[T,6] = scale(%x; factor=2.0)\n%2: f32[T,6] = scale(%1; factor=2.0)\noutput a = %2\n",
    )


def test_other_sums_stay_and_the_pipeline_does_not_know_it() -> None:
    assert_stays(double_instead_of_add, EMBED + "%1: f32[T,6] = add(%x, embeds)\noutput a = %1\n")
    assert double_instead_of_add not in [each.run for each in PASSES]
