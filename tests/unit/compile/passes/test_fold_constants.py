"""Nodes that change nothing are gone; what may not be folded stays."""

from __future__ import annotations

from support.pass_cases import EMBED, assert_becomes, assert_stays
from trivium.compile.passes.fold_constants import fold_constants

BARE = "%x: f32[T,6] = embed(token_ids, table; scale=1.0)\n"


def test_scales_by_one_splits_into_one_and_reshapes_to_the_same_vanish() -> None:
    assert_becomes(
        fold_constants,
        EMBED + "%1: f32[T,6] = scale(%x; factor=1.0)\n%2: f32[T,6] = split(%1; sizes=(6,))\n"
        "%3: f32[T,6] = reshape(%2; shape=('T', 6))\n%4: f32[T,6] = add(%3, %1)\n"
        "output logits = %4\noutput also = %3\n",
        EMBED + "%4: f32[T,6] = add(%x, %x)\noutput logits = %4\noutput also = %x\n",
    )


def test_a_reshape_of_a_reshape_is_one() -> None:
    assert_becomes(
        fold_constants,
        EMBED + "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%2: f32[T,3,2] = reshape(%1; shape=('T', 3, 2))\n"
        "%3: f32[T,1,6] = reshape(%2; shape=('T', 1, 6))\noutput a = %1\noutput b = %2\noutput c = %3\n",
        EMBED + "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%2: f32[T,3,2] = reshape(%x; shape=('T', 3, 2))\n"
        "%3: f32[T,1,6] = reshape(%x; shape=('T', 1, 6))\noutput a = %1\noutput b = %2\noutput c = %3\n",
    )


def test_a_reshape_there_and_back_vanishes() -> None:
    assert_becomes(
        fold_constants,
        EMBED + "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%2: f32[T,6] = reshape(%1; shape=('T', 6))\n"
        "%3: f32[T,2,3] = scale(%1; factor=2.0)\noutput a = %2\noutput b = %3\n",
        EMBED + "%1: f32[T,2,3] = reshape(%x; shape=('T', 2, 3))\n%3: f32[T,2,3] = scale(%1; factor=2.0)\n"
        "output a = %x\noutput b = %3\n",
    )


def test_a_scaled_embedding_scales_itself() -> None:
    assert_becomes(
        fold_constants,
        BARE + "%1: f32[T,6] = scale(%x; factor=3.0)\noutput a = %1\n",
        "%1: f32[T,6] = embed(token_ids, table; scale=3.0)\noutput a = %1\n",
    )


def test_embeddings_that_may_be_given_or_are_scaled_or_read_by_others_keep_their_scale() -> None:
    assert_stays(fold_constants, EMBED + "%1: f32[T,6] = scale(%x; factor=3.0)\noutput a = %1\n")
    scaled = BARE.replace("1.0", "0.5")
    assert_stays(fold_constants, scaled + "%1: f32[T,6] = scale(%x; factor=3.0)\noutput a = %1\n")
    assert_stays(fold_constants, BARE + "%1: f32[T,6] = scale(%x; factor=3.0)\noutput a = %1\noutput b = %x\n")


def test_two_factors_are_not_multiplied() -> None:
    body = "%1: f32[T,6] = scale(%x; factor=0.1)\n%2: f32[T,6] = scale(%1; factor=0.3)\noutput a = %2\n"
    assert_stays(fold_constants, EMBED + body)
